"""Requests to an API server over one connection. `kubectl` takes a fifth of a processor second for each."""

import contextlib
from typing import Any, Self

import httpx

from tangram.kube.credentials import ssl_context
from tangram.kube.kubeconfig import load_kubeconfig

GPU_NODES = "/apis/tangram.dev/v1alpha1/gpunodes"
CLUSTER_POLICIES = "/apis/nvidia.com/v1/clusterpolicies"
NODES = "/api/v1/nodes"
MERGE, STRATEGIC = "merge-patch", "strategic-merge-patch"


def pods(namespace: str) -> str:
    """The path of the pods of a namespace."""
    return f"/api/v1/namespaces/{namespace}/pods"


class ApiRequests:
    """Objects by path, as JSON. What is missing raises KeyError, any other refusal httpx.HTTPStatusError."""

    def __init__(self, kubeconfig: Any) -> None:
        credentials = load_kubeconfig(str(kubeconfig))
        verify = ssl_context(credentials) or False
        self._client = httpx.Client(base_url=credentials.server, verify=verify, timeout=30, trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def get(self, path: str) -> Any:
        """Return an object, or a list."""
        return self._request("GET", path)

    def create(self, path: str, body: Any) -> None:
        """Create an object in a collection."""
        self._request("POST", path, json=body)

    def patch(self, path: str, body: Any, *, how: str = MERGE) -> None:
        """Change an object, or its status where the path says so."""
        self._request("PATCH", path, json=body, headers={"Content-Type": f"application/{how}+json"})

    def delete(self, path: str) -> None:
        """Delete an object at once, or all of a collection; one that is not there is no error."""
        with contextlib.suppress(KeyError):
            self._request("DELETE", path, params={"gracePeriodSeconds": "0"})

    def _request(self, method: str, path: str, **options: Any) -> Any:
        response = self._client.request(method, path, **options)
        if response.status_code == httpx.codes.NOT_FOUND:
            raise KeyError(path)
        response.raise_for_status()
        return response.json()
