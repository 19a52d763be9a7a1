"""What the scaling law knows beside a reading: arrivals by the minute, and what a replica carries of them."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from tangram.capacity.memory.from_facts import architecture_from_facts
from tangram.capacity.sizing import Rejection
from tangram.capacity.sizing.assessment_cache import assessment_cache
from tangram.catalog import InputError
from tangram.eligibility.shapes.bundled_engine import on_bundled_engine
from tangram.eligibility.shapes.serving_requirements import UNLOADED_RPS, requirements_of
from tangram.fleet import CheckpointFacts, Intent, Shape
from tangram.scaling import Sample
from tangram.scaling.feed_forward import arrival_rate
from tangram.scaling.outlook import mixture
from tangram.scaling.outlook.load_history import MOST_BINS, LoadHistory, extended, from_samples
from tangram.scaling.outlook.load_outlook import LoadOutlook
from tangram.scaling.outlook.mixture_capacity import MixtureCapacity
from tangram.shell.snapshot.start_times import StartTimes


@dataclass(frozen=True, slots=True)
class OutlookInputs:
    """What a round has for all LLMDeployments."""

    facts: Mapping[str, CheckpointFacts] = field(default_factory=dict)  # of their checkpoints, by UID
    start_s: StartTimes = field(default_factory=dict)  # P90 by UID and shape


class LoadOutlooks:
    """The histories of all LLMDeployments by UID, and the capacity of their replicas."""

    def __init__(self, window_s: float, min_samples: int) -> None:
        self._window_s, self._min_samples = window_s, min_samples
        self._histories: dict[str, LoadHistory] = {}
        self._restored: dict[str, LoadHistory] = {}
        self._mixtures: dict[str, mixture.Mixture] = {}
        self._capacities: dict[str, tuple[object, MixtureCapacity | None]] = {}

    def restore(self, uid: str, history: LoadHistory) -> None:
        """Fill in what Prometheus holds of an LLMDeployment. A bin that was seen here stays as it is."""
        if self._restored.get(uid) is history:
            return
        self._restored[uid] = history
        present = self._histories.get(uid, LoadHistory(0.0))
        rates = _by_end(history) | _by_end(present)
        merged = from_samples(rates, max(history.end_s, present.end_s), MOST_BINS)
        self._histories[uid] = replace(merged, seasons=history.seasons)

    def observe(self, uid: str, sample: Sample) -> None:
        """Take a new reading: a bin ends with each full minute."""
        present = self._histories.get(uid) or LoadHistory(0.0)
        end_s = math.floor(sample.at / present.step_s) * present.step_s
        if end_s > present.end_s:
            if not present.rates:
                present = replace(present, end_s=end_s - present.step_s)
            self._histories[uid] = extended(present, arrival_rate(sample, self._window_s), end_s)
        measured = sample.mixture(self._window_s, self._min_samples)
        if measured is not None:
            self._mixtures[uid] = measured

    def outlook(self, intent: Intent, shape: Shape | None, inputs: OutlookInputs) -> LoadOutlook | None:
        """Return the outlook of an LLMDeployment whose replicas have this shape.

        None: without a shape, facts of the checkpoint, objectives, or traffic, nothing can be predicted.
        """
        facts, history = inputs.facts.get(intent.uid), self._histories.get(intent.uid)
        if shape is None or facts is None or history is None:
            return None
        capacity_of = self._capacity_of(intent, facts, shape)
        present = self._mixtures.get(intent.uid) or _stated(intent)
        if capacity_of is None or present is None:
            return None
        capacity = capacity_of(*present)
        if capacity is None or capacity.rates[0][1] <= 0:
            return None
        return LoadOutlook(history, capacity, inputs.start_s.get((intent.uid, shape)))

    def retain(self, uids: Iterable[str]) -> None:
        """Forget all other LLMDeployments."""
        remaining = set(uids)
        for by_uid in (self._histories, self._restored, self._mixtures, self._capacities):
            for uid in by_uid.keys() - remaining:
                by_uid.pop(uid)

    def clear(self) -> None:
        """Forget all."""
        self.retain(())

    def _capacity_of(self, intent: Intent, facts: CheckpointFacts, shape: Shape) -> MixtureCapacity | None:
        key = (intent.rendered_generation, intent.traffic, facts.digest, shape)
        computed = self._capacities.get(intent.uid)
        if computed is None or computed[0] != key:
            computed = self._capacities[intent.uid] = key, _capacity_of(intent, facts, shape)
        return computed[1]


def _capacity_of(intent: Intent, facts: CheckpointFacts, shape: Shape) -> MixtureCapacity | None:
    """Return the capacity of one replica by mixture, None where the model does not fit."""
    try:
        architecture = architecture_from_facts(facts)
        request = on_bundled_engine(requirements_of(intent, architecture)).request
        fitted = assessment_cache(architecture, replace(request, rps=UNLOADED_RPS)).fit(shape)
    except InputError:
        return None
    if isinstance(fitted, Rejection):
        return None
    return MixtureCapacity(fitted.model, fitted.limits, request.prompts, request.answers, intent.objectives)


def _by_end(history: LoadHistory) -> dict[float, float]:
    """Return the rates that are known by the end of their bin."""
    last = len(history.rates) - 1
    ends = (history.end_s - (last - place) * history.step_s for place in range(last + 1))
    return {end: rate for end, rate in zip(ends, history.rates, strict=True) if rate is not None}


def _stated(intent: Intent) -> mixture.Mixture | None:
    """Return the mixture that the spec expects, until one is measured."""
    traffic = intent.traffic
    if traffic.input_tokens is None or traffic.output_tokens is None:
        return None
    return mixture.rounded(traffic.input_tokens.mean, traffic.output_tokens.mean)
