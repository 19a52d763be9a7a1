"""One daemon per node: keeps the state of its GPUs as a driver does, behind a Unix socket and in a file.

Clients may be killed at any time; so may the daemon: an answer is sent only after the state is in the file.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from e2e.silicon.board import load_machine
from e2e.silicon.catalog import DEFAULT_CATALOG, load_board
from e2e.silicon.nvml import calls, state
from e2e.silicon.nvml.codes import CallFailed, ReturnCode
from e2e.silicon.nvml.connection import MOST_BYTES
from e2e.silicon.nvml.state import NvmlState

MOST_CALLS_KEPT = 2000
ASKS_FOR_HOLDERS = ("nvmlDeviceSetMigMode", "reset")


def read_state(file: Path, board: Path | None, node: str, catalog: Path = DEFAULT_CATALOG) -> NvmlState:
    """Return the state in `file`; where there is none yet, that of a board file.

    Raises:
        BoardError: the board file asks for silicon that cannot exist.
        OSError: there is neither file.
    """
    if board is not None and not file.exists():
        return state.node_state(load_machine(board, node, catalog), node)
    raw = json.loads(file.read_text())
    holders = frozenset((str(client), str(uuid)) for client, uuid in raw.pop("holders", []))
    model = load_board(raw["board"]["sku"], raw["board"]["name"], catalog)
    return replace(state.from_json(raw, model), holders=holders)


def write_state(file: Path, current: NvmlState) -> None:
    """Replace `file` by the state as it is now, whole or not at all."""
    fresh = file.with_suffix(f"{file.suffix}.new")
    fresh.write_text(json.dumps(state.to_json(current) | {"holders": sorted(current.holders)}))
    fresh.replace(file)


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)


def _lives(client: str) -> bool:
    """Whether the process of a client's pid is there; a zombie has closed its files."""
    try:
        return Path(f"/proc/{client}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


class NvmlDaemon:
    """Answers NVML clients and admins of one node."""

    def __init__(self, initial: NvmlState, file: Path) -> None:
        self.state = initial
        self._file = file
        self._calls: deque[dict[str, Any]] = deque(maxlen=MOST_CALLS_KEPT)
        self._call_counts: Counter[str] = Counter()
        self._connections: Counter[str] = Counter()
        self._released = asyncio.Event()
        self._answering: set[asyncio.Task[None]] = set()
        write_state(file, initial)

    async def serve(
        self, path: Path, stop: asyncio.Event, started: Callable[[], None] = lambda: None
    ) -> None:
        """Listen on `path` until `stop` is set."""
        _remove(path)
        server = await asyncio.start_unix_server(self._connected, str(path), limit=MOST_BYTES)
        os.chmod(path, 0o666)  # noqa: PTH101, S103 - as /dev/nvidiactl: what a client may do depends on its user
        started()
        try:
            await stop.wait()
        finally:
            server.close()
            for task in self._answering:
                task.cancel()
            await asyncio.gather(*self._answering, return_exceptions=True)
            _remove(path)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._answering.add(task)
        credentials = writer.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        pid, uid, _ = struct.unpack("3i", credentials)
        client, trusted, calls_nvml = str(pid), uid in (0, os.getuid()), False
        try:
            while line := await reader.readline():
                request = dict(json.loads(line))
                if request.get("verb") == "call" and not calls_nvml:
                    calls_nvml = True
                    self._connections[client] += 1
                answer = await self._answer(request, client, trusted=trusted)
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()
        except (ConnectionError, ValueError, TypeError, asyncio.CancelledError):
            pass  # the client died, or a line is too long or no JSON: the connection ends
        finally:
            if calls_nvml:
                self._disconnected(client)
            self._answering.discard(task)
            writer.close()
            with suppress(ConnectionError, asyncio.CancelledError):
                await writer.wait_closed()

    def _disconnected(self, client: str) -> None:
        """Forget what a process holds once none of its threads is connected any more."""
        self._connections[client] -= 1
        if not self._connections[client]:
            del self._connections[client]
            self._replace(state.release_holder(self.state, client))

    async def _answer(self, request: dict[str, Any], client: str, *, trusted: bool) -> dict[str, Any]:
        verb, arguments = request.get("verb"), request.get("arguments")
        try:
            if verb == "call":
                privileged = trusted and bool(request.get("privileged", True))
                caller = calls.Caller(client, privileged, bool(request.get("initialized", True)))
                answer = await self._call(str(request["name"]), list(arguments or ()), caller)
                return {"code": answer.code.name, "value": answer.value}
            return {"code": "SUCCESS", "value": self._admin(str(verb), dict(arguments or {}))}
        except CallFailed as failed:
            return {"code": failed.code.name, "value": str(failed)}
        except (TypeError, KeyError, ValueError) as wrong:
            return {"code": "INVALID_ARGUMENT", "value": f"{verb}: {wrong}"}

    async def _call(self, name: str, arguments: list[Any], caller: calls.Caller) -> calls.Answer:
        record = {"client": caller.client, "name": name, "arguments": arguments, "code": None}
        self._calls.append(record)
        self._call_counts[name] += 1
        if name in ASKS_FOR_HOLDERS:
            self._forget_dead_holders()
        current, prospect = calls.begin(self.state, name)
        self._replace(current)
        if prospect.wait_s:
            await asyncio.sleep(prospect.wait_s)
        current, answer = calls.finish(self.state, name, arguments, caller, prospect)
        self._replace(current)
        if prospect.hangs:
            await self._released.wait()
        record["code"] = answer.code.name
        return answer

    def _replace(self, current: NvmlState) -> None:
        if current != self.state:
            self.state = current
            write_state(self._file, current)

    def _forget_dead_holders(self) -> None:
        for client in {client for client, _ in self.state.holders}:
            if not _lives(client):
                self._replace(state.release_holder(self.state, client))

    def _admin(self, verb: str, arguments: dict[str, Any]) -> Any:
        if verb == "state":
            return state.to_json(self.state) | {"holders": sorted(self.state.holders)}
        if verb == "calls":
            return list(self._calls)
        if verb == "call_counts":
            return dict(self._call_counts)
        if verb == "release_hangs":
            return self._release_hangs()
        if verb not in ADMIN_VERBS:
            raise CallFailed(ReturnCode.FUNCTION_NOT_FOUND, verb)
        if verb in ASKS_FOR_HOLDERS:
            self._forget_dead_holders()
        result = ADMIN_VERBS[verb](self.state, **arguments)
        current, value = result if isinstance(result, tuple) else (result, None)
        self._replace(current)
        if verb == "reboot":
            self._release_hangs()
        return value

    def _release_hangs(self) -> None:
        self._released.set()
        self._released = asyncio.Event()


def _add_fault(current: NvmlState, **fields: Any) -> NvmlState:
    return state.add_fault(current, state.Fault(**fields))


def _clear_faults(current: NvmlState) -> NvmlState:
    return replace(current, faults=())


def _set_latencies(current: NvmlState, seconds: dict[str, float]) -> NvmlState:
    return replace(current, latencies=tuple(sorted(seconds.items())))


ADMIN_VERBS: dict[str, Callable[..., NvmlState | tuple[NvmlState, Any]]] = {
    "start_process": state.start_process,
    "stop_process": state.stop_process,
    "reset": state.reset,
    "reboot": state.reboot,
    "raise_xid": state.raise_xid,
    "add_fault": _add_fault,
    "clear_faults": _clear_faults,
    "set_latencies": _set_latencies,
}


@contextmanager
def serving(initial: NvmlState, folder: Path) -> Iterator[Path]:
    """Serve a state from a thread of this process; yields the socket's path, which lies in `folder`.

    A Unix socket's path must stay below 108 characters.
    """
    path, stopping, started = folder / "nvml.sock", asyncio.Event(), threading.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        await NvmlDaemon(initial, folder / "nvml.json").serve(path, stopping, started.set)

    thread = threading.Thread(target=asyncio.run, args=(serve(),), name="nvml-daemon", daemon=True)
    thread.start()
    if not started.wait(10):
        raise RuntimeError("the daemon does not listen")
    try:
        yield path
    finally:
        loops[0].call_soon_threadsafe(stopping.set)
        thread.join(10)
