"""Whether objectives are met, over the narrowest window that holds enough requests.

With thin traffic a fixed window holds too few requests (`min_samples`) for a share, so the window widens
until it holds enough. A share of few requests misses an objective by chance now and then: replicas are added
only for a miss over a wider window that chance does not explain.
"""

import math
from collections.abc import Callable, Iterable, Sequence

from tangram.fleet import Intent, Objective
from tangram.scaling.sample import Sample, Window

# A miss is proven if requests that meet the objective exactly at its percentile would miss it as often with
# less than this probability (Chernoff's bound, which is above it).
CHANCE = 0.002
_FEWEST = 3
_ROUNDING = 1e-12  # of shares: 1 - 0.9 is not 0.1


def narrowest(windows: Sequence[Window], min_samples: int) -> Window | None:
    """Return the narrowest window with enough requests, else the widest that is known.

    `windows` ascend; None: no window is known.
    """
    measured = [window for window in windows if window.requests is not None]
    enough = (window for window in measured if (window.requests or 0) >= min_samples)
    return next(enough, measured[-1] if measured else None)


def usable(sample: Sample, window_s: float, stable_s: float) -> tuple[Window, ...]:
    """Return the windows during which the number of ready replicas, unchanged for `stable_s` seconds, was the
    present one. The first window may always be used.
    """
    first, *wider = sample.windows(window_s)
    return (first, *(window for window in wider if window.seconds <= stable_s))


def violations(intent: Intent, window: Window | None, min_samples: int) -> tuple[str, ...]:
    """Return which objectives are missed, of `ttft` and `tpot`; none if there are too few requests."""
    if window is None:
        return ()
    return tuple(
        name
        for name, objective, attainments in _objectives(intent, window)
        if any(_missed(attainment, objective, window, min_samples) for attainment in attainments)
    )


def proven_violations(
    intent: Intent, windows: Sequence[Window], min_samples: int, chance: float = CHANCE
) -> tuple[str, ...]:
    """Return which objectives are missed now, and not by chance: they are missed in the first window and in
    the narrowest one that holds enough requests, and that one or a wider one proves it.

    The first window counts because the load of a wider one may have ended.
    """
    now = {name for name, objective, shares in _objectives(intent, windows[0]) if _below(shares, objective)}
    window = narrowest(windows, min_samples)
    missed = violations(intent, window, min_samples)
    return tuple(
        name
        for name in missed
        if name in now and window and _proof(intent, windows, name, window.seconds, chance)
    )


def _below(attainments: Sequence[float | None], objective: Objective) -> bool:
    return any(share is not None and not _reached(share, objective) for share in attainments)


def _proof(
    intent: Intent, windows: Sequence[Window], name: str, least_s: float, chance: float
) -> Window | None:
    """Return the narrowest window beyond the first that proves the miss; the first where there is no other.

    Requests of one burst miss together, so chance makes a bad minute much more often than if requests were
    independent. A miss that is worth a replica shows in five minutes, and all the sooner the worse it is.
    """
    for window in windows[1:] or windows:
        if window.seconds < least_s:
            continue
        for its_name, objective, attainments in _objectives(intent, window):
            if its_name == name and any(
                _is_proven(attainment, objective, window, chance) for attainment in attainments
            ):
                return window
    return None


def _objectives(
    intent: Intent, window: Window
) -> tuple[tuple[str, Objective, tuple[float | None, ...]], ...]:
    objectives: list[tuple[str, Objective, tuple[float | None, ...]]] = []
    if intent.ttft:
        objectives.append(("ttft", intent.ttft, (window.ttft_attainment,)))
    if intent.tpot:
        # Per request, as the objective is defined; per token, too, because requests count only when they end.
        objectives.append(("tpot", intent.tpot, (window.tpot_attainment, window.itl_attainment)))
    return tuple(objectives)


def met(intent: Intent, window: Window | None, budget: float = 1.0) -> bool:
    """Return whether every objective is known to be met, within this part of its error budget."""
    return (intent.ttft is None or ttft_met(intent.ttft, window, budget)) and (
        intent.tpot is None or tpot_met(intent.tpot, window, budget)
    )


def ttft_met(objective: Objective, window: Window | None, budget: float = 1.0) -> bool:
    """Return whether the TTFT objective is known to be met."""
    return window is not None and _reached(window.ttft_attainment, objective, budget)


