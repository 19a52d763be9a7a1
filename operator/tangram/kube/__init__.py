"""The Kubernetes API: kinds and paths, credentials, a client, and local copies of its objects.

In: calls of the operator, the gateway, the command line and the node agents. Out: parsed JSON, bounded in
size and time; mirrors (informer caches), kept current by list and watch.
It decides nothing.

HTTP is aiohttp's, which kopf needs as well (docs/adr/0004-one-kubernetes-client.md).
"""
