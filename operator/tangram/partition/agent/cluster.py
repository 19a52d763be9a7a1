"""The few calls of the Kubernetes API that an agent makes, all of them about its own node."""

import json
from typing import Any, Protocol

import httpx

from tangram.api.common.base import GROUP, VERSION
from tangram.partition.agent.api_access import APIAccess
from tangram.partition.agent.device_plugin import DevicePluginPod

FIELD_MANAGER = "tangram-agent"
DEADLINE_S = 10.0  # for one call
_API_VERSION = f"{GROUP}/{VERSION}"
_GPU_NODES = f"/apis/{_API_VERSION}/gpunodes"


class ClusterFailure(Exception):
    """A call of the Kubernetes API failed."""


class NodeObjects(Protocol):
    """The objects that an agent reads and writes."""

    def gpu_node(self) -> dict[str, Any] | None:
        """Return the GPUNode of this node; None where there is none."""

    def node(self) -> dict[str, Any] | None:
        """Return the Node; None where there is none."""

    def apply_status(self, version: str, status: dict[str, Any]) -> None:
        """Write the status of the GPUNode, if it still has this resourceVersion."""

    def device_plugin_pods(self) -> list[DevicePluginPod]:
        """Return the pods of the device plugin on this node."""

    def delete_pod(self, pod: DevicePluginPod) -> None:
        """Delete a pod, and no other one of its name."""


class Cluster:
    """`NodeObjects` of an API server."""

    def __init__(
        self,
        access: APIAccess,
        node: str,
        *,
        plugin_namespace: str,
        plugin_selector: str,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self._node, self._access = node, access
        self._plugin_namespace, self._plugin_selector = plugin_namespace, plugin_selector
        self._client = httpx.Client(
            base_url=access.server,
            verify=access.tls or True,
            timeout=deadline_s,
            trust_env=False,
            headers={"Accept": "application/json", "User-Agent": FIELD_MANAGER},
        )

    def gpu_node(self) -> dict[str, Any] | None:
        """Return the GPUNode of this node; None where there is none."""
        return self._call("GET", f"{_GPU_NODES}/{self._node}")

    def node(self) -> dict[str, Any] | None:
        """Return the Node; None where there is none."""
        return self._call("GET", f"/api/v1/nodes/{self._node}")

    def apply_status(self, version: str, status: dict[str, Any]) -> None:
        """Write the status of the GPUNode by server-side apply, if it still has this resourceVersion.

        A UID would not do: the API server ignores it where a status is applied.
        """
        obj = {
            "apiVersion": _API_VERSION,
            "kind": "GPUNode",
            "metadata": {"name": self._node, "resourceVersion": version},
            "status": status,
        }
        path = f"{_GPU_NODES}/{self._node}/status"
        params = {"fieldManager": FIELD_MANAGER, "force": "true"}
        if self._call("PATCH", path, params, obj, "application/apply-patch+yaml") is None:
            raise ClusterFailure(f"the GPUNode {self._node} was deleted")

    def device_plugin_pods(self) -> list[DevicePluginPod]:
        """Return the pods of the device plugin on this node."""
        path = f"/api/v1/namespaces/{self._plugin_namespace}/pods"
        params = {"labelSelector": self._plugin_selector, "fieldSelector": f"spec.nodeName={self._node}"}
        pods = (self._call("GET", path, params) or {}).get("items") or ()
        return [_plugin_pod(pod) for pod in pods if pod["spec"].get("nodeName") == self._node]

    def delete_pod(self, pod: DevicePluginPod) -> None:
        """Delete a pod, and no other one of its name."""
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": pod.uid}}
        self._call("DELETE", f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}", body=options)

    def _call(
        self,
        method: str,
        path: str,
        params: dict[str, str] | None = None,
        body: dict[str, Any] | None = None,
        content_type: str = "application/json",
    ) -> dict[str, Any] | None:
        """Return the response; None where there is no such object."""
        headers = {"Content-Type": content_type} if body is not None else {}
        try:
            token = self._access.token()
            headers |= {"Authorization": f"Bearer {token}"} if token else {}
            content = None if body is None else json.dumps(body)
            response = self._client.request(method, path, params=params, content=content, headers=headers)
            if response.status_code == httpx.codes.NOT_FOUND:
                return None
            document = response.json()
        except (httpx.HTTPError, OSError, ValueError) as error:
            raise ClusterFailure(f"{method} {path}: {type(error).__name__}: {error}") from error
        if response.is_error or not isinstance(document, dict):
            message = document.get("message", "") if isinstance(document, dict) else "not an object"
            raise ClusterFailure(f"{method} {path}: {response.status_code}: {message}")
        return document


def _plugin_pod(pod: dict[str, Any]) -> DevicePluginPod:
    meta, conditions = pod["metadata"], pod.get("status", {}).get("conditions") or ()
    return DevicePluginPod(
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta["uid"],
        is_ready=any(each["type"] == "Ready" and each["status"] == "True" for each in conditions),
        is_ending="deletionTimestamp" in meta,
    )
