"""What a scaling law may know before a run, and the signature of the functions that build one.

The capacity of a replica comes from the capacity model, as if it had been measured.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property

from tangram.capacity.load.latency import ReplicaUnderLoad
from tangram.catalog import InputError
from tangram.fleet import Intent, Lengths, Shape, replicas_for
from tangram.scaling.outlook.mixture_capacity import MixtureCapacity
from tangram.simulator.cluster.engine_setups import EngineSetup, EngineSetups
from tangram.simulator.controllers.controller import Controller


@dataclass(frozen=True)
class LawKnowledge:
    """What scaling laws may know about an LLMDeployment before a run."""

    intent: Intent
    engine: EngineSetup  # on the shape of its first replicas
    prompts: Lengths
    answers: Lengths
    start_s: float  # mean, from an order to a ready replica
    engines: EngineSetups | None = None  # of other shapes; None: it runs on one

    @cached_property
    def capacity(self) -> MixtureCapacity:
        """The capacity of a replica by the mixture of its requests."""
        return self._capacity(self.engine)

    @cached_property
    def capacity_on(self) -> Callable[[Shape], MixtureCapacity | None]:
        """The same on any shape, computed once for each; None: it does not fit."""
        return cache(self._capacity_on)

    @cached_property
    def replica(self) -> ReplicaUnderLoad:
        """A replica on the shape of the first ones, under requests of the usual lengths."""
        return ReplicaUnderLoad(self.engine.steps, self.engine.limits, self.prompts, self.answers)

    @cached_property
    def requests_per_second(self) -> float:
        """The most that a replica carries within the objectives. Raises `InputError` where no rate meets
        them.
        """
        objectives = self.intent.objectives
        rate = self.replica.max_rate(objectives.ttft, objectives.tpot)
        if rate <= 0:
            problem = f"a replica meets the objectives at no rate on {self.engine.shape}"
            raise InputError(f"LLMDeployment {self.intent.name}", problem)
        return rate

    def replicas_for(self, requests_per_second: float) -> int:
        """Return the fewest replicas that carry a rate within the objectives, at least one."""
        return max(1, replicas_for(requests_per_second, self.requests_per_second))

    def _capacity_on(self, shape: Shape) -> MixtureCapacity | None:
        if shape == self.engine.shape:
            return self.capacity
        if self.engines is None:
            return None
        try:
            return self._capacity(self.engines.setup(self.intent.uid, shape))
        except InputError:
            return None

    def _capacity(self, engine: EngineSetup) -> MixtureCapacity:
        return MixtureCapacity(
            engine.steps, engine.limits, self.prompts, self.answers, self.intent.objectives
        )


LawFactory = Callable[[LawKnowledge, float | None], Controller]
"""Builds a scaling law for one run of one LLMDeployment.

Its arguments are what the law may know, and the value of its knob; None: the default of the law. It raises
`InputError` where it cannot scale this LLMDeployment.
"""
