"""Where things lie. The only module here that reads the environment for folders."""

from __future__ import annotations

import os
from pathlib import Path

from e2e.cluster.base import ClusterError

MOST_CLUSTERS = 4


def cache() -> Path:
    """``$TANGRAM_CACHE``, else ``$XDG_CACHE_HOME/tangram``, else ``~/.cache/tangram``."""
    named = os.environ.get("TANGRAM_CACHE")
    if named:
        return Path(named).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "tangram"


def bin_dir() -> Path:
    """Programs that were built here: ``<name>-<version>/<program>``."""
    return cache() / "bin"


def cluster_number() -> int:
    """Which local cluster of this machine is meant: ``$TANGRAM_CLUSTER``, else 0.

    Raises:
        ClusterError: it is not a number from 0 to ``MOST_CLUSTERS`` - 1.
    """
    named = os.environ.get("TANGRAM_CLUSTER") or "0"
    numbers = {str(number): number for number in range(MOST_CLUSTERS)}
    if named not in numbers:
        raise ClusterError(f"TANGRAM_CLUSTER is {named!r}", f"a number from 0 to {MOST_CLUSTERS - 1}")
    return numbers[named]


def cluster_dir(number: int) -> Path:
    """The folder of one local cluster: its state, and the images of its nodes."""
    return cache() / f"cluster-{number}" if number else cache()


def state_dir(number: int = 0) -> Path:
    """The running cluster: certificates, logs, pid files, etcd and containerd data. ``down`` removes it."""
    return cluster_dir(number) / "state"


def host_lock() -> Path:
    """Held by a local cluster while it changes what all clusters of this machine share."""
    return cache() / "host.lock"


def host_network() -> Path:
    """Forwarding and firewall tables before the first local cluster; the last one to end restores them."""
    return cache() / "host-network.json"


def host_folders() -> Path:
    """The mount points that the local clusters made on this machine; the last one to end removes them."""
    return cache() / "host-folders.json"


def images_dir() -> Path:
    """Base images and image layouts that outlive a cluster."""
    return cache() / "images"
