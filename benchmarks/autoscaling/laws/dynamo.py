"""NVIDIA Dynamo's planner. Source: ai-dynamo/dynamo, components/planner and its documents.

Throughput mode, every 180 s, from the means of the interval: replicas for prefill are the prompt tokens per
second, times min(1, measured over expected TTFT), over what one replica prefills per second; replicas for
decode are the tokens per second over what one replica decodes at the highest concurrency whose expected
time per token is within the objective, divided by measured over expected time per token. Both are rounded up,
and at least one. Requests count when they end. The profile goes as far as a full KV cache: no concurrency,
neither the highest nor the measured one (requests per replica, times their duration, over the interval), is
above the tokens of the cache over those of a request.

Load mode, every 5 s: each engine's latency is estimated by a regression of its time per token on the KV
tokens in use (64 readings in 16 buckets); a replica is added if all engines exceed the objectives, and
removed if all are below 80 % of them; never while one starts.

Simplified: the next interval is predicted by the last one (one of the planner's predictors). A replica both
prefills and decodes, so the replicas of both are added. Load mode has no metrics of single steps: time per
token comes from scrapes. Missing metrics change nothing, in either mode.
"""

import math

from benchmarks.autoscaling.laws.capacity_profile import CapacityFacts
from benchmarks.autoscaling.laws.fitted_models.step_regression import StepRegression
from benchmarks.autoscaling.laws.signals import increase, mean
from tangram.scaling.queries import ITL, KV_USAGE, TTFT, WAITING
from tangram.simulator.controllers import ControllerView
from tangram.simulator.metrics import PrometheusDown
from tangram.simulator.metrics.page_layout import ANSWER_LENGTH, E2E, PROMPT_LENGTH, SUCCESS

_ITL_WINDOW_S = 30.0
_DOWN_SHARE = 0.8


class DynamoThroughput:
    """The planner's throughput mode."""

    interval_s = 180.0

    def __init__(self, facts: CapacityFacts, knob: float = 1.0) -> None:
        """`knob` is the share of the objectives that the planner aims at."""
        self.knob = knob
        self._facts = facts

    def decide(self, view: ControllerView) -> int:
        """Return the desired replicas."""
        names = (E2E, TTFT, ITL, PROMPT_LENGTH, ANSWER_LENGTH)
        try:
            requests = increase(view.metrics, SUCCESS, self.interval_s)
            means = [mean(view.metrics, name, self.interval_s) for name in names]
        except PrometheusDown:
            return view.replicas
        known = [value for value in means if value is not None]
        if not requests or len(known) < len(names):
            return view.replicas
        duration, ttft, itl, inputs, outputs = known
        rate = requests / self.interval_s
        context = inputs + outputs / 2
        prefill_s = self._facts.step_s(0, 0, inputs)
        prefill = rate * prefill_s * min(1.0, ttft / prefill_s)
        concurrency = min(max(1.0, rate * duration / max(1, view.ready)), self._most_running(context))
        correction = itl / self._facts.step_s(concurrency, context, 0)
        decode = rate * outputs / self._tokens_per_second(context, correction)
        return max(1, math.ceil(prefill)) + max(1, math.ceil(decode))

    def _most_running(self, context: float) -> int:
        """Return the requests of that context that the profile has: all slots, or a full KV cache."""
        return max(1, min(self._facts.max_running, int(self._facts.kv_tokens / context)))

    def _tokens_per_second(self, context: float, correction: float) -> float:
        """Return the most tokens per second of a replica whose time per token meets the objective."""
        objective = self._facts.objectives.tpot
        limit_s = math.inf if objective is None else self.knob * objective.seconds / correction
        low, high = 1, self._most_running(context)
        while low < high:  # the time of a step grows with the batch
            middle = (low + high + 1) // 2
            is_met = self._facts.step_s(middle, context, 0) <= limit_s
            low, high = (middle, high) if is_met else (low, middle - 1)
        return low / self._facts.step_s(low, context, 0)


class DynamoLoad:
    """The planner's load mode."""

    interval_s = 5.0

    def __init__(self, facts: CapacityFacts, knob: float = 1.0) -> None:
        """`knob` is the share of the objectives above which an engine is overloaded."""
        self.knob = knob
        self._facts = facts
        self._regression = StepRegression(facts.kv_tokens)
        self._scraped_at = -math.inf

    def decide(self, view: ControllerView) -> int:
        """Return the desired replicas."""
        try:
            usage, queues = view.metrics.instant(KV_USAGE), view.metrics.instant(WAITING)
            self._learn(view, usage)
        except PrometheusDown:
            return view.replicas
        if not usage or view.starting:
            return view.replicas
        loads = [self._load(usage[pod], queues.get(pod, 0.0)) for pod in usage]
        if any(load is None for load in loads):
            return view.replicas
        shares = [load for load in loads if load is not None]
        if min(shares) > self.knob:
            return view.replicas + 1
        if max(shares) < _DOWN_SHARE * self.knob:
            return max(1, view.replicas - 1)
        return view.replicas

    def _learn(self, view: ControllerView, usage: dict[str, float]) -> None:
        scraped_at = max(view.metrics.timestamp(KV_USAGE).values(), default=self._scraped_at)
        if scraped_at <= self._scraped_at:
            return
        self._scraped_at = scraped_at
        window = view.metrics.over(_ITL_WINDOW_S)
        counts, amounts = window.increase(f"{ITL}_count"), window.increase(f"{ITL}_sum")
        for pod, count in counts.items():
            if count > 0 and pod in usage:
                self._regression.add(usage[pod] * self._facts.kv_tokens, amounts[pod] / count)

    def _load(self, usage: float, waiting: float) -> float | None:
        """Return the larger of estimated TTFT and time per token of an engine, over the objectives."""
        token_s = self._regression.estimate(usage * self._facts.kv_tokens)
        if token_s is None:
            return None
        prompt_s = self._facts.step_s(0, 0, self._facts.input_tokens)
        objectives = self._facts.objectives
        shares = [0.0]
        if objectives.ttft:
            shares.append(((waiting + 1) * prompt_s + token_s) / objectives.ttft.seconds)
        if objectives.tpot:
            shares.append(token_s / objectives.tpot.seconds)
        return max(shares)
