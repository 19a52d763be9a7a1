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
    THIN = "THIN"  # recent, but too few requests for an attainment: replicas may be added, not removed
    STALE = "STALE"  # old: nothing changes
    BLIND = "BLIND"  # nothing known: nothing changes


@dataclass(frozen=True, slots=True)
class Signal:
    """A reading, and how far it may be trusted."""

    state: SignalState
    reason: str  # MetricsFresh | MetricsThin | MetricsStale | MetricsMissing | NoReadyReplicas
    message: str
    sample: Sample | None = None  # the last good one, however old
    window_s: float = 0.0
    min_samples: int = 1
    pods_read: str = ""  # how many pods the operator read itself; empty: Prometheus read them
    light: bool = False  # proof that less than one request runs at a time, so that one replica carries all

    @property
    def recent_sample(self) -> Sample | None:
        """The sample, None where it is too old to decide anything."""
        return None if self.state in (SignalState.STALE, SignalState.BLIND) else self.sample


def classify(
    sample: Sample | None,
    problem: str,
    *,
    ready: int,
    params: ScalingParams,
    now: float,
    pods_read: str = "",
) -> Signal:
    """Classify the last good `sample`; `problem` is why newer readings failed ("" if they did not).

    `ready` is the number of replicas that are ready now; `pods_read`, how many the operator read itself.
    """
    defect = _blind(sample, ready, params, now, pods_read) or _thin(sample, ready, params)
    light = defect is None and sample is not None and _is_light(sample)
    state, reason, message = defect or (SignalState.FRESH, "MetricsFresh", "all replicas answer")
    return Signal(
        state=state,
        reason=reason,
        message=f"{message} ({problem})" if problem else message,
        sample=sample,
        window_s=params.window_s,
        min_samples=params.min_samples,
        light=light,
        pods_read=pods_read,
    )


_Defect = tuple[SignalState, str, str]


def _blind(
    sample: Sample | None, ready: int, params: ScalingParams, now: float, pods_read: str
) -> _Defect | None:
    """Return why nothing may be decided from `sample`, or None."""
    if ready == 0:
        return SignalState.BLIND, "NoReadyReplicas", "no replica is ready, so there is nothing to measure"
    if sample is None:
        text = "the pods have not been read yet" if pods_read else "Prometheus has not answered yet"
        return SignalState.BLIND, "MetricsMissing", text
    if not sample.targets or None in (sample.age_s, sample.waiting, sample.running):
        source = (
            f"metrics were read from {pods_read}"
            if pods_read
            else "Prometheus holds no metrics of these replicas"
        )
        return SignalState.BLIND, "MetricsMissing", source
    age = (sample.age_s or 0.0) + max(0.0, now - sample.at)
    if age > params.blind_after_s:
        return SignalState.BLIND, "MetricsMissing", f"no metrics for {params.blind_after_s:.0f} s"
    if age > _STALE_AFTER_SCRAPES * params.scrape_interval_s:
        return SignalState.STALE, "MetricsStale", "the newest metrics are over three scrapes old"
    return None


def _thin(sample: Sample | None, ready: int, params: ScalingParams) -> _Defect | None:
    """Return why a recent `sample` is too little to remove a replica, or None."""
    if sample is None or (sample.targets or 0) < ready:
        # Normal for one scrape after a pod became ready, so not BLIND; but no evidence to remove a replica.
        return SignalState.THIN, "MetricsThin", "not every ready replica has been scraped"
    if sample.requests is None or sample.running_mean is None:
        return SignalState.THIN, "MetricsThin", "too few scrapes yet for a rate"
    widens = any(w.requests is not None for w in sample.wider)
    if sample.requests < params.min_samples and not widens and not _is_light(sample):
        return SignalState.THIN, "MetricsThin", f"fewer than {params.min_samples} requests in the window"
    return None


def _is_light(sample: Sample) -> bool:
    """Positive proof that hardly any request runs: the series exist and show it."""
    return (
        sample.waiting == 0
        and sample.running is not None
        and sample.running <= 1
        and sample.running_mean is not None
        and sample.running_mean < 1
    )
