"""Processes of our own: started in their own session, remembered by pid *and* start time, ended by both.

A pid alone may have been given to a stranger since; the pair (start time, boot) names one process for ever.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from e2e.cluster.base import ClusterError, tail, write_atomically

MARK = "TANGRAM_STATE"

# By pid. Children outlive the object that started them, and may be ended through a pid file.
_children: dict[int, subprocess.Popen[bytes]] = {}


@dataclass(frozen=True, slots=True)
class Identity:
    """One process, unmistakably. ``start_ticks``: clock ticks after boot, field 22 of /proc/PID/stat."""

    pid: int
    start_ticks: int
    boot: str


def parse_stat(stat: str) -> tuple[str, int]:
    """State letter and start time out of /proc/PID/stat; the program's name may hold spaces and brackets."""
    fields = stat.rpartition(")")[2].split()
    return fields[0], int(fields[19])


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def identify(pid: int) -> Identity | None:
    """Who has this pid now; None when nobody does, or only a zombie."""
    try:
        state, start_ticks = parse_stat(Path(f"/proc/{pid}/stat").read_text())
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if state in "ZX" else Identity(pid, start_ticks, boot_id())


def alive(who: Identity) -> bool:
    return identify(who.pid) == who


def remember(path: Path, who: Identity) -> None:
    write_atomically(path, json.dumps(asdict(who)))


def recall(path: Path) -> Identity | None:
    """The process that a pid file names, if it still runs."""
    try:
        who = Identity(**json.loads(path.read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        return None
    return who if alive(who) else None


def spawn(
    command: Sequence[str | Path],
    *,
    log: Path,
    pid_file: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a process in its own session, its output appended to ``log``."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd="/",
            env=None if env is None else {**os.environ, **env},
        )
    wait_for_ended_children()
    _children[process.pid] = process
    if pid_file is not None:
        who = identify(process.pid)
        if who is None:
            raise ClusterError(f"{command[0]} ended at once:\n{log_tail(log)}")
        remember(pid_file, who)
    return process


def wait_for_ended_children() -> list[int]:
    """Take the exit status of each child that has ended, so that none stays a zombie.

    Returns the pids of the children that run.
    """
    for pid, child in list(_children.items()):
        if child.poll() is not None:
            _children.pop(pid, None)
    return list(_children)


def marked(state: Path) -> dict[str, str]:
    """The environment by which ``sweep`` knows the processes of the cluster in ``state``."""
    return {MARK: str(state)}


def sweep(state: Path) -> None:
    """End what carries our mark but has no pid file: started in the instant before we were killed."""
    wanted = f"{MARK}={state}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            ours = wanted in (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if ours and int(folder.name) != os.getpid():
            end(identify(int(folder.name)), grace_s=0.5)


def log_tail(log: Path) -> str:
    return tail(log.read_text(errors="replace")) if log.exists() else "(no log)"


def send(who: Identity, number: signal.Signals) -> None:
    """Signal this very process: the pidfd keeps the pid from being reused between check and signal."""
    try:
        handle = os.pidfd_open(who.pid)
    except ProcessLookupError:
        return
    try:
        if alive(who):
            signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return
    finally:
        os.close(handle)


def end(who: Identity | None, *, grace_s: float = 5.0) -> None:
    """SIGTERM, then SIGKILL after the grace; returns when the process is gone and, if ours, waited for."""
    if who is not None:
        _end(who, grace_s)
    wait_for_ended_children()


def _end(who: Identity, grace_s: float) -> None:
    send(who, signal.SIGTERM)
    if _gone_within(who, grace_s):
        return
    send(who, signal.SIGCONT)
    send(who, signal.SIGKILL)
    if not _gone_within(who, 10.0):
        raise ClusterError(
            f"process {who.pid} survives SIGKILL (stuck in the kernel)", f"cat /proc/{who.pid}/stack"
        )


def _gone_within(who: Identity, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while alive(who):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


_GUARD = """
import os, signal, sys
seen = {}
for line in sys.stdin:
    pid, start = line.split()
    seen[int(pid)] = start
for pid, start in seen.items():
    try:
        if open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[19] == start:
            os.kill(pid, signal.SIGKILL)
    except OSError:
        pass
"""


class Guard:
    """Kills its wards when our process dies, however it dies: a killed test run leaves nothing behind."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _GUARD],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
        )

    def watch(self, who: Identity) -> None:
        assert self._process.stdin is not None
        print(who.pid, who.start_ticks, file=self._process.stdin, flush=True)

    def close(self) -> None:
        """End the guard and, with it, every ward that still runs."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=10)
