"""The Kubernetes API: kinds and paths, credentials, a client, and delays between retries.

In: calls of the operator, the command line and the node agents. Out: parsed JSON, bounded in size and time.
It decides nothing.

HTTP is aiohttp's, which kopf needs as well (docs/adr/0004-one-kubernetes-client.md).
"""
