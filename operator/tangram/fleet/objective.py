"""Latency objectives, and the percentiles of requests that they may be about."""

from dataclasses import dataclass
from typing import Literal, get_args

Percentile = Literal[50, 90, 95, 99]
PERCENTILES: tuple[int, ...] = get_args(Percentile)
DEFAULT_PERCENTILE: Percentile = 90


@dataclass(frozen=True, slots=True)
class Objective:
    """A latency objective: this percentile of requests takes at most this long."""

    percentile: int
    milliseconds: float

    @property
    def seconds(self) -> float:
        """The limit in seconds."""
        return self.milliseconds / 1e3


@dataclass(frozen=True, slots=True)
class Objectives:
    """The latency objectives of one LLMDeployment."""

    ttft: Objective | None = None
    tpot: Objective | None = None

    @property
    def strictest_percentile(self) -> int:
        """The higher percentile; the default one without an objective."""
        percentiles = (objective.percentile for objective in (self.ttft, self.tpot) if objective is not None)
        return max(percentiles, default=DEFAULT_PERCENTILE)
