"""Which value of a law's knob to run next, where a run takes long: those around the attainments, not all."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.autoscaling.compared_laws import Law

BRACKETED = (0.95, 0.99)


def next_knob(law: Law, misses: Mapping[float, float]) -> float | None:
    """Return the value to run after those whose shares of misses are given; None: all attainments are bracketed.

    The default comes first. The values are taken to miss less in their order: of each attainment, the first value that
    reaches it and the one before are run, as far as there are such.
    """
    if law.default is not None and law.default not in misses:
        return law.default
    for attainment in BRACKETED:
        places = [place for place, knob in enumerate(law.knobs) if knob in misses]
        reached = [place for place in places if misses[law.knobs[place]] <= 1 - attainment]
        high = min(reached, default=len(law.knobs))
        low = max((place for place in places if place < high), default=-1)
        if high - low > 1:
            return law.knobs[(low + high) // 2]
    return None
