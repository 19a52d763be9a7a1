"""The load that one replica carries within the objectives, and whether fewer replicas would carry the load.

The load at which objectives were missed, or at which requests queued, is learned and kept until it is
disproved: under a constant load the same number of replicas is not tried again every hour. It falls if less
load was too much, and rises only if replicas met the objectives under more.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from tangram.fleet import Intent, Objectives
from tangram.scaling import objective_evidence as evidence
from tangram.scaling import queries
from tangram.scaling.sample import Sample, Window
from tangram.scaling.state import EvidenceMemory, ScalingParams

# Smaller relative changes are ignored: what is learned is recorded in the status.
_MIN_CHANGE = 0.1
# The rate by which a replica is removed comes from a window with this many times min_samples, or the widest.
_STEADY_SAMPLES = 5
_DEVIATIONS = 3  # of a Poisson count, beyond which a load has changed
# A single request can meet an objective if it is met over so many requests that this many may miss it: a few
# good minutes must not undo what hours show.
_ALLOWED_MISSES = 5.0


def learn(
    memory: EvidenceMemory,
    params: ScalingParams,
    intent: Intent,
    *,
    sample: Sample,
    ready: int,
    queued: bool,
    stable_s: float,
) -> EvidenceMemory:
    """Return `memory` with what `sample` shows about one replica. `queued`: requests have waited for long.
    `stable_s`: seconds for which as many replicas have been ready.
    """
    if ready != memory.episode_ready:
        memory = _ended(memory)
    if ready < 1 or stable_s < params.window_s:
        return memory  # the window covers another number of replicas
    windows = evidence.usable(sample, params.window_s, stable_s)
    window = evidence.narrowest(windows, params.min_samples)
    if window is None:
        return memory
    memory = _learn_ttft(memory, params, intent, windows, ready)
    memory = _learn_tpot(memory, params, intent, windows, ready)
    reachable = reachable_objectives(memory, intent)
    if queued or evidence.proven_violations(reachable, windows, params.min_samples):
        # The maximum of the episode and of all windows: while load rises, a window averages over lower load
        # before; after it has fallen, requests that end were slow because of higher load before.
        steady = _steady_windows(sample, params)
        rates = [w.requests_per_second / ready for w in steady if w.requests_per_second]
        loads = [w.running_mean / ready for w in steady if w.running_mean]
        return replace(
            memory,
            episode_ready=ready,
            episode_rate=max([memory.episode_rate, *rates]),
            episode_load=max([memory.episode_load, *loads]),
        )
    memory = _ended(memory)
    carried = carried_window(sample, params, stable_s)
    if carried is None or sample.waiting or not evidence.met(reachable, carried):
        return memory
    return replace(
        memory,
        violated_rate=_raise(memory.violated_rate, carried.requests_per_second, ready),
        violated_load=_raise(memory.violated_load, carried.running_mean, ready),
    )


def _ended(memory: EvidenceMemory) -> EvidenceMemory:
    """Keep the load of a violation that ended, or that goes on with another number of replicas."""
    if not memory.episode_ready:
        return memory
    return replace(
        memory,
        violated_rate=_lower(memory.violated_rate, memory.episode_rate or None),
        violated_load=_lower(memory.violated_load, memory.episode_load or None),
        episode_ready=0,
        episode_rate=0.0,
        episode_load=0.0,
    )


def would_carry(
    memory: EvidenceMemory,
    params: ScalingParams,
    intent: Intent,
    sample: Sample,
    replicas: int,
    *,
    light: bool,
) -> bool:
    """Return whether `replicas` would carry the present load, by what each would then have.

    `light`: less than one request runs at a time, so that concurrency is no evidence.
    """
    if replicas < 1 or sample.waiting:
        return False
    # With a full cache requests queue or are preempted: the caches of fewer replicas must not get full.
    if sample.kv_usage is not None and sample.kv_usage / replicas > params.down_load:
        return False
    if memory.violated_rate is not None:
        rate = _load_rate(sample, params)
        if rate is None or rate / replicas > params.down_load * memory.violated_rate:
            return False
    if light:
        return True
    window = evidence.narrowest(sample.windows(params.window_s), params.min_samples)
    if sample.running_mean is None or not evidence.met(reachable_objectives(memory, intent), window):
        return False
    limit = float(intent.max_running_requests)
    if memory.violated_load is not None:
        limit = min(limit, memory.violated_load)
    return sample.running_mean / replicas <= params.down_load * limit


def reachable_objectives(memory: EvidenceMemory, intent: Intent) -> Intent:
    """Return `intent` without the objectives that no number of replicas meets."""
    if ttft_unreachable(memory, intent):
        intent = replace(intent, ttft=None)
    return replace(intent, tpot=None) if tpot_unreachable(memory, intent) else intent


def forecast_objectives(memory: EvidenceMemory, intent: Intent) -> Objectives:
    """Return the objectives that the forecast of misses is about: without a TTFT objective that no number of
    replicas meets. TPOT stays: replicas keep it from becoming worse.
    """
    return Objectives(None if ttft_unreachable(memory, intent) else intent.ttft, intent.tpot)


def ttft_unreachable(memory: EvidenceMemory, intent: Intent) -> str:
    """Return why more replicas do not meet the TTFT objective, "" if they may.

    No request has its first token sooner than on an idle replica. A measurement wins over a prediction.
    """
    if intent.ttft is None or memory.ttft_reachable is True:
        return ""
    objective = f"the objective of {intent.ttft.milliseconds} ms to the first token"
    if memory.ttft_reachable is False:
        edge_ms = queries.snap(intent.ttft.milliseconds, queries.TTFT_BUCKETS) * 1000
        if edge_ms < intent.ttft.milliseconds:
            objective += f" (checked at {edge_ms:g} ms)"
        return f"{objective} is missed by requests alone on a replica too, so more replicas do not help"
    # Not at the edge, as for TPOT: TTFT is predicted less exactly, and its edges are farther apart.
    if memory.idle_ttft_ms is not None and memory.idle_ttft_ms > intent.ttft.milliseconds:
        alone = f"P{intent.ttft.percentile:g} of the time to the first token on an idle replica"
        predicted = f"{alone} is predicted to be {memory.idle_ttft_ms:.0f} ms for the present lengths"
        return f"{predicted}, above {objective}, so more replicas do not help"
    return ""


def tpot_unreachable(memory: EvidenceMemory, intent: Intent) -> str:
    """Return why more replicas do not meet the TPOT objective, "" if they may.

    No request is faster than one alone on a replica. A measurement wins over a prediction.
    """
    if intent.tpot is None or memory.tpot_reachable is True:
        return ""
    edge_ms = queries.snap(intent.tpot.milliseconds, queries.TPOT_BUCKETS) * 1000
    objective = f"the objective of {intent.tpot.milliseconds} ms per token"
    if edge_ms < intent.tpot.milliseconds:
        objective += f" (checked at {edge_ms:g} ms)"
    if memory.tpot_reachable is False:
        return f"{objective} is missed at low load too, so more replicas do not help"
    if memory.idle_tpot_ms is not None and memory.idle_tpot_ms > edge_ms:
        alone = f"a request alone on a replica is predicted to take {memory.idle_tpot_ms:.3g} ms per token"
        return f"{alone}, above {objective}, so more replicas do not help"
    return ""


def _learn_ttft(
    memory: EvidenceMemory, params: ScalingParams, intent: Intent, windows: Sequence[Window], ready: int
) -> EvidenceMemory:
    if intent.ttft is None:
        return memory
    if evidence.ttft_reachable(intent.ttft, windows, _ALLOWED_MISSES):
        return replace(memory, ttft_reachable=True)
    if (
        memory.ttft_reachable is False
        or "ttft" not in evidence.proven_violations(intent, windows, params.min_samples)
        or not evidence.ttft_missed_alone(intent.ttft, windows, params.min_samples, ready)
    ):
        return memory
    # The learned load was too much for an objective that does not count any more.
    return replace(_ended(memory), ttft_reachable=False, violated_rate=None, violated_load=None)


def _learn_tpot(
    memory: EvidenceMemory, params: ScalingParams, intent: Intent, windows: Sequence[Window], ready: int
) -> EvidenceMemory:
    window = evidence.narrowest(windows, params.min_samples)
    if intent.tpot is None or window is None or (window.requests or 0) < params.min_samples:
        return memory
    if evidence.tpot_reachable(intent.tpot, windows, _ALLOWED_MISSES):
        return replace(memory, tpot_reachable=True)
    if (
        memory.tpot_reachable is False
        or "tpot" not in evidence.proven_violations(intent, windows, params.min_samples)
        or not evidence.tpot_missed_alone(intent.tpot, windows, params.min_samples, ready)
    ):
        return memory
    # The learned load was too much for an objective that does not count any more.
    memory = _ended(memory)
    return replace(memory, tpot_reachable=False, violated_rate=None, violated_load=None)


def carried_window(sample: Sample, params: ScalingParams, stable_s: float) -> Window | None:
    """Return the widest window with enough requests since the number of ready replicas changed. Not the
    narrowest one, unless it is the only one: a short time proves nothing.
    """
    first, *wider = sample.windows(params.window_s)
    stable = [w for w in wider if w.seconds <= stable_s] if wider else [first]
    enough = [w for w in stable if (w.requests or 0) >= params.min_samples]
    return enough[-1] if enough else None


def _steady_windows(sample: Sample, params: ScalingParams) -> list[Window]:
    """Return the windows whose rates chance hardly moves, else the widest that is known."""
    measured = [w for w in sample.windows(params.window_s) if w.requests is not None]
    return [w for w in measured if (w.requests or 0) >= _STEADY_SAMPLES * params.min_samples] or measured[-1:]


def _load_rate(sample: Sample, params: ScalingParams) -> float | None:
    """Return the requests per second now, by the highest of the windows up to one that chance hardly moves.

    A wider window counts only if the one before holds its part of the requests: else its load has ended.
    """
    rates: list[float] = []
    before: Window | None = None
    for window in sample.windows(params.window_s):
        rate = window.requests_per_second
        if rate is None or (before is not None and _has_fallen(before, rate)):
            break
        rates.append(rate)
        if (window.requests or 0) >= _STEADY_SAMPLES * params.min_samples:
            break
        before = window
    return max(rates, default=None)


def _has_fallen(window: Window, rate: float) -> bool:
    """Whether a window holds fewer requests than chance makes of `rate` per second."""
    expected = rate * window.seconds
    return (window.requests or 0) < expected - _DEVIATIONS * math.sqrt(expected)


def _lower(learned: float | None, measured: float | None) -> float | None:
    if measured is None or (learned is not None and measured > (1 - _MIN_CHANGE) * learned):
        return learned
    return measured


def _raise(learned: float | None, total: float | None, ready: int) -> float | None:
    """Return the learned load, or the present one if each of `ready` replicas carried clearly more."""
    if learned is None or total is None or total / ready < (1 + _MIN_CHANGE) * learned:
        return learned
    return total / ready
