"""Makes the real `pynvml` call a simulated driver, by a table of C functions.

It looks each function of libnvidia-ml.so up by name in its `nvmlLib`. So structs, buffers and errors are
real, and a call that the bindings make wrongly fails as in C. A child process need not know of it:
`environment(socket)` puts a `sitecustomize` on its path.
"""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from e2e.silicon.nvml.c_functions import DriverLink, FunctionTable, NvmlLibrary
from e2e.silicon.nvml.codes import ReturnCode
from e2e.silicon.nvml.connection import Connection, NotAnswered

SOCKET = "SIMULATED_NVML_SOCKET"
PRIVILEGED = "SIMULATED_NVML_PRIVILEGED"  # 0: neither root nor allowed to configure MIG


class DaemonLink:
    """Calls to a daemon; a connection for each thread, so that a call that hangs holds up no other thread."""

    def __init__(self, path: Path | str, *, privileged: bool = True, wait_s: float = 10.0) -> None:
        self._path, self._privileged, self._wait_s = path, privileged, wait_s
        self._threads = threading.local()

    def call(self, name: str, arguments: Sequence[Any], *, initialized: bool) -> tuple[ReturnCode, Any]:
        """Make one call; without a daemon the driver is not loaded."""
        if getattr(self._threads, "pid", None) != os.getpid():  # a forked child has its own connections
            self._threads.pid = os.getpid()
            self._threads.connection = Connection(self._path, self._wait_s)
        try:
            return self._threads.connection.request(  # type: ignore[no-any-return]
                verb="call",
                name=name,
                arguments=list(arguments),
                initialized=initialized,
                privileged=self._privileged,
            )
        except NotAnswered:
            return ReturnCode.UNKNOWN, None
        except OSError:
            return ReturnCode.DRIVER_NOT_LOADED, None


def install(link: DriverLink) -> NvmlLibrary:
    """Make pynvml in this process call `link` from now on."""
    pynvml = importlib.import_module("pynvml")
    library = NvmlLibrary(link, pynvml)
    _use(pynvml, FunctionTable(library))
    return library


def uninstall() -> None:
    """Let pynvml look for the real library again."""
    _use(importlib.import_module("pynvml"), None)


def _use(pynvml: ModuleType, table: FunctionTable | None) -> None:
    vars(pynvml)["_nvmlGetFunctionPointer_cache"].clear()
    vars(pynvml).update(nvmlLib=table, _nvmlLib_refcount=0)


@contextmanager
def installed(link: DriverLink) -> Iterator[NvmlLibrary]:
    """Make pynvml in this process call `link` within a block."""
    try:
        yield install(link)
    finally:
        uninstall()


def environment(path: Path | str, *, privileged: bool = True) -> dict[str, str]:
    """Return the variables with which a Python child process finds its GPUs at the daemon of a socket."""
    root = Path(__file__).resolve().parents[3]
    folders = [str(Path(__file__).with_name("activate")), str(root), os.environ.get("PYTHONPATH", "")]
    return {
        SOCKET: str(path),
        PRIVILEGED: str(int(privileged)),
        "PYTHONPATH": os.pathsep.join(folder for folder in folders if folder),
    }


def install_from(variables: Mapping[str, str]) -> None:
    """Do what the variables of `environment` ask for; `sitecustomize` calls this when Python starts."""
    if variables.get(SOCKET):
        install(DaemonLink(variables[SOCKET], privileged=variables.get(PRIVILEGED) != "0"))
