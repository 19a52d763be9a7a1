"""Where the stand-in of the device plugin learns which devices its node has: a board file, or a driver."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Protocol

from e2e.silicon.board import BoardError, Gpu, Instance, Machine, load_machine
from e2e.silicon.catalog import DEFAULT_CATALOG, load_board
from e2e.silicon.nvml.codes import ReturnCode
from e2e.silicon.nvml.connection import Admin, Connection, NotAnswered
from e2e.silicon.nvml.state import NvmlState, from_json

log = logging.getLogger("silicon")


class DeviceSource(Protocol):
    """Devices of a node, as they were at the last scan."""

    machine: Machine

    def scan(self) -> bool:
        """Look anew; whether the devices are others now."""

    def follow(self) -> bool:
        """Look anew if this source is one whose changes are seen at once; whether the devices are others."""

    def lost(self) -> frozenset[str]:
        """Return the devices that the driver calls lost."""

    def close(self) -> None:
        """Let go of the devices."""


class BoardFile:
    """A board file: a new content is a repartition, seen at once; one that is wrong changes nothing."""

    def __init__(self, path: Path, node: str, catalog: Path = DEFAULT_CATALOG) -> None:
        self._path, self._node, self._catalog = path, node, catalog
        self.machine = load_machine(path, node, catalog)
        self._text = path.read_text()

    def scan(self) -> bool:
        """Read the file if it has another content."""
        text = self._path.read_text()
        if text == self._text:
            return False
        self._text = text
        try:
            self.machine = load_machine(self._path, self._node, self._catalog)
        except BoardError as wrong:
            log.warning("the board file changed and is wrong, the silicon stays as it was: %s", wrong)
            return False
        return True

    def follow(self) -> bool:
        """See a change at once."""
        return self.scan()

    def lost(self) -> frozenset[str]:
        """Return nothing: a file loses no GPU."""
        return frozenset()

    def close(self) -> None:
        """Do nothing."""


class Driver:
    """The driver of a node. New instances are not seen before the next scan, as NVIDIA's plugin does not.

    It holds a handle of each GPU, as the plugin's watch for XIDs does: while it runs, no MIG mode changes.
    """

    def __init__(self, socket: Path, catalog: Path = DEFAULT_CATALOG) -> None:
        self._catalog = catalog
        self._admin, self._client = Admin(socket), Connection(socket)
        self.machine = self._read()

    def scan(self) -> bool:
        """Enumerate the devices; without an answer they stay as they were."""
        before = self.machine
        try:
            self.machine = self._read()
        except (NotAnswered, OSError) as gone:
            log.warning("the driver does not answer: %s", gone)
        return self.machine != before

    def follow(self) -> bool:
        """Report no change: a driver announces no new instances."""
        return False

    def lost(self) -> frozenset[str]:
        """Return the GPUs that are lost now, without those that came after the last scan."""
        known = {gpu.uuid for gpu in self.machine.gpus}
        try:
            raw = self._admin.state()
        except (NotAnswered, OSError) as gone:
            log.warning("the driver does not answer: %s", gone)
            return frozenset()
        return frozenset(gpu["uuid"] for gpu in raw["gpus"] if gpu["is_lost"] and gpu["uuid"] in known)

    def close(self) -> None:
        """Let go of the GPUs."""
        self._admin.close()
        self._client.close()

    def _read(self) -> Machine:
        raw = self._admin.state()
        raw.pop("holders")
        state = from_json(raw, load_board(raw["board"]["sku"], raw["board"]["name"], self._catalog))
        for index in range(len(state.gpus)):
            code, _ = self._client.request(verb="call", name="nvmlDeviceGetHandleByIndex", arguments=[index])
            if code is not ReturnCode.SUCCESS:
                log.warning("GPU %d: %s", index, code.name)
        return machine_of(state)


def machine_of(state: NvmlState) -> Machine:
    """Return whole GPUs, and MIG devices whose compute instance covers the GPU instance."""
    return Machine(
        board=state.board,
        driver=state.driver,
        cuda=state.cuda,
        name="Simulated",
        gpus=tuple(
            Gpu(
                index,
                gpu.uuid,
                tuple(
                    Instance(state.profile(one), one.start, uuid)
                    for uuid, one, compute in state.mig_devices(gpu)
                    if compute.size == state.profile(one).compute_slices
                )
                if gpu.mig_mode
                else None,
            )
            for index, gpu in enumerate(state.gpus)
        ),
    )