def tpot_met(objective: Objective, window: Window | None, budget: float = 1.0) -> bool:
    """Return whether the TPOT objective is known to be met, by requests that ended or else by tokens."""
    if window is None:
        return False
    by_request, by_token = window.tpot_attainment, window.itl_attainment
    return _reached(by_token if by_request is None else by_request, objective, budget) and (
        by_token is None or _reached(by_token, objective, budget)
    )


def ttft_reachable(objective: Objective, windows: Sequence[Window], least_misses: float) -> bool:
    """Return whether the TTFT objective is met over so many requests that it would allow this many misses."""
    return ttft_met(objective, _widest(objective, windows, least_misses))


def tpot_reachable(objective: Objective, windows: Sequence[Window], least_misses: float) -> bool:
    """Return whether the TPOT objective is met over so many requests that it would allow this many misses."""
    return tpot_met(objective, _widest(objective, windows, least_misses))


def _widest(objective: Objective, windows: Sequence[Window], least_misses: float) -> Window | None:
    """Return the widest window that is known, if its requests may miss the objective so many times."""
    measured = [window for window in windows if window.requests is not None]
    if not measured or (measured[-1].requests or 0) * (1 - objective.percentile / 100) < least_misses:
        return None
    return measured[-1]


def ttft_missed_alone(
    objective: Objective, windows: Sequence[Window], min_samples: int, replicas: int
) -> bool:
    """Return whether requests that are alone on one of the `replicas` miss the TTFT objective, not by chance.

    An arrival finds another request on its replica with at most the mean number that run there as its
    probability (Poisson arrivals see time averages; Markov's inequality). Even if all of those miss, the
    others do so more often than the objective allows.
    """
    shares = ((window, window.ttft_attainment) for window in windows)
    return _missed_alone(objective, shares, min_samples, lambda running: 1 - running / replicas)


def tpot_missed_alone(
    objective: Objective, windows: Sequence[Window], min_samples: int, replicas: int
) -> bool:
    """Return whether requests that are alone on one of the `replicas` until they end miss the TPOT objective,
    not by chance: a long prompt of another one may stop a short answer for longer than it takes.

    With Poisson arrivals the requests that an arrival finds, and those that come while it runs, are each as
    many as run there in the mean. None do for at least exp(-2 mean) of all (Jensen's inequality).
    """
    shares = ((window, window.tpot_attainment) for window in windows)
    return _missed_alone(objective, shares, min_samples, lambda running: math.exp(-2 * running / replicas))


def _missed_alone(
    objective: Objective,
    windows: Iterable[tuple[Window, float | None]],
    min_samples: int,
    least_share: Callable[[float], float],
) -> bool:
    """Return whether a window but the first, or else that one, proves it: with its attainment, where
    `least_share` of the requests are alone, by the mean number that run.
    """
    first, *wider = windows
    for window, attainment in wider or [first]:
        requests = math.floor(window.requests or 0.0)
        if requests < min_samples or attainment is None or window.running_mean is None:
            continue
        expected = objective.percentile / 100 * least_share(window.running_mean)
        if attainment < expected and requests * divergence(attainment, expected) >= math.log(1 / CHANCE):
            return True
    return False


def _reached(attainment: float | None, objective: Objective, budget: float = 1.0) -> bool:
    return attainment is not None and 1 - attainment <= budget * (1 - objective.percentile / 100) + _ROUNDING


def _missed(attainment: float | None, objective: Objective, window: Window, min_samples: int) -> bool:
    if attainment is None or _reached(attainment, objective):
        return False
    enough = (window.requests or 0) >= min_samples
    return enough or (window.is_widest and _is_proven(attainment, objective, window))


def _is_proven(
    attainment: float | None, objective: Objective, window: Window, chance: float = CHANCE
) -> bool:
    """Whether chance does not explain the miss. Requests are counted for tokens too: those of one request
    depend on each other.
    """
    requests = math.floor(window.requests or 0.0)
    if attainment is None or _reached(attainment, objective) or requests < _FEWEST:
        return False
    return requests * divergence(attainment, objective.percentile / 100) >= math.log(1 / chance)


def divergence(measured: float, expected: float) -> float:
    """Kullback-Leibler divergence of two shares, in nats; `expected` is above 0 and below 1."""
    hit = measured * math.log(measured / expected) if measured > 0 else 0.0
    return hit + (1 - measured) * math.log((1 - measured) / (1 - expected))
