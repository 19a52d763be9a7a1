"""The kubelet's pod-resources API v1: which pod holds which GPU or MIG device.

A device counts from the moment at which the kubelet has allocated it, before the process of the pod starts.
The messages are those of k8s.io/kubelet/pkg/apis/podresources/v1/api.proto, without the fields that are not
read. They have a pool of their own: another program may have declared them, too.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from tangram.api.gpu_node import InstanceHolder

SOCKET = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
DEADLINE_S = 5.0
LONGEST_MESSAGE = 16 * 2**20  # bytes, as the kubelet's own limit
_PACKAGE, _METHOD = "v1", "/v1.PodResourcesLister/List"
_FIELD = descriptor_pb2.FieldDescriptorProto
_FIELDS: Mapping[str, tuple[tuple[str, int, str, bool], ...]] = {  # name, number, type, repeated
    "ListPodResourcesRequest": (),
    "ListPodResourcesResponse": (("pod_resources", 1, "PodResources", True),),
    "PodResources": (
        ("name", 1, "", False),
        ("namespace", 2, "", False),
        ("containers", 3, "ContainerResources", True),
    ),
    "ContainerResources": (("name", 1, "", False), ("devices", 2, "ContainerDevices", True)),
    "ContainerDevices": (("resource_name", 1, "", False), ("device_ids", 2, "", True)),
}
_DEVICES = ("GPU-", "MIG-")  # how the device plugin's ids of whole GPUs and slices begin
_REPLICA = "::"  # before the number of a replica of a device that is shared in time


class PodResourcesFailure(Exception):
    """The kubelet did not say which pods hold which devices."""


class PodResources:
    """The pod-resources API of the kubelet of this machine."""

    def __init__(self, socket: Path = SOCKET, deadline_s: float = DEADLINE_S) -> None:
        self._socket, self._deadline_s = socket, deadline_s

    def holders(self) -> dict[str, InstanceHolder]:
        """Return the pods by the UUIDs of the devices that they hold. Raises `PodResourcesFailure`."""
        options = [("grpc.max_receive_message_length", LONGEST_MESSAGE)]
        try:
            with grpc.insecure_channel(f"unix://{self._socket}", options) as channel:
                method = channel.unary_unary(
                    _METHOD,
                    request_serializer=_REQUEST.SerializeToString,
                    response_deserializer=_RESPONSE.FromString,
                )
                response = method(_REQUEST(), timeout=self._deadline_s)
        except grpc.RpcError as error:
            text = getattr(error, "details", str)() or type(error).__name__
            raise PodResourcesFailure(f"the kubelet's pod-resources at {self._socket}: {text}") from error
        return _holders(response)


def _holders(response: Any) -> dict[str, InstanceHolder]:
    return {
        device.split(_REPLICA)[0]: InstanceHolder(namespace=pod.namespace, name=pod.name)
        for pod in response.pod_resources
        for container in pod.containers
        for devices in container.devices
        for device in devices.device_ids
        if device.startswith(_DEVICES)
    }


def _messages() -> tuple[Any, Any]:
    """Declare the messages; return request and response."""
    file = descriptor_pb2.FileDescriptorProto(name="podresources.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        for field, number, type_name, repeated in fields:
            message.field.add(
                name=field,
                number=number,
                type=_FIELD.TYPE_MESSAGE if type_name else _FIELD.TYPE_STRING,
                type_name=f".{_PACKAGE}.{type_name}" if type_name else None,
                label=_FIELD.LABEL_REPEATED if repeated else _FIELD.LABEL_OPTIONAL,
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    request, response = (
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
        for name in ("ListPodResourcesRequest", "ListPodResourcesResponse")
    )
    return request, response


_REQUEST, _RESPONSE = _messages()
