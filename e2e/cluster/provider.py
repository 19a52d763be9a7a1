"""The one interface of the three providers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from e2e.cluster.base import Progress


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster that answers. ``description``: what it is made of and where it lies, for people."""

    provider: str
    kubeconfig: Path
    nodes: tuple[str, ...]
    description: str


@dataclass(frozen=True, slots=True)
class Status:
    """``parts``: what is healthy and what is not, by name, for people."""

    up: bool
    parts: dict[str, str]


class Provider(Protocol):
    """``up`` and ``down`` are idempotent, bounded in time and may be run after an interrupted run."""

    name: str

    def unusable_because(self) -> str:
        """Why this provider cannot work here; empty when it can."""
        ...

    def prepare(self, progress: Progress) -> None:
        """Get the programs that ``up`` needs (may take minutes the first time)."""
        ...

    def up(self, progress: Progress) -> Cluster:
        """Start the cluster, or check the one that runs, and wait until its nodes are Ready."""
        ...

    def down(self, progress: Progress) -> None:
        """Take away what ``up`` made, and nothing else."""
        ...

    def load_image(self, reference: str, progress: Progress) -> None:
        """Bring an image that ``images.build`` made to where the nodes find it."""
        ...

    def status(self) -> Status:
        """What runs now; changes nothing."""
        ...
