"""The few calls of the Kubernetes API that an agent makes, all of them about its own node."""

from typing import Protocol

from tangram.kube.client import UNGUARDED
from tangram.kube.kinds import GPU_NODES, NODES, PODS, Object
from tangram.partition.agent.api_thread import FIELD_MANAGER, ApiThread
from tangram.partition.agent.device_plugin import DevicePluginPod


class NodeObjects(Protocol):
    """The objects that an agent reads and writes. Each call may raise `ApiError`."""

    def gpu_node(self) -> Object | None:
        """Return the GPUNode of this node; None where there is none."""

    def node(self) -> Object | None:
        """Return the Node; None where there is none."""

    def apply_status(self, version: str, status: Object) -> None:
        """Write the status of the GPUNode, if it still has this resourceVersion."""

    def device_plugin_pods(self) -> list[DevicePluginPod]:
        """Return the pods of the device plugin on this node."""

    def delete_pod(self, pod: DevicePluginPod) -> None:
        """Delete a pod, and no other one of its name."""


class Cluster:
    """`NodeObjects` of an API server."""

    def __init__(self, api: ApiThread, node: str, *, plugin_namespace: str, plugin_selector: str) -> None:
        self._api, self._node = api, node
        self._plugin_namespace, self._plugin_selector = plugin_namespace, plugin_selector

    def gpu_node(self) -> Object | None:
        """Return the GPUNode of this node; None where there is none."""
        return self._api.call(self._api.client.get(GPU_NODES, "", self._node))

    def node(self) -> Object | None:
        """Return the Node; None where there is none."""
        return self._api.call(self._api.client.get(NODES, "", self._node))

    def apply_status(self, version: str, status: Object) -> None:
        """Write the status of the GPUNode by server-side apply, if it still has this resourceVersion.

        A UID would not do: the API server ignores it where a status is applied.
        """
        obj = {
            "apiVersion": GPU_NODES.api_version,
            "kind": GPU_NODES.kind,
            "metadata": {"name": self._node, "resourceVersion": version},
            "status": status,
        }
        client = self._api.client
        self._api.call(
            client.apply(
                GPU_NODES, obj, manager=FIELD_MANAGER, force=True, subresource="status", guard=UNGUARDED
            )
        )

    def device_plugin_pods(self) -> list[DevicePluginPod]:
        """Return the pods of the device plugin on this node."""
        on_node = f"spec.nodeName={self._node}"
        listing = self._api.call(
            self._api.client.list(PODS, self._plugin_namespace, self._plugin_selector, field_selector=on_node)
        )
        return [_plugin_pod(pod) for pod in listing.items if pod["spec"].get("nodeName") == self._node]

    def delete_pod(self, pod: DevicePluginPod) -> None:
        """Delete a pod, and no other one of its name."""
        self._api.call(self._api.client.delete(PODS, pod.namespace, pod.name, uid=pod.uid, guard=UNGUARDED))


def _plugin_pod(pod: Object) -> DevicePluginPod:
    meta, conditions = pod["metadata"], pod.get("status", {}).get("conditions") or ()
    return DevicePluginPod(
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta["uid"],
        is_ready=any(each["type"] == "Ready" and each["status"] == "True" for each in conditions),
        is_ending="deletionTimestamp" in meta,
    )
