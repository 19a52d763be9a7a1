"""What the HorizontalPodAutoscaler does between a recommendation and spec.replicas.

Source: pkg/controller/podautoscaler/horizontal.go of Kubernetes, with the defaults of autoscaling/v2.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tangram.simulator.controllers.controller import ControllerView

_TOLERANCE = 0.1  # ratios of metric and target this close to 1 change nothing
SYNC_S = 15.0


@dataclass(frozen=True, slots=True)
class HPABehavior:
    """The field `behavior` of a HorizontalPodAutoscaler. The larger of two policies counts."""

    up_window_s: float = 0.0  # the lowest recommendation of this time limits steps up
    up_share: float = 1.0  # of the replicas, that may be added per period
    up_pods: int = 4  # that may be added per period
    up_period_s: float = 15.0
    down_window_s: float = 300.0  # the highest recommendation of this time limits steps down
    down_pods: int | None = None  # that may be removed per period; None: all
    down_period_s: float = 15.0


class HPAStabilizer:
    """Stabilises and limits recommendations. It remembers them, and the changes that it made."""

    def __init__(self, behavior: HPABehavior | None = None) -> None:
        self.behavior = behavior or HPABehavior()
        self._recommended: list[tuple[float, int]] = []
        self._changes: list[tuple[float, int]] = []

    def replicas(self, view: ControllerView, desired: int) -> int:
        """Return spec.replicas after a recommendation of `desired`."""
        now, current = view.now, view.replicas
        if not self._recommended:
            self._recommended.append((now, current))
        replicas = self._limited(now, current, self._stabilised(now, current, desired))
        replicas = min(max(replicas, view.min_replicas), view.max_replicas)
        if replicas != current:
            longest = max(self.behavior.up_period_s, self.behavior.down_period_s)
            self._changes = [*_since(self._changes, now - longest), (now, replicas - current)]
        return replicas

    def _stabilised(self, now: float, current: int, desired: int) -> int:
        behavior = self.behavior
        upward = min([desired, *(n for _, n in _since(self._recommended, now - behavior.up_window_s))])
        downward = max([desired, *(n for _, n in _since(self._recommended, now - behavior.down_window_s))])
        longest = max(behavior.up_window_s, behavior.down_window_s)
        self._recommended = [*_since(self._recommended, now - longest), (now, desired)]
        return min(max(current, upward), downward)

    def _limited(self, now: float, current: int, desired: int) -> int:
        behavior = self.behavior
        if desired > current:
            begin = current - sum(n for _, n in _since(self._changes, now - behavior.up_period_s))
            most = max(begin + behavior.up_pods, math.ceil(begin * (1 + behavior.up_share)))
            return min(desired, max(most, current))
        if desired < current and behavior.down_pods is not None:
            begin = current - sum(n for _, n in _since(self._changes, now - behavior.down_period_s))
            return max(desired, min(begin - behavior.down_pods, current))
        return desired


def utilisation(
    values: Sequence[float], target: float, *, replicas: int, ready: int, starting: int
) -> int | None:
    """Return the recommendation for a metric of pods, by the `values` of those that report it; None: no
    value.

    Pods that do not report count as at the target when replicas may be removed and as idle when some may be
    added; so do pods that start, then.
    """
    if not values:
        return None
    ratio = sum(values) / len(values) / target
    missing = max(0, ready - len(values))
    unready = starting if ratio > 1 else 0
    if not missing and not unready:
        return replicas if is_tolerated(ratio) else math.ceil(ratio * len(values))
    assumed = missing * target if ratio < 1 else 0.0
    pods = len(values) + missing + unready
    corrected = (sum(values) + assumed) / pods / target
    if is_tolerated(corrected) or (ratio < 1) != (corrected < 1):
        return replicas
    desired = math.ceil(corrected * pods)
    return replicas if (corrected < 1) == (desired > replicas) else desired


def is_tolerated(ratio: float) -> bool:
    """Return whether a ratio of metric and target is so close to 1 that it changes nothing."""
    return 1 - _TOLERANCE <= ratio <= 1 + _TOLERANCE


def _since(events: Sequence[tuple[float, int]], begin: float) -> list[tuple[float, int]]:
    return [event for event in events if event[0] > begin]
