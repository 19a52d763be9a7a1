"""The client's side of the daemon's socket: one JSON object a line, one answer for each, in order.

Needs nothing but the standard library: it is loaded into processes that know nothing of this package.
"""

from __future__ import annotations

import json
import socket
import time
from dataclasses import asdict, is_dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from e2e.silicon.nvml.codes import CallFailed, ReturnCode

MOST_BYTES = 1 << 20  # of one line


class NotAnswered(Exception):
    """The daemon ended before it answered: whether the call took effect is unknown."""


class Connection:
    """One connection, made when it is first needed and again after the daemon was restarted.

    A request that may have reached a daemon is never sent twice.
    """

    def __init__(self, path: Path | str, wait_s: float = 10.0) -> None:
        self._path, self._wait_s = str(path), wait_s
        self._socket: socket.socket | None = None
        self._unread = b""

    def __del__(self) -> None:
        self.close()

    def request(self, **message: Any) -> tuple[ReturnCode, Any]:
        """Send one request and return the code and value of the answer.

        Raises:
            NotAnswered: the daemon ended meanwhile.
            OSError: no daemon listens, for `wait_s` seconds.
        """
        line = json.dumps(message).encode() + b"\n"
        if len(line) > MOST_BYTES:
            raise ValueError(f"a request of {len(line)} bytes; at most {MOST_BYTES}")
        try:
            self._connected().sendall(line)
            answer = json.loads(self._read_line())
        except (BrokenPipeError, ConnectionResetError, EOFError) as ended:
            self.close()
            raise NotAnswered(self._path) from ended
        return ReturnCode[answer["code"]], answer.get("value")

    def close(self) -> None:
        """End the connection; the next request makes another."""
        if self._socket is not None:
            self._socket.close()
        self._socket, self._unread = None, b""

    def _connected(self) -> socket.socket:
        if self._socket is not None and self._has_ended(self._socket):
            self.close()
        deadline = time.monotonic() + self._wait_s
        while self._socket is None:
            fresh = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                fresh.connect(self._path)
            except (FileNotFoundError, ConnectionRefusedError):
                fresh.close()
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
            else:
                self._socket = fresh
        return self._socket

    @staticmethod
    def _has_ended(connection: socket.socket) -> bool:
        try:
            return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False
        except ConnectionResetError:
            return True

    def _read_line(self) -> bytes:
        while b"\n" not in self._unread:
            part = self._socket.recv(1 << 16) if self._socket else b""
            if not part:
                raise EOFError
            self._unread += part
        line, _, self._unread = self._unread.partition(b"\n")
        return line


class Admin:
    """What happens to a node from outside of NVML: what a pod, a person with `nvidia-smi`, or fate does."""

    def __init__(self, path: Path | str, wait_s: float = 10.0) -> None:
        self._connection = Connection(path, wait_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the connection."""
        self._connection.close()

    def _do(self, verb: str, **arguments: Any) -> Any:
        code, value = self._connection.request(verb=verb, arguments=arguments)
        if code is not ReturnCode.SUCCESS:
            raise CallFailed(code, str(value or verb))
        return value

    def state(self) -> dict[str, Any]:
        """Return the state as `state.to_json` writes it."""
        return dict(self._do("state"))

    def calls(self) -> list[dict[str, Any]]:
        """Return the last calls of all clients: client, name, arguments, code; a call that hangs has None."""
        return list(self._do("calls"))

    def call_counts(self) -> dict[str, int]:
        """Return how often each function was called since the daemon started, by all clients, by its name."""
        return dict(self._do("call_counts"))

    def start_process(self, device: str, memory_mib: int = 0, pid: int | None = None) -> int:
        """Start a CUDA process on the GPU or MIG device of a UUID; returns its pid."""
        return int(self._do("start_process", device=device, memory_mib=memory_mib, pid=pid))

    def stop_process(self, pid: int) -> None:
        """End a CUDA process."""
        self._do("stop_process", pid=pid)

    def reset(self, uuid: str) -> None:
        """Reset a GPU, as `nvidia-smi --gpu-reset` does."""
        self._do("reset", uuid=uuid)

    def reboot(self, order: list[int] | None = None) -> None:
        """Start the node again; `order`: minor numbers in the order of the new indexes."""
        self._do("reboot", order=order)

    def raise_xid(self, uuid: str, xid: int = 79) -> None:
        """Report an XID; with 79 the GPU is lost."""
        self._do("raise_xid", uuid=uuid, xid=xid)

    def add_fault(self, fault: Any) -> None:
        """Let something go wrong at a later call: a `state.Fault`, or a mapping of its fields."""
        self._do("add_fault", **(asdict(fault) if is_dataclass(fault) else fault))  # type: ignore[arg-type]

    def clear_faults(self) -> None:
        """Let nothing go wrong any more; calls that hang go on hanging."""
        self._do("clear_faults")

    def release_hangs(self) -> None:
        """Let calls that hang return."""
        self._do("release_hangs")

    def set_latencies(self, seconds: dict[str, float]) -> None:
        """Say how long calls take, by name; those without a name take no time."""
        self._do("set_latencies", seconds=seconds)
