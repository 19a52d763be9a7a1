"""The maximum of recent recommendations: replicas are removed only down to it.

Kept as a falling staircase: a recommendation that a later one reaches or exceeds can never be the maximum
again. Times are whole minutes, so that the staircase of an hour stays short.
"""

_MINUTE_S = 60.0
_MOST_STEPS = 48

Recommendations = tuple[tuple[int, int], ...]  # (minute since the epoch, replicas), replicas falling


def added(recommendations: Recommendations, replicas: int, now: float) -> Recommendations:
    """Return the staircase with a recommendation of `now`."""
    minute = int(now // _MINUTE_S)
    higher_steps = tuple(step for step in recommendations if step[1] > replicas and step[0] <= minute)
    if len(higher_steps) >= _MOST_STEPS:  # the two lowest become one: the later time with the higher number
        *steps_before, (_, higher), (later, _) = higher_steps
        higher_steps = (*steps_before, (later, higher))
    return (*higher_steps, (minute, replicas))


def highest(recommendations: Recommendations, now: float, window_s: float) -> int | None:
    """Return the most replicas that were recommended within `window_s` before `now`, None without any.

    The minute in which the window begins counts whole.
    """
    since = int((now - window_s) // _MINUTE_S)
    return max((replicas for minute, replicas in recommendations if minute >= since), default=None)
