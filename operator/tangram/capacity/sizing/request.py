"""The requests that replicas are sized for: lengths, load, objectives and engine settings, checked."""

import math
from dataclasses import dataclass

from tangram.capacity.load.traffic import Tokens, lengths_of
from tangram.catalog import InputError
from tangram.catalog.models.architecture import Architecture
from tangram.catalog.models.precision import kv_bytes
from tangram.fleet import DEFAULT_PERCENTILE, DEFAULT_RUNNING_REQUESTS, PERCENTILES, Lengths, Objective

LOWEST_RPS, HIGHEST_RPS = 1e-6, 1e6  # a request in eleven days is no load to size for
LONGEST_TOKENS = 10_000_000
LONGEST_MS = 1e7
HIGHEST_CV = 20.0
# Share of all requests that an engine must accept at least, where no longest request is asked for.
ACCEPTED = 0.99


@dataclass(frozen=True, slots=True)
class SizingRequest:
    """What is to be served. Raises `InputError` for the absurd."""

    input_tokens: Tokens  # of prompts; a number is a mean, with P90 twice that
    output_tokens: Tokens  # of answers
    rps: float
    ttft_ms: float | None = None
    tpot_ms: float | None = None  # per request
    percentile: int = DEFAULT_PERCENTILE  # of both objectives
    cv: float = 1.0  # of the gaps between arrivals; 1: Poisson
    engine: str | None = None
    engine_version: str | None = None
    kv_precision: str = "bf16"
    max_model_len: int | None = None  # None: what covers P99 of the lengths
    max_running: int = DEFAULT_RUNNING_REQUESTS

    def __post_init__(self) -> None:
        """Refuse what means nothing."""
        for field, lengths in (("input", self.prompts), ("output", self.answers)):
            if not 1 <= lengths.mean <= LONGEST_TOKENS:
                raise InputError(field, f"must be from 1 to {LONGEST_TOKENS} tokens, not {lengths.mean:g}")
        _whole("max-model-len", self.max_model_len, LONGEST_TOKENS)
        _whole("max-running", self.max_running, 65_536)
        if not LOWEST_RPS <= self.rps <= HIGHEST_RPS:
            raise InputError("rps", f"must be from {LOWEST_RPS:g} to {HIGHEST_RPS:g}, not {self.rps:g}")
        _positive("ttft-ms", self.ttft_ms, LONGEST_MS)
        _positive("tpot-ms", self.tpot_ms, LONGEST_MS)
        if not 0 <= self.cv <= HIGHEST_CV:
            raise InputError("cv", f"must be between 0 and {HIGHEST_CV:g}, not {self.cv}")
        if self.percentile not in PERCENTILES:
            percentiles = ", ".join(map(str, PERCENTILES))
            raise InputError("percentile", f"must be one of {percentiles}, not {self.percentile}")
        kv_bytes(self.kv_precision, "kv-precision")
        if self.engine_version and not self.engine:
            raise InputError("engine-version", "says nothing without an engine")
        tokens = self.prompts.mean + self.answers.mean
        if self.max_model_len is not None and self.max_model_len < tokens:
            raise InputError(
                "max-model-len", f"{self.max_model_len} is less than the mean request of {tokens:g} tokens"
            )

    @property
    def ttft(self) -> Objective | None:
        """The objective of the time to first token."""
        return None if self.ttft_ms is None else Objective(self.percentile, self.ttft_ms)

    @property
    def tpot(self) -> Objective | None:
        """The objective of the time per output token."""
        return None if self.tpot_ms is None else Objective(self.percentile, self.tpot_ms)

    @property
    def prompts(self) -> Lengths:
        """Lengths of prompts."""
        return lengths_of(self.input_tokens)

    @property
    def answers(self) -> Lengths:
        """Lengths of answers."""
        return lengths_of(self.output_tokens)

    def model_length(self, architecture: Architecture) -> int:
        """Return the longest request in tokens that the engine is to accept."""
        longest = architecture.max_position_embeddings
        mean = self.prompts.mean + self.answers.mean
        if mean > longest:
            raise InputError(
                "input", f"requests of {mean:g} tokens (mean) are longer than the model's limit of {longest}"
            )
        if self.max_model_len is not None:
            if self.max_model_len > longest:
                raise InputError(
                    "max-model-len", f"{self.max_model_len} is above the model's limit of {longest}"
                )
            return self.max_model_len
        most = self.prompts.quantile(ACCEPTED) + self.answers.quantile(ACCEPTED)
        covers = 2 ** math.ceil(math.log2(most))
        return int(min(longest, covers))


def _whole(field: str, value: int | None, most: int) -> None:
    if value is not None and not 1 <= value <= most:
        raise InputError(field, f"must be a whole number from 1 to {most}, not {value}")


def _positive(field: str, value: float | None, most: float) -> None:
    if value is not None and not 0 < value <= most:
        raise InputError(field, f"must be above 0 and at most {most:g}, not {value:g}")
