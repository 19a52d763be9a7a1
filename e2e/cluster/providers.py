"""Which provider to use here, and why not the others."""

from __future__ import annotations

from e2e.cluster import paths
from e2e.cluster.base import ClusterError, Progress, silent
from e2e.cluster.existing import Existing
from e2e.cluster.kind import Kind
from e2e.cluster.local import Local
from e2e.cluster.provider import Provider

AUTO = "auto"
NAMES = (AUTO, "existing", "kind", "local")


def make(name: str) -> Provider:
    """A provider by name; it may turn out to be unusable here."""
    return {"existing": Existing, "kind": Kind, "local": Local}[name]()


def ours() -> list[Provider]:
    """Every cluster that may have been started here; never one of the user's."""
    numbers = (n for n in range(paths.MOST_CLUSTERS) if paths.state_dir(n).exists())
    return [Kind(), *(Local(number) for number in numbers)]


def select(name: str = AUTO, progress: Progress = silent) -> Provider:
    """The named provider, or for ``auto`` the first of existing, kind, local that can work here."""
    if name != AUTO:
        return make(name)
    running = next((p for p in (Local(), Kind()) if p.status().up), None)
    if running and Existing().kubeconfig is None:
        return running
    refusals = []
    for candidate in (Existing(), Kind(), Local()):
        reason = candidate.unusable_because()
        if not reason:
            return candidate
        refusals.append(f"{candidate.name}: {reason}")
        progress(f"not {candidate.name}: {reason}")
    raise ClusterError("no cluster can be had here:\n  " + "\n  ".join(refusals), "make one of these true")
