"""Processor seconds of this process and of all its descendants, those that run and those that have ended."""

import os
import time
from collections import defaultdict
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# Fields of /proc/PID/stat, counted from the state of the process: see proc_pid_stat(5).
PARENT, TIMES = 1, slice(11, 15)  # user, system, and both of the children that it has waited for
FRESH_S = 0.1  # a look at all processes takes some milliseconds, and many tests take less
_looked_at, _running_s = 0.0, 0.0


def processor_seconds() -> float:
    """Return the sum over the tree; that of processes which run is up to `FRESH_S` old.

    The seconds of a process that has ended are its parent's once that one has waited for it.
    """
    global _looked_at, _running_s  # noqa: PLW0603 - a cache
    if time.monotonic() - _looked_at > FRESH_S:
        _running_s = _seconds_of_descendants() if _has_children() else 0.0
        _looked_at = time.monotonic()
    return sum(os.times()[:4]) + _running_s


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _seconds_of_descendants() -> float:
    ticks: dict[int, int] = {}
    children: defaultdict[int, list[int]] = defaultdict(list)
    for entry in os.listdir("/proc"):  # noqa: PTH208 - names, not paths
        if entry.isdigit() and (fields := _stat(entry)):
            ticks[int(entry)] = sum(map(int, fields[TIMES]))
            children[int(fields[PARENT])].append(int(entry))
    total, pending = 0, list(children[os.getpid()])
    while pending:
        pid = pending.pop()
        total += ticks[pid]
        pending += children[pid]
    return total / TICKS_PER_S


def _stat(pid: str) -> list[str]:
    """Return the fields from the state on, none of a process that has ended meanwhile."""
    try:
        text = Path("/proc", pid, "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return text.rpartition(")")[2].split()
