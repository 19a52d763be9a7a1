"""Where things lie. The only module here that reads the environment for folders."""

from __future__ import annotations

import os
from pathlib import Path


def cache() -> Path:
    """``$TANGRAM_CACHE``, else ``$XDG_CACHE_HOME/tangram``, else ``~/.cache/tangram``."""
    named = os.environ.get("TANGRAM_CACHE")
    if named:
        return Path(named).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "tangram"


def bin_dir() -> Path:
    """Programs that were built here: ``<name>-<version>/<program>``."""
    return cache() / "bin"


def state_dir() -> Path:
    """The running cluster: certificates, logs, pid files, etcd and containerd data. ``down`` removes it."""
    return cache() / "state"


def images_dir() -> Path:
    """Base images and image layouts that outlive a cluster."""
    return cache() / "images"
