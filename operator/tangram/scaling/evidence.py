"""Whether objectives are met, judged over the narrowest window that holds enough requests.

A fixed window is blind to thin traffic: below `min_samples` requests its share says too little. So the
window widens until it holds enough. And a share of few requests misses an objective by chance now and then:
replicas are added only for a miss that chance does not explain, over a wider window.
"""

import math
from collections.abc import Sequence

from tangram.fleet import Intent, Objective
from tangram.scaling.sample import Sample, Window

# A miss is proven if requests that meet the objective exactly as often as it asks would do so badly with less
# than this probability (Chernoff's bound, which is above it).
_CHANCE = 0.002
_FEWEST = 3


def narrowest(windows: Sequence[Window], min_samples: int) -> Window | None:
    """Return the narrowest window with enough requests, else the widest that is known.

    `windows` ascend; None: no window is known.
    """
    known = [window for window in windows if window.requests is not None]
    enough = (window for window in known if (window.requests or 0) >= min_samples)
    return next(enough, known[-1] if known else None)


def usable(sample: Sample, window_s: float, stable_s: float) -> tuple[Window, ...]:
    """Return the windows that speak of the replicas that there are: ready ones were neither more nor fewer
    for `stable_s` seconds. The first window may always be used.
    """
    first, *wider = sample.windows(window_s)
    return (first, *(window for window in wider if window.seconds <= stable_s))


def violations(intent: Intent, window: Window | None, min_samples: int) -> tuple[str, ...]:
    """Return which objectives are missed, of `ttft` and `tpot`; none when too few requests tell."""
    if window is None:
        return ()
    return tuple(
        name
        for name, objective, attainments in _objectives(intent, window)
        if any(_missed(attainment, objective, window, min_samples) for attainment in attainments)
    )


def proven_violations(intent: Intent, windows: Sequence[Window], min_samples: int) -> tuple[str, ...]:
    """Return which objectives are missed now, and not by chance: requests of the first window miss, so does
    the narrowest window that holds enough of them, and that one or a wider one leaves no doubt.

    The first window is asked because a wider one speaks of load that may have ended.
    """
    now = {name for name, objective, shares in _objectives(intent, windows[0]) if _below(shares, objective)}
    window = narrowest(windows, min_samples)
    missed = violations(intent, window, min_samples)
    return tuple(
        name for name in missed if name in now and window and _proof(intent, windows, name, window.seconds)
    )


def _below(attainments: Sequence[float | None], objective: Objective) -> bool:
    return any(share is not None and not _reached(share, objective) for share in attainments)


def _proof(intent: Intent, windows: Sequence[Window], name: str, least_s: float) -> Window | None:
    """Return the narrowest window beyond the first that proves the miss; the first where there is no other.

    Requests of one burst miss together, so chance makes a bad minute much more often than if requests were
    independent. A miss that is worth a replica shows in five minutes, and all the sooner the worse it is.
    """
    for window in windows[1:] or windows:
        for its_name, objective, attainments in _objectives(intent, window):
            told = its_name == name and window.seconds >= least_s
            if told and any(_is_proven(attainment, objective, window) for attainment in attainments):
                return window
    return None


def _objectives(
    intent: Intent, window: Window
) -> tuple[tuple[str, Objective, tuple[float | None, ...]], ...]:
    found: list[tuple[str, Objective, tuple[float | None, ...]]] = []
    if intent.ttft:
        found.append(("ttft", intent.ttft, (window.ttft_attainment,)))
    if intent.tpot:
        # Per request as the objective says; per token too, because requests count only when they end.
        found.append(("tpot", intent.tpot, (window.tpot_attainment, window.itl_attainment)))
    return tuple(found)


def met(intent: Intent, window: Window | None) -> bool:
    """Return whether every objective is known to be met."""
    return (intent.ttft is None or ttft_met(intent.ttft, window)) and (
        intent.tpot is None or tpot_met(intent.tpot, window)
    )


def ttft_met(objective: Objective, window: Window | None) -> bool:
    """Return whether the TTFT objective is known to be met."""
    return window is not None and _reached(window.ttft_attainment, objective)


def tpot_met(objective: Objective, window: Window | None) -> bool:
    """Return whether the TPOT objective is known to be met, by requests that ended or else by tokens."""
    if window is None:
        return False
    by_request, by_token = window.tpot_attainment, window.itl_attainment
    return _reached(by_token if by_request is None else by_request, objective) and (
        by_token is None or _reached(by_token, objective)
    )


def _reached(attainment: float | None, objective: Objective) -> bool:
    return attainment is not None and attainment >= objective.percentile / 100


def _missed(attainment: float | None, objective: Objective, window: Window, min_samples: int) -> bool:
    if attainment is None or _reached(attainment, objective):
        return False
    enough = (window.requests or 0) >= min_samples
    return enough or (window.is_widest and _is_proven(attainment, objective, window))


def _is_proven(attainment: float | None, objective: Objective, window: Window) -> bool:
    """Whether chance does not explain the miss. Requests are counted for tokens too: those of one request
    depend on each other.
    """
    requests = math.floor(window.requests or 0.0)
    if attainment is None or _reached(attainment, objective) or requests < _FEWEST:
        return False
    return requests * _divergence(attainment, objective.percentile / 100) >= math.log(1 / _CHANCE)


def _divergence(seen: float, asked: float) -> float:
    """Kullback-Leibler divergence of two shares, in nats; `asked` is above 0 and below 1."""
    hit = seen * math.log(seen / asked) if seen > 0 else 0.0
    return hit + (1 - seen) * math.log((1 - seen) / (1 - asked))
