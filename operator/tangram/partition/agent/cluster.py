"""The few calls of the Kubernetes API that an agent makes, all of them about its own node."""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import httpx

from tangram.api.common.base import GROUP, VERSION
from tangram.partition.agent.api_access import APIAccess
from tangram.partition.agent.device_plugin import DevicePluginPod

FIELD_MANAGER = "tangram-agent"
DEADLINE_S = 10.0  # for one call
_API_VERSION = f"{GROUP}/{VERSION}"
_GPU_NODES = f"/apis/{_API_VERSION}/gpunodes"
_COLLECTIONS = {"GPUNode": _GPU_NODES, "Node": "/api/v1/nodes"}
LONGEST_EVENT = 4 * 2**20  # bytes; etcd stores objects of at most 1.5 MiB


class ClusterFailure(Exception):
    """A call of the Kubernetes API failed."""


class WatchExpired(ClusterFailure):
    """The API server no longer knows the resourceVersion at which a watch was to go on."""


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

    @contextmanager
    def watch(
        self, kind: str, version: str | None, *, lasts_s: int, silence_s: float
    ) -> Iterator[Iterator[bytes]]:
        """Return the lines of a watch on this node's object of a kind, after a resourceVersion.

        Without a version, the first event is the object as it is. The watch ends after `lasts_s` by itself.
        Raises `ClusterFailure` where it is silent for `silence_s`, and `WatchExpired`.
        """
        params = {
            "watch": "true",
            "fieldSelector": f"metadata.name={self._node}",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(lasts_s),
            **({"resourceVersion": version} if version is not None else {}),
        }
        path = _COLLECTIONS[kind]
        timeout = httpx.Timeout(self._client.timeout.connect, read=silence_s)
        try:
            # Not compressed: what is read is what is sent, and a small stream cannot become a large one.
            headers = self._authorization() | {"Accept-Encoding": "identity"}
            with self._client.stream(
                "GET", path, params=params, headers=headers, timeout=timeout
            ) as response:
                if response.status_code == httpx.codes.GONE:
                    raise WatchExpired(f"watching {path}: {response.status_code}")
                if response.status_code != httpx.codes.OK:
                    raise ClusterFailure(f"watching {path}: {response.status_code}")
                yield _lines(response.iter_raw())
        except (httpx.HTTPError, OSError, ValueError) as error:
            raise ClusterFailure(f"watching {path}: {type(error).__name__}: {error}") from error

    def _authorization(self) -> dict[str, str]:
        token = self._access.token()
        return {"Authorization": f"Bearer {token}"} if token else {}

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
            headers |= self._authorization()
            content = None if body is None else json.dumps(body)
            response = self._client.request(method, path, params=params, content=content, headers=headers)
            if response.status_code == httpx.codes.NOT_FOUND:
                return None
            document = response.json()
        except (httpx.HTTPError, OSError, ValueError, RecursionError) as error:  # JSON that nests too deep
            raise ClusterFailure(f"{method} {path}: {type(error).__name__}: {error}") from error
        if response.is_error or not isinstance(document, dict):
            message = document.get("message", "") if isinstance(document, dict) else "not an object"
            raise ClusterFailure(f"{method} {path}: {response.status_code}: {message}")
        return document


def _lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Split a stream into lines. Raises `ClusterFailure` for one longer than any object."""
    rest = bytearray()
    for chunk in chunks:
        *ended, tail = chunk.split(b"\n")
        for part in ended:
            yield from _line(rest + part)
            rest.clear()
        rest += tail
        _line(rest)


def _line(line: bytearray) -> tuple[bytes, ...]:
    if len(line) > LONGEST_EVENT:
        raise ClusterFailure(f"a watch event of more than {LONGEST_EVENT} bytes")
    return (bytes(line),) if line.strip() else ()


def _plugin_pod(pod: dict[str, Any]) -> DevicePluginPod:
    meta, conditions = pod["metadata"], pod.get("status", {}).get("conditions") or ()
    return DevicePluginPod(
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta["uid"],
        is_ready=any(each["type"] == "Ready" and each["status"] == "True" for each in conditions),
        is_ending="deletionTimestamp" in meta,
    )
