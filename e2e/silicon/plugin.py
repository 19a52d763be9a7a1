"""One device plugin per resource, speaking the kubelet's v1beta1 protocol over a unix socket."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path
from typing import Any

import grpc

from e2e.silicon.rpc import deviceplugin_v1beta1_pb2 as dp
from e2e.silicon.rpc import services

HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"
log = logging.getLogger("silicon")


class Plugin:
    """Offers the devices of one resource. Health may change while the kubelet watches."""

    def __init__(self, resource: str, devices: tuple[str, ...], parents: Mapping[str, str]) -> None:
        self.resource = resource
        self.devices = devices
        self._parents = parents
        self._unhealthy: frozenset[str] = frozenset()
        self._changed = asyncio.Condition()

    async def set_unhealthy(self, broken: Iterable[str]) -> None:
        """Mark exactly these devices unhealthy; a broken GPU takes every instance on it along."""
        broken = set(broken)
        now = frozenset(one for one in self.devices if one in broken or self._parents[one] in broken)
        async with self._changed:
            if now != self._unhealthy:
                log.info("%s: unhealthy devices are now %s", self.resource, sorted(now) or "none")
                self._unhealthy = now
                self._changed.notify_all()

    def _answer(self) -> dp.ListAndWatchResponse:
        return dp.ListAndWatchResponse(
            devices=[
                dp.Device(ID=one, health=UNHEALTHY if one in self._unhealthy else HEALTHY)
                for one in self.devices
            ]
        )

    async def options(self, _request: Any, _context: Any) -> dp.DevicePluginOptions:
        """Tell the kubelet that it may ask for a preference."""
        return dp.DevicePluginOptions(get_preferred_allocation_available=True)

    async def list_and_watch(self, _request: Any, _context: Any) -> AsyncIterator[dp.ListAndWatchResponse]:
        """Send the devices now and again after every change of health."""
        while True:
            seen = self._unhealthy
            yield self._answer()
            async with self._changed:
                await self._changed.wait_for(lambda seen=seen: self._unhealthy != seen)  # type: ignore[misc]

    def prefer(self, available: Iterable[str], must: Iterable[str], size: int) -> tuple[str, ...]:
        """Choose `size` devices: those that must be, then from the GPU with the fewest free ones left.

        Packing keeps whole GPUs free for as long as possible; order within a GPU is that of the board file.
        """
        chosen = list(must)
        free = [one for one in self.devices if one in set(available) and one not in chosen]
        left = {
            parent: sum(self._parents[one] == parent for one in free) for parent in self._parents.values()
        }
        free.sort(key=lambda one: left[self._parents[one]])
        return tuple((chosen + free)[:size])

    async def preferred(self, request: Any, _context: Any) -> dp.PreferredAllocationResponse:
        """Answer the kubelet's question which of the free devices we would take."""
        return dp.PreferredAllocationResponse(
            container_responses=[
                dp.ContainerPreferredAllocationResponse(
                    deviceIDs=self.prefer(
                        one.available_deviceIDs, one.must_include_deviceIDs, one.allocation_size
                    )
                )
                for one in request.container_requests
            ]
        )

    async def allocate(self, request: Any, context: Any) -> dp.AllocateResponse:
        """Hand devices to containers: NVIDIA's runtime reads them from NVIDIA_VISIBLE_DEVICES."""
        wanted = [list(one.devices_ids) for one in request.container_requests]
        strangers = sorted({one for ids in wanted for one in ids} - set(self.devices))
        if strangers:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, f"{self.resource} has no device {', '.join(strangers)}"
            )
        return dp.AllocateResponse(
            container_responses=[
                dp.ContainerAllocateResponse(envs={"NVIDIA_VISIBLE_DEVICES": ",".join(ids)}) for ids in wanted
            ]
        )

    async def pre_start(self, _request: Any, _context: Any) -> dp.PreStartContainerResponse:
        """Nothing to do before a container starts (and the options say so)."""
        return dp.PreStartContainerResponse()


def socket_name(resource: str) -> str:
    """Return the file name of a resource's socket in the kubelet's plugin folder."""
    return f"silicon-{resource.removeprefix('nvidia.com/').replace('.', '-')}.sock"


async def start(plugin: Plugin, folder: Path) -> Any:
    """Serve `plugin` on its socket in `folder`; the caller stops the returned server."""
    path = folder / socket_name(plugin.resource)
    path.unlink(missing_ok=True)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((services.device_plugin(plugin),))
    server.add_insecure_port(f"unix://{path}")
    await server.start()
    return server


async def register(plugin: Plugin, folder: Path, timeout_s: float = 5.0) -> None:
    """Introduce `plugin` to the kubelet.

    Raises:
        grpc.aio.AioRpcError: the kubelet does not answer or refuses.
    """
    async with grpc.aio.insecure_channel(f"unix://{folder / 'kubelet.sock'}") as channel:
        method = services.call(channel, "/v1beta1.Registration/Register", dp.RegisterRequest, dp.Empty)
        await method(
            dp.RegisterRequest(
                version=services.VERSION,
                endpoint=socket_name(plugin.resource),
                resource_name=plugin.resource,
                options=dp.DevicePluginOptions(get_preferred_allocation_available=True),
            ),
            timeout=timeout_s,
        )
    log.info("registered %s with %d devices", plugin.resource, len(plugin.devices))
