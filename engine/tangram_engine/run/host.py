"""What the container may use: CPU and memory limits of its cgroup, version 1 or 2.

A limit may be set on any ancestor, so the smallest one on the way up counts. Inside a container with
its own cgroup namespace the way is short: the mount's root is the container.
"""

import math
import os
from collections.abc import Iterator
from pathlib import Path

_UNLIMITED = 1 << 60  # version 1 writes a number near 2^63 for "no limit"


def cpu_limit(root: Path = Path("/")) -> float:
    """CPUs this process may use: the smaller of its cgroup's quota and its affinity."""
    quotas = [quota for text in _read(root, "", "cpu.max") if (quota := _quota(*text.split()))]
    for directory in _directories(root, "cpu"):
        texts = [_text(directory / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
        if all(texts) and (quota := _quota(*texts)):
            quotas.append(quota)
    return min([float(len(os.sched_getaffinity(0))), *quotas])


def memory_limit_bytes(root: Path = Path("/")) -> int:
    """Memory this process may use: the smaller of its cgroup's limit and the machine's memory."""
    texts = [*_read(root, "", "memory.max"), *_read(root, "memory", "memory.limit_in_bytes")]
    limits = [int(text) for text in texts if text.isdigit() and int(text) < _UNLIMITED]
    return min([os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *limits])


def threads(limit: float) -> int:
    """Compute threads for a CPU limit: more than whole CPUs would be throttled in turn."""
    return max(1, math.floor(limit))


def _quota(quota: str, period: str) -> float | None:
    return int(quota) / int(period) if quota.isdigit() and int(period) > 0 else None


def _read(root: Path, controller: str, name: str) -> Iterator[str]:
    return (text for directory in _directories(root, controller) if (text := _text(directory / name)))


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""  # not every level has every file


def _directories(root: Path, controller: str) -> Iterator[Path]:
    """The process's cgroup and its ancestors; `controller` is empty for version 2."""
    mount = root / "sys/fs/cgroup" / controller
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            mounted = mount / path.lstrip("/")
            yield from (parent for parent in (mounted, *mounted.parents) if parent.is_relative_to(mount))
