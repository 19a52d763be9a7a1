"""One reading of an LLMDeployment's engines, checked before anybody decides on it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

# Above these no engine of ours can be: such a number is a broken exporter, not load.
_MOST_REPLICAS = 100_000
_MOST_REQUESTS = 10_000_000
_MOST_SECONDS = 1e6
_ROUNDING = 1e-6  # ratios of two rates may miss 1 by floating point

# name -> (lowest, highest) plausible value
PLAUSIBLE: Mapping[str, tuple[float, float]] = {
    "targets": (0, _MOST_REPLICAS),
    "age_s": (-60.0, _MOST_SECONDS),  # a scrape may lie a little ahead of the server that is asked
    "waiting": (0, _MOST_REQUESTS),
    "running": (0, _MOST_REQUESTS),
    "running_mean": (0, _MOST_REQUESTS),
    "requests": (0, _MOST_REQUESTS),
    "ttft_attainment": (0, 1 + _ROUNDING),
    "tpot_attainment": (0, 1 + _ROUNDING),
    "itl_attainment": (0, 1 + _ROUNDING),
    "ttft_s": (0, _MOST_SECONDS),
    "tpot_s": (0, _MOST_SECONDS),
}
# 0/0 without traffic: "no sample", which is not zero and not an error.
_MAY_BE_NAN = frozenset({"ttft_attainment", "tpot_attainment", "itl_attainment", "ttft_s", "tpot_s"})


@dataclass(frozen=True, slots=True)
class Sample:
    """What Prometheus said at `at`. None means "no such series" or "no request in the window": never zero."""

    at: float  # seconds since the epoch
    targets: float | None = None  # engines that were scraped
    age_s: float | None = None  # age of the newest scrape
    waiting: float | None = None  # requests in queues, now
    running: float | None = None  # requests being computed, now
    running_mean: float | None = None  # the same, mean over the window
    requests: float | None = None  # requests that got their first token within the window
    ttft_attainment: float | None = None
    tpot_attainment: float | None = None  # per request, known when it ends
    itl_attainment: float | None = None  # per token, known at once
    ttft_s: float | None = None  # at the objective's percentile
    tpot_s: float | None = None


@dataclass(frozen=True, slots=True)
class RejectedSample:
    """A reading nobody may decide on."""

    at: float
    reason: str


def sample_from(results: Mapping[str, float | str | None], at: float) -> Sample | RejectedSample:
    """Check the results of `for_deployment` (one scalar per query; None: empty vector), read at `at`.

    NaN counts as "no sample" where it can only mean 0/0; elsewhere NaN, infinity, a negative or an absurd
    number rejects the whole sample, because half a reading is worse than none.
    """
    values: dict[str, float | None] = {}
    for name in PLAUSIBLE:
        try:
            values[name] = _checked(name, results.get(name))
        except ValueError as error:
            return RejectedSample(at, str(error))
    return Sample(at=at, **values)


def _checked(name: str, raw: float | str | None) -> float | None:
    if raw is None:
        return None
    try:
        value = float(raw)
    except ValueError:
        raise ValueError(f"Prometheus returned {raw!r} for {name}") from None
    if math.isnan(value) and name in _MAY_BE_NAN:
        return None
    low, high = PLAUSIBLE[name]
    if not low <= value <= high:  # NaN and infinity fail here too
        raise ValueError(f"Prometheus returned {value:g} for {name}, which cannot be")
    return min(value, 1.0) if name.endswith("_attainment") else value
