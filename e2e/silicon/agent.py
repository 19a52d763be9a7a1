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
from e2e.silicon.board import BoardError, Machine, load_machine
from e2e.silicon.catalog import DEFAULT_CATALOG
from e2e.silicon.labels import gfd_labels

# Where the kubelet looks for plugins, whatever its --root-dir.
PLUGIN_DIR = Path("/var/lib/kubelet/device-plugins")
UNHEALTHY = Path("/run/silicon/unhealthy")
log = logging.getLogger("silicon")


@dataclass(frozen=True, slots=True)
class Options:
    """Where things are. `poll_s` is how often files are looked at, in seconds."""

    board: Path
    node: str
    plugin_dir: Path = PLUGIN_DIR
    unhealthy: Path = UNHEALTHY
    catalog: Path = DEFAULT_CATALOG
    poll_s: float = 0.5


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

    A kubelet that restarts empties its plugin folder: then everything is served and registered anew.
    """

    def __init__(self, options: Options, set_labels: Callable[[dict[str, str]], Any] | None = None) -> None:
        self._options = options
        self._set_labels = set_labels
        self._started = int(time.time())
        self._servers: list[Any] = []
        self._plugins: list[plugins.Plugin] = []
        self._kubelet: tuple[int, int] | None = None
        self._board_text = ""
        self._labels_set: dict[str, str] = {}
        self.machine: Machine = load_machine(options.board, options.node, options.catalog)
        self._board_text = options.board.read_text()

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set, then take the sockets away."""
        try:
            while not stop.is_set():
                await self._once()
                with suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), self._options.poll_s)
        finally:
            await self._stop_serving()

    async def _once(self) -> None:
        self._reload_board()
        if self._must_serve_anew():
            await self._serve()
        broken = read_unhealthy(self._options.unhealthy, self.machine)
        for plugin in self._plugins:
            await plugin.set_unhealthy(broken)
        await self._label()

    def _reload_board(self) -> None:
        """A changed board file is a repartition; one that is wrong keeps the silicon as it was."""
        text = self._options.board.read_text()
        if text == self._board_text:
            return
        self._board_text = text
        try:
            self.machine = load_machine(self._options.board, self._options.node, self._options.catalog)
        except BoardError as wrong:
            log.warning("the board file changed and is wrong, the silicon stays as it was: %s", wrong)
            return
        log.info("the board file changed: serving %s", {k: len(v) for k, v in self.machine.devices().items()})
        self._kubelet = None

    def _must_serve_anew(self) -> bool:
        now = _stamp(self._options.plugin_dir / "kubelet.sock")
        if now is None:
            return False
        sockets = [self._options.plugin_dir / plugins.socket_name(one.resource) for one in self._plugins]
        return now != self._kubelet or not all(path.exists() for path in sockets)

    async def _serve(self) -> None:
        await self._stop_serving()
        stamp = _stamp(self._options.plugin_dir / "kubelet.sock")
        parents = self.machine.parents()
        self._plugins = [plugins.Plugin(r, ids, parents) for r, ids in self.machine.devices().items()]
        broken = read_unhealthy(self._options.unhealthy, self.machine)
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
