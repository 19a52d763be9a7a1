"""Where the API server is, and how a pod proves its identity: what operator and node agents have in common.

In: the environment of a pod, and the files that the kubelet mounts into it. Out: address, token, TLS context.

It needs the standard library alone: the operator calls the API with aiohttp, an agent with httpx. Kubeconfigs
are read elsewhere: by the official client for the operator, which runs plug-ins, and by the agent without it.
"""

from tangram.credentials.base import AuthError, Credentials, ssl_context
from tangram.credentials.in_cluster import InClusterCredentials, in_cluster_credentials

__all__ = ["AuthError", "Credentials", "InClusterCredentials", "in_cluster_credentials", "ssl_context"]
