"""The maximum of recent recommendations: replicas are removed only down to it.

Kept as a falling staircase: a recommendation that a later one reaches or exceeds can never be the maximum
again. Times are whole minutes, so that the staircase of an hour is short enough for a status.
"""

from collections.abc import Sequence

_MINUTE_S = 60.0
_MOST_STEPS = 48

Recommendations = tuple[tuple[int, int], ...]  # (minute since the epoch, replicas), replicas falling


def added(recommendations: Recommendations, replicas: int, now: float) -> Recommendations:
    """Return the staircase with a recommendation of `now`."""
    minute = int(now // _MINUTE_S)
    kept = tuple(step for step in recommendations if step[1] > replicas and step[0] <= minute)
    if len(kept) >= _MOST_STEPS:  # the two lowest become one: the later time with the higher number
        *kept_before, (_, higher), (later, _) = kept
        kept = (*kept_before, (later, higher))
    return (*kept, (minute, replicas))


def highest(recommendations: Recommendations, now: float, window_s: float) -> int | None:
    """Return the most replicas that were recommended within `window_s` before `now`, None without any.

    The minute in which the window begins counts whole.
    """
    since = int((now - window_s) // _MINUTE_S)
    return max((replicas for minute, replicas in recommendations if minute >= since), default=None)


def parsed(value: object, most: int) -> Recommendations:
    """Return recommendations as a status holds them; () where a person or another version wrote nonsense."""
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) > _MOST_STEPS + 1:
        return ()
    steps: list[tuple[int, int]] = []
    for item in value:
        if not isinstance(item, Sequence) or isinstance(item, str) or len(item) != 2:
            return ()
        minute, replicas = item
        if not all(type(n) is int and 0 <= n <= most for n in (minute, replicas)):
            return ()
        if steps and (minute < steps[-1][0] or replicas >= steps[-1][1]):
            return ()
        steps.append((minute, replicas))
    return tuple(steps)
