"""Operators as forks of one process that has their modules loaded: four processor seconds less for each.

A fork is a process of its own, with its own files, signals and random numbers. It shares the seed of hashes
with other forks of its process, so an order of iteration that should not matter does not differ between two
of them. An operator that is started again is a fork of a second such process, which has another seed.
`python operator_forks.py` is that process: it reads {"arguments", "folder", "log"} from each line of its
input, and writes {"pid"} where a fork began, {"pid", "status"} where one ended.

The worker processes of an operator, which it spawns, are forks of another such process, the fork server of
multiprocessing. What a worker prints appears in the output of pytest, not in the operator's log.
"""

import atexit
import functools
import json
import multiprocessing
import multiprocessing.forkserver
import os
import runpy
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

WORKER_MODULES = [
    *("tangram.shell.decide.plan_worker", "tangram.shell.decide.recommendation_worker"),
    *("tangram.shell.decide.placement_worker", "tangram.admission"),
    *("tangram.plan", "tangram.packing.solve", "tangram.plan.recommend"),
]


class OperatorForks:
    """The forks of one server process, which ends with this one."""

    def __init__(self) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-P", __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._begun: list[int] = []
        self._ended: dict[int, int] = {}
        self._changed = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def start(self, arguments: list[str], folder: Path, log: Path) -> "OperatorFork":
        """Start `tangram` with these arguments in this folder; its output is appended to the log."""
        line = json.dumps({"arguments": arguments, "folder": str(folder), "log": str(log)})
        with self._changed:
            assert self._server.stdin is not None
            self._server.stdin.write(line.encode() + b"\n")
            self._server.stdin.flush()
            assert self._changed.wait_for(lambda: self._begun, 180), "the server of forks does not answer"
            return OperatorFork(self, self._begun.pop())

    def status(self, pid: int, timeout_s: float = 0.0) -> int | None:
        """Return how it ended, as `subprocess.Popen.returncode`; None: it runs."""
        with self._changed:
            self._changed.wait_for(lambda: pid in self._ended, timeout_s)
            return self._ended.get(pid)

    def close(self) -> None:
        """End the server; forks that run go on."""
        assert self._server.stdin is not None
        self._server.stdin.close()
        self._server.wait(10)

    def _read(self) -> None:
        assert self._server.stdout is not None
        with self._server.stdout as lines:
            for line in lines:
                event = json.loads(line)
                with self._changed:
                    if "status" in event:
                        self._ended[event["pid"]] = event["status"]
                    else:
                        self._begun.append(event["pid"])
                    self._changed.notify_all()


class OperatorFork:
    """One of them, with what tests use of `subprocess.Popen`."""

    def __init__(self, forks: OperatorForks, pid: int) -> None:
        self._forks, self.pid = forks, pid

    def poll(self) -> int | None:
        """Return the exit code, None while it runs."""
        return self._forks.status(self.pid)

    def wait(self, timeout: float) -> int:
        """Wait for the end.

        Raises:
            subprocess.TimeoutExpired: it runs still.
        """
        status = self._forks.status(self.pid, timeout)
        if status is None:
            raise subprocess.TimeoutExpired("tangram", timeout)
        return status

    def kill(self) -> None:
        """Send SIGKILL."""
        self._send(signal.SIGKILL)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._send(signal.SIGTERM)

    def _send(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


@functools.cache
def operator_forks(server: int) -> OperatorForks:
    """Start this server at the first call. Each has a random seed of hashes of its own."""
    forks = OperatorForks()
    atexit.register(forks.close)
    return forks


def _serve() -> None:
    import tangram.shell.admission.handlers
    import tangram.shell.intake.handlers
    import tangram.shell.process.command  # noqa: F401

    multiprocessing.forkserver.ensure_running()
    signal.signal(signal.SIGCHLD, lambda *_: _reap())
    for line in sys.stdin.buffer:
        order = json.loads(line)
        # Its end is written after its begin.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
        pid = os.fork()
        if pid == 0:
            _run(order)
        _write(pid=pid)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])


def _run(order: dict[str, Any]) -> None:
    """Become `python -P -m tangram`."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
    os.close(_EVENTS)
    os.chdir(order["folder"])
    log, nothing = (
        os.open(order["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT),
        os.open(os.devnull, os.O_RDONLY),
    )
    for new, old in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(new, old)
    _fork_workers()
    sys.argv = ["tangram", *order["arguments"]]
    runpy.run_module("tangram", run_name="__main__", alter_sys=True)


def _fork_workers() -> None:
    """Let this operator start its workers by the fork server, which is its sibling."""
    server = multiprocessing.forkserver._forkserver  # type: ignore[attr-defined]
    server.ensure_running = lambda: None  # it asks after a child, and ends with its last client
    context = multiprocessing.get_context("forkserver")
    multiprocessing.get_context = lambda _method=None: context  # type: ignore[assignment]


def _reap() -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        _write(pid=pid, status=os.waitstatus_to_exitcode(status))


def _write(**event: int) -> None:
    os.write(_EVENTS, json.dumps(event).encode() + b"\n")


if __name__ == "__main__":
    _EVENTS = os.dup(1)  # not inherited by programs
    os.dup2(2, 1)
    multiprocessing.set_forkserver_preload(WORKER_MODULES)
    _serve()
