"""One process at a time: two test runs do not build the same program or start the same cluster twice."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.cluster.base import ClusterError, Progress, silent


@contextmanager
def locked(path: Path, *, timeout_s: float, progress: Progress = silent) -> Iterator[None]:
    """Hold an exclusive lock on ``path``; the kernel frees it when we die, so it is never stale."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _acquire(handle, path, time.monotonic() + timeout_s, progress)
        yield
    finally:
        os.close(handle)


def _acquire(handle: int, path: Path, deadline: float, progress: Progress) -> None:
    told = False
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise ClusterError(f"another process holds {path} for too long", f"fuser {path}") from None
        else:
            return
        if not told:
            progress(f"waiting for another process that works on {path.stem}")
            told = True
        time.sleep(0.1)
