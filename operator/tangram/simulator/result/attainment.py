"""Which requests of an LLMDeployment met their objectives, and why the others did not."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tangram.capacity.load.latency import Percentiles, percentiles
from tangram.fleet import Intent, Shape
from tangram.simulator.cluster.engine_setups import EngineSetup
from tangram.simulator.serving.gateway import SendFailure, SentRequest

WINDOW_S = 300.0


class Verdict(StrEnum):
    """What became of one request."""

    ATTAINED = "attained"
    TTFT = "TTFT"  # its first token was late
    TPOT = "TPOT"  # the others were
    REFUSED = "refused"  # no pod was ready
    TIMED_OUT = "timed out"
    LOST = "lost"  # with its pod
    TOO_LONG = "too long"  # for the model or for the KV cache
    INFEASIBLE = "infeasible"  # it misses its objectives even alone on an idle replica


NO_LATENCY = percentiles(())
UNSERVABLE = (Verdict.TOO_LONG, Verdict.INFEASIBLE)
_FAILURES = {
    SendFailure.NO_READY_POD: Verdict.REFUSED,
    SendFailure.TIMED_OUT: Verdict.TIMED_OUT,
    SendFailure.TOO_LONG: Verdict.TOO_LONG,
}


@dataclass(frozen=True, slots=True)
class AttainmentWindow:
    """The requests that arrived in one window, without those that no replica could have served in time."""

    begin_s: float
    requests: int
    attained: int
    ttft_missed: int = 0  # requests that were not served count here and in the next
    tpot_missed: int = 0

    @property
    def attainment(self) -> float:
        """Share of requests that met both objectives; 1 without requests."""
        return self.attained / self.requests if self.requests else 1.0

    @property
    def ttft_attainment(self) -> float:
        """Share of requests that met the objective for TTFT; 1 without requests."""
        return 1.0 - self.ttft_missed / self.requests if self.requests else 1.0

    @property
    def tpot_attainment(self) -> float:
        """Share of requests that met the objective for TPOT; 1 without requests."""
        return 1.0 - self.tpot_missed / self.requests if self.requests else 1.0


@dataclass(frozen=True, slots=True)
class Attainment:
    """All requests of an LLMDeployment by what became of them, and by window of arrival."""

    verdicts: tuple[tuple[str, int], ...]  # (`Verdict`, requests), sorted
    windows: tuple[AttainmentWindow, ...]
    ttft_s: Percentiles = NO_LATENCY  # of requests that were served, whatever their objectives
    tpot_s: Percentiles = NO_LATENCY  # likewise, of answers of more than one token

    @property
    def whole(self) -> AttainmentWindow:
        """The whole run as one window."""
        names = ("requests", "attained", "ttft_missed", "tpot_missed")
        sums = (sum(getattr(window, name) for window in self.windows) for name in names)
        return AttainmentWindow(0.0, *sums)

    @property
    def requests(self) -> int:
        """All requests."""
        return sum(count for _, count in self.verdicts)

    @property
    def feasible(self) -> int:
        """Requests that an idle replica serves within the objectives."""
        return sum(window.requests for window in self.windows)

    @property
    def share(self) -> float:
        """Share of the feasible requests that met both objectives; 1 without requests."""
        return sum(window.attained for window in self.windows) / self.feasible if self.feasible else 1.0

    def window_share(self, target: float) -> float:
        """Share of the windows with requests in which `target` of them met both objectives, or more."""
        busy = [window for window in self.windows if window.requests]
        return sum(window.attainment >= target for window in busy) / len(busy) if busy else 1.0


def attainment(
    sent: Sequence[SentRequest],
    intent: Intent,
    engine_of: Callable[[Shape], EngineSetup],
    usual_shape: Shape | None,
    duration_s: float,
) -> Attainment:
    """Judge the requests after the run. `usual_shape` is what those are judged on that reached no pod."""
    count = max(1, math.ceil(duration_s / WINDOW_S))
    windows = [[0, 0, 0, 0] for _ in range(count)]  # requests, attained, missed TTFT and TPOT
    verdicts = Counter[Verdict]()
    ttft_s, tpot_s = list[float](), list[float]()
    for request in sent:
        failure = _failure(request, intent)
        times = None if failure is not None else _latency_s(request, engine_of)
        if times is not None:
            ttft_s.append(times[0])
            if request.request.output_tokens > 1:
                tpot_s.append(times[1])
        missed = (True, True) if times is None else _missed(intent, *times)
        verdict = failure or _worst(missed)
        judged = verdict in (Verdict.ATTAINED, Verdict.TOO_LONG)
        if not judged and _is_infeasible(request, intent, engine_of, usual_shape):
            verdict = Verdict.INFEASIBLE
        verdicts[verdict] += 1
        if verdict not in UNSERVABLE:
            window = windows[min(count - 1, int(request.request.arrival_s // WINDOW_S))]
            for place, counts in enumerate((True, verdict is Verdict.ATTAINED, *missed)):
                window[place] += counts
    return Attainment(
        tuple(sorted((str(verdict), number) for verdict, number in verdicts.items())),
        tuple(AttainmentWindow(place * WINDOW_S, *figures) for place, figures in enumerate(windows)),
        percentiles(ttft_s),
        percentiles(tpot_s),
    )


def _failure(sent: SentRequest, intent: Intent) -> Verdict | None:
    """Return why a request was not served; None: it was."""
    if sent.failure is not None:
        return _FAILURES[sent.failure]
    pod = sent.pod
    if pod is None or pod.replica is None:
        return Verdict.TIMED_OUT
    first, last = pod.replica.first[sent.number], pod.replica.last[sent.number]
    if math.isnan(last) or last > pod.lost_at:
        return Verdict.LOST
    if math.isnan(first) or last - sent.request.arrival_s > intent.max_request_s:
        return Verdict.TIMED_OUT
    return None


def _latency_s(sent: SentRequest, engine_of: Callable[[Shape], EngineSetup]) -> tuple[float, float] | None:
    """Return TTFT and TPOT of a request that was served; TPOT is 0 for an answer of one token."""
    pod = sent.pod
    if pod is None or pod.replica is None:
        return None
    first, last = pod.replica.first[sent.number], pod.replica.last[sent.number]
    gaps = sent.request.output_tokens - 1
    ttft_s = first - sent.request.arrival_s + engine_of(pod.shape).request_s
    return ttft_s, (last - first) / gaps if gaps else 0.0


def _missed(intent: Intent, ttft_s: float, tpot_s: float) -> tuple[bool, bool]:
    """Return whether the objectives for TTFT and for TPOT are missed."""
    return (
        intent.ttft is not None and ttft_s > intent.ttft.seconds,
        intent.tpot is not None and tpot_s > intent.tpot.seconds,
    )


def _worst(missed: tuple[bool, bool]) -> Verdict:
    first, others = missed
    return Verdict.TTFT if first else Verdict.TPOT if others else Verdict.ATTAINED


def _is_infeasible(
    sent: SentRequest, intent: Intent, engine_of: Callable[[Shape], EngineSetup], usual_shape: Shape | None
) -> bool:
    """Whether a request misses its objectives even alone on an idle replica."""
    shape = sent.pod.shape if sent.pod is not None else usual_shape
    if shape is None:
        return False
    request = sent.request
    return any(_missed(intent, *engine_of(shape).idle_latency_s(request.input_tokens, request.output_tokens)))


@dataclass(frozen=True, slots=True)
class ViolatedPeriod:
    """From the first violated window to the first of three clean ones, or to the end of the run."""

    begin_s: float
    end_s: float
    missed: int  # requests

    @property
    def recovery_s(self) -> float:
        """How long the objectives were violated."""
        return self.end_s - self.begin_s


_CLEAN_WINDOWS = 3


def violated_periods(windows: Iterable[AttainmentWindow], target: float) -> tuple[ViolatedPeriod, ...]:
    """Return the periods in which less than `target` of the requests met their objectives."""
    periods: list[ViolatedPeriod] = []
    begin_s: float | None = None
    missed = clean = 0
    end_s = 0.0
    for window in windows:
        end_s = window.begin_s + WINDOW_S
        violated = window.attainment < target
        clean = 0 if violated else clean + 1
        if violated and begin_s is None:
            begin_s, missed = window.begin_s, 0
        if begin_s is None:
            continue
        missed += window.requests - window.attained
        if clean == _CLEAN_WINDOWS:
            periods.append(ViolatedPeriod(begin_s, end_s - _CLEAN_WINDOWS * WINDOW_S, missed))
            begin_s = None
    if begin_s is not None:
        periods.append(ViolatedPeriod(begin_s, end_s - clean * WINDOW_S, missed))
    return tuple(periods)
