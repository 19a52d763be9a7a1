"""One reading of the metrics of an LLMDeployment's engines, checked for plausible values."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tangram.scaling.outlook.mixture import Mixture

# No engine reaches these numbers: they come from a broken exporter, not from load.
_MOST_REPLICAS = 100_000
MOST_REQUESTS = 10_000_000
_MOST_SECONDS = 1e6
_MOST_TOKENS = 1e9
AT_WINDOW = "@"  # parts the name of a field from the seconds of its window
_LEAST_MIXTURE_S = 300.0  # a narrower window follows chance
_ROUNDING = 1e-6  # ratios of two rates may miss 1 by floating point

# name -> (lowest, highest) plausible value
PLAUSIBLE: Mapping[str, tuple[float, float]] = {
    "targets": (0, _MOST_REPLICAS),
    "age_s": (-60.0, _MOST_SECONDS),  # the clock of a scrape may be ahead of the server's
    "waiting": (0, MOST_REQUESTS),
    "running": (0, MOST_REQUESTS),
    "running_mean": (0, MOST_REQUESTS),
    "requests": (0, MOST_REQUESTS),
    "arrived": (0, MOST_REQUESTS),
    "prompt_tokens_mean": (0, _MOST_TOKENS),
    "answer_tokens_mean": (0, _MOST_TOKENS),
    "kv_usage": (0, _MOST_REPLICAS),
    "ttft_attainment": (0, 1 + _ROUNDING),
    "tpot_attainment": (0, 1 + _ROUNDING),
    "itl_attainment": (0, 1 + _ROUNDING),
    "ttft_s": (0, _MOST_SECONDS),
    "tpot_s": (0, _MOST_SECONDS),
}
# 0/0 without traffic: "no sample", which is not zero and not an error.
_MAY_BE_NAN = frozenset(
    {"ttft_attainment", "tpot_attainment", "itl_attainment", "ttft_s", "tpot_s"}
    | {"prompt_tokens_mean", "answer_tokens_mean"}
)


@dataclass(frozen=True, slots=True)
class Window:
    """What was counted over one window. None means "no such series" or "no request": never zero."""

    seconds: float
    requests: float | None = None  # requests that got their first token
    running_mean: float | None = None  # requests being computed, mean
    ttft_attainment: float | None = None
    tpot_attainment: float | None = None  # per request, known when it ends
    itl_attainment: float | None = None  # per token, known at once
    is_widest: bool = False  # no more requests can be had by waiting
    arrived: float | None = None  # requests that are load; None: not every engine counts them
    prompt_tokens_mean: float | None = None  # of finished requests
    answer_tokens_mean: float | None = None

    @property
    def requests_per_second(self) -> float | None:
        """The rate at which requests got their first token."""
        return None if self.requests is None else self.requests / self.seconds


@dataclass(frozen=True, slots=True)
class Sample:
    """What the metrics showed at `at`. None: no such series, or no request in the window; never zero."""

    at: float  # seconds since the epoch
    targets: float | None = None  # engines that were scraped
    age_s: float | None = None  # age of the newest scrape
    waiting: float | None = None  # requests in queues, now
    running: float | None = None  # requests being computed, now
    running_mean: float | None = None  # the same, mean over the window
    requests: float | None = None  # requests that got their first token within the window
    arrived: float | None = None  # requests that are load: accepted, or refused by a full replica
    ttft_attainment: float | None = None
    tpot_attainment: float | None = None  # per request, known when it ends
    itl_attainment: float | None = None  # per token, known at once
    ttft_s: float | None = None  # at the objective's percentile
    tpot_s: float | None = None
    kv_usage: float | None = None  # KV blocks in use, mean over the window, in caches of one replica
    wider: tuple[Window, ...] = ()  # the same over longer windows, ascending
    prompt_tokens_mean: float | None = None  # of requests that finished within the window
    answer_tokens_mean: float | None = None

    def windows(self, window_s: float) -> tuple[Window, ...]:
        """Return what was counted over the window, of `window_s` seconds, and over the wider ones."""
        narrow = Window(
            window_s,
            self.requests,
            self.running_mean,
            self.ttft_attainment,
            self.tpot_attainment,
            self.itl_attainment,
            arrived=self.arrived,
            prompt_tokens_mean=self.prompt_tokens_mean,
            answer_tokens_mean=self.answer_tokens_mean,
        )
        return (narrow, *self.wider)

    def mixture(self, window_s: float, min_samples: int) -> Mixture | None:
        """Return the mixture over the narrowest window of five minutes or more with enough requests, or None.

        `window_s` is the length of the window that is not among the wider ones.
        """
        for window in self.windows(window_s):
            prompt, answer = window.prompt_tokens_mean, window.answer_tokens_mean
            enough = window.seconds >= _LEAST_MIXTURE_S and (window.requests or 0) >= min_samples
            if enough and prompt is not None and answer is not None:
                return Mixture(prompt, answer)
        return None


@dataclass(frozen=True, slots=True)
class RejectedSample:
    """A reading with a value that cannot be."""

    at: float
    reason: str


def sample_from(results: Mapping[str, float | str | None], at: float) -> Sample | RejectedSample:
    """Check the results of `for_deployment` (one scalar per query; None: empty vector), read at `at`.

    NaN counts as "no sample" where it can only mean 0/0; elsewhere NaN, infinity, a negative or an absurd
    number rejects the whole sample, because half a reading is worse than none.
    """
    values: dict[str, float | None] = {}
    wider: dict[float, dict[str, float | None]] = {}
    try:
        for name in PLAUSIBLE:
            values[name] = _checked(name, results.get(name))
        for key, raw in results.items():
            name, at_window, seconds = key.partition(AT_WINDOW)
            if at_window:
                wider.setdefault(float(seconds), {})[name] = _checked(name, raw)
    except ValueError as error:
        return RejectedSample(at, str(error))
    widest = max(wider, default=0.0)
    windows = (Window(s, **fields, is_widest=s == widest) for s, fields in sorted(wider.items()))
    return Sample(at=at, **values, wider=tuple(windows))


def _checked(name: str, raw: float | str | None) -> float | None:
    if raw is None:
        return None
    try:
        value = float(raw)
    except ValueError:
        raise ValueError(f"the metrics have {raw!r} for {name}") from None
    if math.isnan(value) and name in _MAY_BE_NAN:
        return None
    low, high = PLAUSIBLE[name]
    if not low <= value <= high:  # NaN and infinity fail here too
        raise ValueError(f"the metrics have {value:g} for {name}, which cannot be")
    return 1.0 if value > 1.0 and name.endswith("_attainment") else value
