"""The cheapest schedule whose replay reaches an attainment, by few replays.

The schedules of a family have a scale: at a larger one they cost more, and fewer requests miss their
objectives. How many do, only a replay shows, as requests queue. Between two replays of a family, scale and
cost are nearly a power of the share of misses. So each replay is that of the family and scale that are
expected to be the cheapest, until another one is not expected to save `TOLERANCE`. The schedule that is
returned was replayed, and reached the attainment. It is not proved the cheapest: a dearer one may miss more.
"""

import math
from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

Schedule = tuple[int, ...]  # replicas of each time bin
TOLERANCE = 0.01  # of the cost
FARTHEST = 2.0  # of a scale that is replayed, over the largest one before it, or of the smallest over it
FEWER_MISSES = 10.0  # at twice the scale, and twice the cost: assumed of a family after its first replay
LEAST_MISS = 1e-6  # in place of none


@dataclass(frozen=True, slots=True, order=True)
class ReplayedSchedule:
    """A schedule of a family, its cost and the share of requests within their objectives in its replay."""

    scale: float
    schedule: Schedule
    usd: float
    attainment: float


class ScheduleFamily:
    """Schedules by their scale, a multiple of `step` up to `highest`, and those of them that were replayed.

    `replay` returns the cost and the attainment of a schedule; it may be called again with an equal one.
    """

    def __init__(
        self,
        schedule_of: Callable[[float], Schedule],
        replay: Callable[[Schedule], tuple[float, float]],
        *,
        start: float,
        step: float,
        highest: float,
    ) -> None:
        self.schedule_of, self._replay, self.step, self.highest = schedule_of, replay, step, highest
        self.replayed: list[ReplayedSchedule] = []  # by scale
        self.replay(start)

    def replay(self, scale: float) -> None:
        """Replay the schedule of a scale."""
        schedule = self.schedule_of(scale)
        insort(self.replayed, ReplayedSchedule(scale, schedule, *self._replay(schedule)))

    def expected(self, attainment: float) -> tuple[float, float] | None:
        """Return the cost at which an attainment is expected, and the scale to replay; None: none is left."""
        high = next((entry for entry in self.replayed if entry.attainment >= attainment), None)
        under = [entry for entry in self.replayed if high is None or entry.scale < high.scale]
        low = under[-1] if under else None
        least = low.scale + self.step if low else max(self.step, self.replayed[0].scale / FARTHEST)
        most = high.scale - self.step if high else min(self.highest, self.replayed[-1].scale * FARTHEST)
        if least > most:
            return None
        first, second = (low, high) if low and high else (self.replayed[0], self.replayed[-1])
        if first is second:
            fewer = 1 - (1 - first.attainment) / FEWER_MISSES
            second = replace(first, scale=2 * first.scale, usd=2 * first.usd, attainment=fewer)
        share = _share(first.attainment, second.attainment, attainment)
        scale = first.scale * (second.scale / first.scale) ** share
        scale = math.ceil(min(max(scale, least), most) / self.step - 1e-6) * self.step
        return first.usd * (second.usd / first.usd) ** share, scale


def _share(first: float, second: float, attainment: float) -> float:
    """Return where an attainment lies by the logarithm of the misses: 0 is the first one, 1 the second."""
    begin, end, at = (math.log(max(1 - value, LEAST_MISS)) for value in (first, second, attainment))
    return min(max((at - begin) / min(end - begin, -1e-3), -3.0), 3.0)


def cheapest_schedule(families: Sequence[ScheduleFamily], attainment: float) -> ReplayedSchedule | None:
    """Return the cheapest schedule found that reaches an attainment in its replay; None: none does."""
    while True:
        reached = [
            entry for family in families for entry in family.replayed if entry.attainment >= attainment
        ]
        best = min(reached, key=lambda entry: entry.usd, default=None)
        expected = [
            (*result, place)
            for place, family in enumerate(families)
            if (result := family.expected(attainment))
        ]
        if not expected:
            return best
        usd, scale, place = min(expected)
        if best is not None and usd > (1 - TOLERANCE) * best.usd:
            return best
        families[place].replay(scale)
