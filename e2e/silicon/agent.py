"""The daemon: keeps plugins registered, health injected and labels set until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from e2e.silicon import plugin as plugins
from e2e.silicon.board import Machine
from e2e.silicon.catalog import DEFAULT_CATALOG
from e2e.silicon.device_sources import BoardFile, DeviceSource, Driver
from e2e.silicon.labels import gfd_labels

# Where the kubelet looks for plugins, whatever its --root-dir.
PLUGIN_DIR = Path("/var/lib/kubelet/device-plugins")
UNHEALTHY = Path("/run/silicon/unhealthy")
log = logging.getLogger("silicon")


@dataclass(frozen=True, slots=True)
class Options:
    """Where things are. `poll_s` is how often files are looked at, in seconds.

    The devices come from the board file, or from the driver behind the socket `nvml`.
    """

    board: Path | None
    node: str
    plugin_dir: Path = PLUGIN_DIR
    unhealthy: Path = UNHEALTHY
    catalog: Path = DEFAULT_CATALOG
    poll_s: float = 0.5
    nvml: Path | None = None

    def source(self) -> DeviceSource:
        """Return where the devices come from.

        Raises:
            BoardError: the board file is wrong.
            OSError: there is no board file, or no driver answers.
        """
        if self.nvml is not None:
            return Driver(self.nvml, self.catalog)
        if self.board is None:
            raise FileNotFoundError("neither a board file nor a driver is named")
        return BoardFile(self.board, self.node, self.catalog)


def read_unhealthy(path: Path, machine: Machine) -> set[str]:
    """Return the broken devices a file names, by GPU index or device id, one a line; no file: none."""
    try:
        words = path.read_text().split()
    except FileNotFoundError:
        return set()
    gpus = {str(gpu.index): gpu.uuid for gpu in machine.gpus}
    broken = {gpus.get(word, word) for word in words}
    for stranger in sorted(broken - set(machine.parents())):
        log.warning("%s names %s, which this node does not have", path, stranger)
    return broken


def _stamp(path: Path) -> tuple[int, int] | None:
    """Identify a file so that a new one at the same path is told from the old one."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_ctime_ns


class Agent:
    """Serves one machine.

    A kubelet that restarts empties its plugin folder: then everything is served and registered anew. Devices
    of a driver are enumerated at the start, when a kubelet restarts, and by `rescan`, as by NVIDIA's plugin.
    """

    def __init__(self, options: Options, set_labels: Callable[[dict[str, str]], Any] | None = None) -> None:
        self._options = options
        self._set_labels = set_labels
        self._started = int(time.time())
        self._servers: list[Any] = []
        self._plugins: list[plugins.Plugin] = []
        self._kubelet: tuple[int, int] | None = None
        self._labels_set: dict[str, str] = {}
        self._rescan = False
        self._source = options.source()

    @property
    def machine(self) -> Machine:
        """The devices as they were last enumerated."""
        return self._source.machine

    def rescan(self) -> None:
        """Enumerate the devices anew, soon: what SIGHUP makes NVIDIA's plugin do."""
        self._rescan = True

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set, then take the sockets away."""
        try:
            while not stop.is_set():
                await self._once()
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._options.poll_s):
                        await stop.wait()
        finally:
            await self._stop_serving()
            self._source.close()

    async def _once(self) -> None:
        await self._look()
        if self._must_serve_anew():
            await self._serve()
        broken = await self._broken()
        for plugin in self._plugins:
            await plugin.set_unhealthy(broken)
        await self._label()

    async def _look(self) -> None:
        told, self._rescan = self._rescan, False
        if await asyncio.to_thread(self._source.scan if told else self._source.follow):
            log.info(
                "the devices changed: serving %s", {k: len(v) for k, v in self.machine.devices().items()}
            )
            self._kubelet = None

    async def _broken(self) -> set[str]:
        lost = await asyncio.to_thread(self._source.lost)
        return read_unhealthy(self._options.unhealthy, self.machine) | lost

    def _must_serve_anew(self) -> bool:
        now = _stamp(self._options.plugin_dir / "kubelet.sock")
        if now is None:
            return False
        sockets = [self._options.plugin_dir / plugins.socket_name(one.resource) for one in self._plugins]
        return now != self._kubelet or not all(path.exists() for path in sockets)

    async def _serve(self) -> None:
        await self._stop_serving()
        stamp = _stamp(self._options.plugin_dir / "kubelet.sock")
        await asyncio.to_thread(self._source.scan)
        parents = self.machine.parents()
        self._plugins = [plugins.Plugin(r, ids, parents) for r, ids in self.machine.devices().items()]
        broken = await self._broken()
        try:
            for one in self._plugins:
                await one.set_unhealthy(broken)
                self._servers.append(await plugins.start(one, self._options.plugin_dir))
                await plugins.register(one, self._options.plugin_dir)
        except grpc.aio.AioRpcError as refused:
            log.warning("the kubelet does not take the registration yet: %s", refused.details())
            return
        self._kubelet = stamp

    async def _stop_serving(self) -> None:
        for server in self._servers:
            await server.stop(grace=0)
        self._servers.clear()
        for one in self._plugins:
            (self._options.plugin_dir / plugins.socket_name(one.resource)).unlink(missing_ok=True)
        self._plugins.clear()
        self._kubelet = None

    async def _label(self) -> None:
        wanted = gfd_labels(self.machine, self._started)
        if self._set_labels is None or wanted == self._labels_set:
            return
        try:
            await asyncio.to_thread(self._set_labels, wanted)
        except OSError as refused:
            log.warning("labels not set, trying again: %s", refused)
            return
        log.info("set %d labels on node %s", len(wanted), self._options.node)
        self._labels_set = wanted
