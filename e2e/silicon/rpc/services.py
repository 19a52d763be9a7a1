"""The kubelet's services as grpcio wants them: which method takes and gives which message.

Written by hand: generated service stubs would tie us to the grpc version that generated them.
"""

from __future__ import annotations

from typing import Any, Protocol

import grpc

from e2e.silicon.rpc import deviceplugin_v1beta1_pb2 as dp
from e2e.silicon.rpc import podresources_v1_pb2 as pr

VERSION = "v1beta1"


class DevicePlugin(Protocol):
    """What the kubelet calls on a plugin; `context` is grpcio's."""

    async def options(self, request: Any, context: Any) -> Any: ...
    def list_and_watch(self, request: Any, context: Any) -> Any: ...
    async def preferred(self, request: Any, context: Any) -> Any: ...
    async def allocate(self, request: Any, context: Any) -> Any: ...
    async def pre_start(self, request: Any, context: Any) -> Any: ...


class Registry(Protocol):
    """What a plugin calls on the kubelet."""

    async def register(self, request: Any, context: Any) -> Any: ...


def _unary(method: Any, request: Any, response: Any) -> grpc.RpcMethodHandler:
    return grpc.unary_unary_rpc_method_handler(
        method, request_deserializer=request.FromString, response_serializer=response.SerializeToString
    )


def device_plugin(plugin: DevicePlugin) -> grpc.GenericRpcHandler:
    """Return the handler that serves `plugin` as v1beta1.DevicePlugin."""
    stream = grpc.unary_stream_rpc_method_handler(
        plugin.list_and_watch,
        request_deserializer=dp.Empty.FromString,
        response_serializer=dp.ListAndWatchResponse.SerializeToString,
    )
    methods = {
        "GetDevicePluginOptions": _unary(plugin.options, dp.Empty, dp.DevicePluginOptions),
        "ListAndWatch": stream,
        "GetPreferredAllocation": _unary(
            plugin.preferred, dp.PreferredAllocationRequest, dp.PreferredAllocationResponse
        ),
        "Allocate": _unary(plugin.allocate, dp.AllocateRequest, dp.AllocateResponse),
        "PreStartContainer": _unary(
            plugin.pre_start, dp.PreStartContainerRequest, dp.PreStartContainerResponse
        ),
    }
    return grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", methods)


def registration(registry: Registry) -> grpc.GenericRpcHandler:
    """Return the handler that serves `registry` as the kubelet's v1beta1.Registration."""
    methods = {"Register": _unary(registry.register, dp.RegisterRequest, dp.Empty)}
    return grpc.method_handlers_generic_handler("v1beta1.Registration", methods)


def call(channel: Any, method: str, request: Any, response: Any) -> Any:
    """Return a callable for a unary method such as `/v1beta1.Registration/Register`."""
    return channel.unary_unary(
        method, request_serializer=request.SerializeToString, response_deserializer=response.FromString
    )


def watch(channel: Any) -> Any:
    """Return a callable for DevicePlugin.ListAndWatch."""
    return channel.unary_stream(
        "/v1beta1.DevicePlugin/ListAndWatch",
        request_serializer=dp.Empty.SerializeToString,
        response_deserializer=dp.ListAndWatchResponse.FromString,
    )


def list_pod_resources(
    socket: str, timeout_s: float = 5.0
) -> dict[tuple[str, str], dict[str, tuple[str, ...]]]:
    """Ask the kubelet which pod holds which device: (namespace, pod) -> resource -> device ids.

    Args:
        socket: path of the kubelet's pod-resources socket (`<root-dir>/pod-resources/kubelet.sock`).
        timeout_s: seconds until the call is given up.
    """
    with grpc.insecure_channel(f"unix://{socket}") as channel:
        method = call(
            channel, "/v1.PodResourcesLister/List", pr.ListPodResourcesRequest, pr.ListPodResourcesResponse
        )
        answer = method(pr.ListPodResourcesRequest(), timeout=timeout_s)
    held: dict[tuple[str, str], dict[str, tuple[str, ...]]] = {}
    for pod in answer.pod_resources:
        for container in pod.containers:
            for device in container.devices:
                mine = held.setdefault((pod.namespace, pod.name), {})
                mine[device.resource_name] = (*mine.get(device.resource_name, ()), *device.device_ids)
    return held
