"""How far a reading may be trusted: FRESH, THIN, STALE or BLIND. Blind is not idle."""

from dataclasses import dataclass
from enum import StrEnum

from tangram.scaling.sample import Sample
from tangram.scaling.state import ScalingParams

# A scrape that fails or comes late is nothing special; three in a row are.
_STALE_AFTER_SCRAPES = 3


class SignalState(StrEnum):
    """How far a reading may be trusted."""

    FRESH = "FRESH"  # enough requests, or proof that there are none: may go up and down
    THIN = "THIN"  # recent, but too little to say how good it is: queues may still make replicas grow
    STALE = "STALE"  # old: nothing changes
    BLIND = "BLIND"  # nothing known: nothing changes


@dataclass(frozen=True, slots=True)
class Signal:
    """A reading with its verdict."""

    state: SignalState
    reason: str  # MetricsFresh | MetricsThin | MetricsStale | MetricsMissing | NoReadyReplicas
    message: str
    sample: Sample | None = None  # the last good one, however old
    window_s: float = 0.0
    min_samples: int = 1
    light: bool = False  # proof that less than one request runs at a time, so that one replica carries all


def classify(sample: Sample | None, problem: str, *, ready: int, params: ScalingParams, now: float) -> Signal:
    """Judge the last good `sample`; `problem` tells why newer readings failed ("" if they did not).

    `ready` is the number of replicas that are ready now.
    """

    def verdict(state: SignalState, reason: str, message: str, *, light: bool = False) -> Signal:
        text = f"{message} ({problem})" if problem else message
        return Signal(state, reason, text, sample, params.window_s, params.min_samples, light)

    if ready == 0:
        return verdict(
            SignalState.BLIND, "NoReadyReplicas", "no replica is ready, so there is nothing to measure"
        )
    if sample is None:
        return verdict(SignalState.BLIND, "MetricsMissing", "Prometheus has not answered yet")
    if not sample.targets or sample.age_s is None or sample.waiting is None or sample.running is None:
        return verdict(SignalState.BLIND, "MetricsMissing", "Prometheus holds no metrics of these replicas")
    age = sample.age_s + max(0.0, now - sample.at)
    if age > params.blind_after_s:
        return verdict(SignalState.BLIND, "MetricsMissing", f"no metrics for {params.blind_after_s:.0f} s")
    if age > _STALE_AFTER_SCRAPES * params.scrape_interval_s:
        return verdict(SignalState.STALE, "MetricsStale", "the newest metrics are over three scrapes old")
    if sample.targets < ready:
        # Normal for one scrape after a pod became ready, so not BLIND; but never evidence for going down.
        return verdict(SignalState.THIN, "MetricsThin", "not every ready replica has been scraped")
    if sample.requests is None or sample.running_mean is None:
        return verdict(SignalState.THIN, "MetricsThin", "too few scrapes yet for a rate")
    if sample.waiting == 0 and sample.running <= 1 and sample.running_mean < 1:
        idle = sample.requests == 0 and sample.running == 0
        text = (
            "all replicas answer; none has a request" if idle else "all replicas answer; hardly any request"
        )
        return verdict(SignalState.FRESH, "MetricsFresh", text, light=True)
    if sample.requests < params.min_samples:
        return verdict(
            SignalState.THIN, "MetricsThin", f"fewer than {params.min_samples} requests in the window"
        )
    return verdict(SignalState.FRESH, "MetricsFresh", "all replicas answer")
