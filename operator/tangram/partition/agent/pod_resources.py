"""The kubelet's pod-resources API v1: which pod holds which GPU or MIG device.

A device counts from the moment at which the kubelet has allocated it, before the process of the pod starts.
It comes from NVIDIA's device plugin, shared in time or not, or from a claim of dynamic resource allocation
(DRA). A claim names a GPU by its UUID, or in a way that the DRA driver alone can resolve.

The messages are those of k8s.io/kubelet/pkg/apis/podresources/v1/api.proto, without the fields that are not
read. They have a pool of their own: another program may have declared them, too.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from tangram.api.gpu_node import InstanceHolder
from tangram.partition.layouts import ObservedLayout

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
    "ContainerResources": (
        ("name", 1, "", False),
        ("devices", 2, "ContainerDevices", True),
        ("dynamic_resources", 5, "DynamicResource", True),
    ),
    "ContainerDevices": (("resource_name", 1, "", False), ("device_ids", 2, "", True)),
    "DynamicResource": (("claim_resources", 4, "ClaimResource", True),),
    "ClaimResource": (("cdi_devices", 1, "CDIDevice", True), ("driver_name", 2, "", False)),
    "CDIDevice": (("name", 1, "", False),),
}
_DEVICES = ("GPU-", "MIG-")  # how the device plugin's ids of whole GPUs and slices begin
_REPLICA = "::"  # before the number of a replica of a device that is shared in time
# Drivers of DRA whose devices are no GPUs. One that is not listed may hand out GPUs, under whatever name.
DRIVERS_WITHOUT_GPUS = frozenset(
    ["compute-domain.nvidia.com", "dra.cpu", "dra.net", "sriovnetwork.k8snetworkplumbingwg.io"]
)


class PodResourcesFailure(Exception):
    """The kubelet did not say which pods hold which devices."""


@dataclass(frozen=True, slots=True)
class DeviceAllocations:
    """The pods that hold devices of this node."""

    holders: Mapping[str, InstanceHolder]  # by UUID of a GPU or MIG device
    of_unknown: InstanceHolder | None = None  # a pod that holds devices, which ones is not known

    def among(self, layouts: Iterable[ObservedLayout]) -> dict[str, InstanceHolder]:
        """Return the holders on GPUs with these layouts: a pod with unknown devices may hold any of them."""
        if self.of_unknown is None:
            return dict(self.holders)
        devices = (
            device
            for layout in layouts
            for device in (layout.gpu, *(one for instance in layout.instances for one in instance.devices))
        )
        return {**dict.fromkeys(devices, self.of_unknown), **self.holders}


class PodResources:
    """The pod-resources API of the kubelet of this machine."""

    def __init__(self, socket: Path = SOCKET, deadline_s: float = DEADLINE_S) -> None:
        self._socket, self._deadline_s = socket, deadline_s

    def allocations(self) -> DeviceAllocations:
        """Return the pods that hold devices. Raises `PodResourcesFailure`."""
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
        return _allocations(response)


def _allocations(response: Any) -> DeviceAllocations:
    holders: dict[str, InstanceHolder] = {}
    of_unknown: InstanceHolder | None = None
    for pod in response.pod_resources:
        holder = InstanceHolder(namespace=pod.namespace, name=pod.name)
        for device in (device for container in pod.containers for device in _devices(container)):
            if device is None:
                of_unknown = of_unknown or holder
            else:
                holders[device] = holder
    return DeviceAllocations(holders, of_unknown)


def _devices(container: Any) -> Iterator[str | None]:
    """Return the UUIDs of the GPUs and slices of a container; None for a device that is not known."""
    for devices in container.devices:
        yield from (id_.split(_REPLICA)[0] for id_ in devices.device_ids if id_.startswith(_DEVICES))
    for claim in container.dynamic_resources:
        for resource in claim.claim_resources:
            if resource.driver_name not in DRIVERS_WITHOUT_GPUS:
                yield from _claimed_devices([device.name for device in resource.cdi_devices])


def _claimed_devices(names: Iterable[str]) -> Iterator[str | None]:
    """Return the devices that CDI names stand for: `VENDOR/CLASS=DEVICE`. A device without any is unknown."""
    for name in names or ("",):
        device = name.partition("=")[2].split(_REPLICA)[0]
        yield device if device.startswith(_DEVICES) else None


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
