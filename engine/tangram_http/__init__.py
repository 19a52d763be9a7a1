"""One HTTP port whose clients are bounded, and a log that is, for engine, operator and node agent.

In: an application of aiohttp, a listening socket and limits. Out: a port that clients can neither fill nor
block. It imports aiohttp and the standard library alone, since all images hold it.

| module | what it does |
|---|---|
| `connections` | counts connections and what they hold, and closes the one that has waited longest |
| `refusals` | writes the answers to requests that no application sees |
| `http_connection` | tells aiohttp's connection from its first to its last byte what it may hold |
| `listener` | accepts connections, pauses where that fails, and refuses what HTTP/1.1 does not allow |
| `tls_listener` | the same with TLS: bounds handshakes, and the processor time that they take |
| `sockets` | opens the listening socket, within the descriptors of the process |
| `pages` | serves small pages, each made at most once a second |
| `log_limit` | writes some log lines of each kind, and counts the others |
"""
