"""What requests add to the logits of single tokens, and which tokens they allow at all. Free of torch."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tangram_engine.sample.params import SamplingParams

# Added to tokens that may not come. Finite: where nothing else may follow, one of them still does.
EXCLUDED = -1e30


class TokenBiases(NamedTuple):
    """Values to add to logits, one at each place."""

    rows: NDArray[np.int64]  # of the logits
    tokens: NDArray[np.int64]
    values: NDArray[np.float32]


class RequestBiases:
    """Of one request; it is asked for each of its tokens."""

    def __init__(self, params: SamplingParams, stop_ids: frozenset[int], vocab_size: int) -> None:
        self._min_tokens = params.min_tokens
        single = dict.fromkeys((word[0] for word in params.bad_words if len(word) == 1), EXCLUDED)
        biased = [*params.logit_bias, *single.items()]
        self._biased = np.array([token for token, _ in biased], np.int64)
        self._values = np.array([value for _, value in biased], np.float32)
        self._words = [word for word in params.bad_words if len(word) > 1]
        self.recent = max(map(len, self._words), default=1) - 1  # tokens of the answer that `at` looks at
        self._stops = np.array([token for token in stop_ids if token < vocab_size], np.int64)
        self.bits = _bits(params.allowed_token_ids, vocab_size) if params.allowed_token_ids else None

    def at(self, generated: int, last: Sequence[int] = ()) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Tokens and what is added to them, behind so many tokens of the answer; `last`: `recent` of them."""
        ended = [word[-1] for word in self._words if tuple(last[1 - len(word) :]) == word[:-1]]
        early = generated < self._min_tokens
        if not (ended or early):
            return self._biased, self._values
        excluded = np.array([*dict.fromkeys([*ended, *(self._stops if early else ())])], np.int64)
        values = np.full(len(excluded), EXCLUDED, np.float32)
        return np.concatenate((self._biased, excluded)), np.concatenate((self._values, values))


def joined(rows: Sequence[tuple[int, RequestBiases, int, Sequence[int]]]) -> TokenBiases | None:
    """The biases of some rows: the index of each among the logits, how many tokens it has, the last ones."""
    parts = [(row, *biases.at(generated, last)) for row, biases, generated, last in rows]
    if not any(len(tokens) for _, tokens, _ in parts):
        return None
    return TokenBiases(
        np.concatenate([np.full(len(tokens), row, np.int64) for row, tokens, _ in parts]),
        np.concatenate([tokens for _, tokens, _ in parts]),
        np.concatenate([values for _, _, values in parts]),
    )


def _bits(tokens: Sequence[int], vocab_size: int) -> NDArray[np.int32]:
    allowed = np.zeros(-(-vocab_size // 32) * 32, np.uint8)
    allowed[list(tokens)] = 1
    return np.packbits(allowed, bitorder="little").view(np.int32)
