"""The capacity of a replica by the mixture of its requests: rates by percentile from the capacity model."""

import math
from functools import lru_cache

from tangram.capacity.load.engine_limits import EngineLimits
from tangram.capacity.load.latency import ReplicaUnderLoad
from tangram.capacity.load.traffic import Tokens, lengths_of
from tangram.capacity.steps.decode_runs import Steps
from tangram.fleet import PERCENTILES, Objective, Objectives
from tangram.fleet.lengths import with_mean
from tangram.scaling.outlook.replica_capacity import ReplicaCapacity

_STRICTEST_FIRST = tuple(sorted(PERCENTILES, reverse=True))
_MOST_KEPT = 1024  # mixtures; means come rounded to a tenth, so a service has some tens


class MixtureCapacity:
    """What one replica carries, by the mean tokens of prompts and of answers; each mixture is computed once.

    Lengths of another mean have the P90 of the usual ones in proportion, at most twice the mean. Without
    objectives nothing is missed, and every call returns None.
    """

    def __init__(
        self, steps: Steps, limits: EngineLimits, prompts: Tokens, answers: Tokens, objectives: Objectives
    ) -> None:
        """`prompts` and `answers` are the usual lengths."""
        self.steps, self.limits, self.objectives = steps, limits, objectives
        self._usual = lengths_of(prompts), lengths_of(answers)
        self._computed = lru_cache(maxsize=_MOST_KEPT)(self._capacity)

    def __call__(self, prompt_tokens: float, answer_tokens: float) -> ReplicaCapacity | None:
        """Return the capacity for requests of these means."""
        if self.objectives.ttft is None and self.objectives.tpot is None:
            return None
        return self._computed(prompt_tokens, answer_tokens)

    def _capacity(self, prompt_tokens: float, answer_tokens: float) -> ReplicaCapacity:
        prompts, answers = map(with_mean, self._usual, (prompt_tokens, answer_tokens))
        replica = ReplicaUnderLoad(self.steps, self.limits, prompts, answers)
        ttft, tpot = self.objectives.ttft, self.objectives.tpot
        if ttft is None:
            return ReplicaCapacity(_rates(replica, None, tpot))
        idle = replica.under(0.0).ttft_s
        return ReplicaCapacity(
            _rates(replica, ttft, tpot),
            idle_ttft=tuple((p, 1000 * idle.at(p)) for p in _STRICTEST_FIRST if math.isfinite(idle.at(p))),
            without_ttft=None if tpot is None else ReplicaCapacity(_rates(replica, None, tpot)),
        )


def _rates(
    replica: ReplicaUnderLoad, ttft: Objective | None, tpot: Objective | None
) -> tuple[tuple[int, float], ...]:
    """Return the highest rate at which so many per cent of the requests meet both, by percentile."""
    return tuple(
        (
            percentile,
            replica.max_rate(
                ttft and Objective(percentile, ttft.milliseconds),
                tpot and Objective(percentile, tpot.milliseconds),
            ),
        )
        for percentile in _STRICTEST_FIRST
    )
