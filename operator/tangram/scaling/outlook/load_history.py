"""The load of the past, as Prometheus holds it: arrivals per second in bins of one length."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

STEP_S = 60.0  # length of a bin; at least four scrapes
MOST_BINS = 240  # four hours
LEAST_HISTORY_S, MOST_HISTORY_S = 2 * STEP_S, MOST_BINS * STEP_S


@dataclass(frozen=True, slots=True)
class LoadHistory:
    """Arrivals per second in consecutive bins, oldest first. None: no scrape shows the bin; never zero."""

    end_s: float  # end of the last bin, in seconds since the epoch, a multiple of `step_s`
    rates: tuple[float | None, ...] = ()
    step_s: float = STEP_S
    # By period in seconds (a day, a week): the bins that end that long before `end_s`, and those that
    # followed them.
    seasons: tuple[tuple[float, "LoadHistory"], ...] = ()

    def rate_at(self, end_s: float) -> float | None:
        """Return the rate of the bin that ends at `end_s` or just after, None if it is unknown."""
        place = len(self.rates) - 1 - math.floor((self.end_s - end_s) / self.step_s + 1e-9)
        return self.rates[place] if 0 <= place < len(self.rates) else None


@lru_cache(maxsize=1024)
def averaged(history: LoadHistory, bins: int) -> LoadHistory:
    """Return the history of means over so many bins, each with those before it; gaps count for nothing."""
    if bins <= 1:
        return history
    rates = []
    for place, rate in enumerate(history.rates):
        recent = [r for r in history.rates[max(0, place + 1 - bins) : place + 1] if r is not None]
        rates.append(None if rate is None else sum(recent) / len(recent))
    seasons = tuple((period_s, averaged(season, bins)) for period_s, season in history.seasons)
    return replace(history, rates=tuple(rates), seasons=seasons)


def extended(history: LoadHistory, rate: float | None, end_s: float, most: int = MOST_BINS) -> LoadHistory:
    """Return `history` with the bin that ends at `end_s`; bins between are gaps. At most `most` bins stay."""
    missing = round((end_s - history.end_s) / history.step_s) - 1
    if missing < 0:
        return history
    gap: Sequence[float | None] = (None,) * min(missing, most)
    rates = (*history.rates, *gap, rate)[-most:]
    return LoadHistory(end_s, rates, history.step_s, history.seasons)


def from_samples(
    samples: Mapping[float, float], end_s: float, bins: int, step_s: float = STEP_S
) -> LoadHistory:
    """Return the history of `bins` bins up to `end_s` from rates by the end of their bin."""
    ends = (end_s - step_s * back for back in range(bins - 1, -1, -1))
    return LoadHistory(end_s, tuple(samples.get(end) for end in ends), step_s)


def merged(observed: LoadHistory, stored: LoadHistory, most: int = MOST_BINS) -> LoadHistory:
    """Return what Prometheus held, where it was not seen: a bin that was seen stays as it is."""
    rates = _by_end(stored) | _by_end(observed)
    return replace(from_samples(rates, max(stored.end_s, observed.end_s), most), seasons=stored.seasons)


def _by_end(history: LoadHistory) -> dict[float, float]:
    """Return the rates that are known by the end of their bin."""
    last = len(history.rates) - 1
    ends = (history.end_s - (last - place) * history.step_s for place in range(last + 1))
    return {end: rate for end, rate in zip(ends, history.rates, strict=True) if rate is not None}
