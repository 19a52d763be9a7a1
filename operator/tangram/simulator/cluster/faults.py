"""Faults that a simulation injects."""

from dataclasses import dataclass

from tangram.fleet import Shape


@dataclass(frozen=True, slots=True)
class NodeFailure:
    """A node stops at an instant, with its pods; its image cache survives."""

    node: str
    at_s: float
    back_at_s: float | None = None  # None: it stays away


@dataclass(frozen=True, slots=True)
class SlowPulls:
    """Image pulls that begin in this time take `factor` times as long."""

    begin_s: float
    end_s: float
    factor: float


@dataclass(frozen=True, slots=True)
class PodQuota:
    """From `begin_s` until before `end_s` a ResourceQuota limits the pods of a namespace."""

    namespace: str
    pods: int
    begin_s: float = 0.0
    end_s: float = float("inf")


@dataclass(frozen=True, slots=True)
class CrashLoop:
    """Pods of an LLMDeployment that are created in this time never become ready, on one shape or on all."""

    owner_uid: str
    begin_s: float
    end_s: float
    shape: Shape | None = None  # None: all


@dataclass(frozen=True, slots=True)
class PrometheusOutage:
    """Prometheus neither scrapes nor answers from `begin_s` until before `end_s`."""

    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class InjectedFaults:
    """All faults of a simulation."""

    node_failures: tuple[NodeFailure, ...] = ()
    slow_pulls: tuple[SlowPulls, ...] = ()
    pod_quotas: tuple[PodQuota, ...] = ()
    crash_loops: tuple[CrashLoop, ...] = ()
    outages: tuple[PrometheusOutage, ...] = ()

    def pull_factor(self, at: float) -> float:
        """Return how much longer an image pull takes that begins at `at`."""
        factors = (slow.factor for slow in self.slow_pulls if slow.begin_s <= at < slow.end_s)
        return max(factors, default=1.0)

    def pod_quota(self, namespace: str, at: float) -> int | None:
        """Return how many pods the namespace may have at `at`; None: any number."""
        limits = (q.pods for q in self.pod_quotas if q.namespace == namespace and q.begin_s <= at < q.end_s)
        return min(limits, default=None)

    def crashes(self, owner_uid: str, shape: Shape, created_at: float) -> bool:
        """Whether a pod that is created then never becomes ready."""
        return any(
            loop.owner_uid == owner_uid
            and loop.shape in {None, shape}
            and loop.begin_s <= created_at < loop.end_s
            for loop in self.crash_loops
        )
