"""Grammars of answers: which tokens may follow, by llguidance. Free of torch.

A matcher is compiled in a thread, because a large schema takes longer than a step; the library releases the
interpreter's lock for it, and for the masks. The API process has had each grammar compiled once, in the text
process, under its limits.
"""

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tangram_engine.sample.vocabulary import Vocabulary

ADVANCE_CPU_S = 0.05  # for one token of one answer; masks have limits of the library
_THREADS = 1  # that compile
_LONGEST = 255  # bytes of a token that a grammar may allow; llguidance panics beyond 256
_LONGEST_FORCED = 32  # bytes of a token in a text that a grammar leaves no choice about
_FORCED_BYTES = 512  # of such a text that become tokens: a step takes one of them


class RefusedGrammar(Exception):
    """A grammar that this model's tokens cannot follow, or whose first token takes too much."""


class _Tokens:
    """What llguidance asks of a tokenizer."""

    bos_token_id = None

    def __init__(self, tokens: list[bytes], special: list[int], end: int) -> None:
        self.tokens = tokens
        self.special_token_ids = special
        self.eos_token_id = end
        excluded = frozenset(special)
        texts = ((text, token) for token, text in enumerate(tokens) if 0 < len(text) <= _LONGEST_FORCED)
        self._by_text = {text: token for text, token in texts if token not in excluded}

    def __call__(self, text: bytes) -> list[int]:
        """Tokens of the beginning of a text to which a grammar leaves no choice, the longest first."""
        ids: list[int] = []
        at = 0
        while at < min(len(text), _FORCED_BYTES):
            ends = range(min(len(text), at + _LONGEST_FORCED), at, -1)
            end = next((end for end in ends if text[at:end] in self._by_text), None)
            if end is None:  # a byte without a token
                break
            ids.append(self._by_text[text[at:end]])
            at = end
        return ids


@dataclass(slots=True)
class Grammars:
    """The matchers of running requests, by id."""

    vocab_size: int
    _tokenizer: "Future[Any] | None" = None
    _matchers: dict[str, Any] = field(default_factory=dict)
    _threads: ThreadPoolExecutor | None = None
    _parallel: Any = None

    def use(self, vocabulary: Vocabulary) -> None:
        """Prepare the vocabulary, which every grammar needs, in the thread that compiles them."""
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="grammar")
        self._tokenizer = self._threads.submit(_tokenizer, vocabulary, self.vocab_size)

    def compile(self, grammar: str) -> "Future[Any]":
        """A matcher in the future. Raises RefusedGrammar in it, and RuntimeError without a vocabulary."""
        tokenizer = self._tokenizer
        if self._threads is None or tokenizer is None:
            raise RuntimeError("a grammar was sent before the vocabulary")
        return self._threads.submit(lambda: _matcher(tokenizer.result(), grammar))

    def begin(self, request_id: str, matcher: Any) -> None:
        """Constrain the answer of a request from its next token on."""
        self._matchers[request_id] = matcher

    def end(self, request_id: str) -> None:
        """Forget the matcher of a request that has ended."""
        self._matchers.pop(request_id, None)

    def __bool__(self) -> bool:
        """Whether any answer is constrained."""
        return bool(self._matchers)

    def advance(self, request_id: str, token: int) -> bool:
        """Take a token of an answer; whether it may go on. Where nothing may follow, an end token may.

        An ambiguous grammar takes ever longer: it ends before the other rows of a step wait for long.
        """
        matcher = self._matchers.get(request_id)
        if matcher is None:
            return True
        begin = time.thread_time()
        taken = bool(matcher.consume_token(token))
        return taken and time.thread_time() - begin < ADVANCE_CPU_S

    def failed(self, request_id: str) -> bool:
        """Whether what may follow could not be computed within llguidance's limits."""
        matcher = self._matchers.get(request_id)
        return matcher is not None and bool(matcher.is_error())

    def constrained(self, request_ids: Sequence[str]) -> list[int]:
        """The indices of those whose answers are constrained."""
        return [index for index, request_id in enumerate(request_ids) if request_id in self._matchers]

    def bits(self, request_ids: Sequence[str]) -> NDArray[np.int32]:
        """One bit for each token that may follow, of each of these requests."""
        import llguidance.numpy as masks  # noqa: PLC0415
        from llguidance import LLExecutor  # noqa: PLC0415

        if self._parallel is None:
            self._parallel = LLExecutor()
        bits = masks.allocate_token_bitmask(len(request_ids), self.vocab_size)
        work = [(self._matchers[request_id], index) for index, request_id in enumerate(request_ids)]
        masks.fill_next_token_bitmask_par(self._parallel, work, bits)
        return bits


def _tokenizer(vocabulary: Vocabulary, vocab_size: int) -> Any:
    from llguidance import LLTokenizer, TokenizerWrapper  # noqa: PLC0415  (for those who use grammars)

    tokens = [text if len(text) <= _LONGEST else b"" for text in vocabulary.tokens[:vocab_size]]
    tokens += [b""] * (vocab_size - len(tokens))
    ends = [token for token in vocabulary.ends if token < vocab_size]
    if not ends:
        raise ValueError("the model has no token that ends an answer")
    special = sorted({*ends, *(token for token in vocabulary.special if token < vocab_size)})
    wrapper = TokenizerWrapper(_Tokens(tokens, special, ends[0]))
    return LLTokenizer(wrapper, n_vocab=vocab_size, eos_token=ends)


def _matcher(tokenizer: Any, grammar: str) -> Any:
    from llguidance import LLMatcher, LLParserLimits  # noqa: PLC0415

    # An error with the grammar in it would reach the log.
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=LLParserLimits(verbose_errors=False))
    if not matcher.is_error():
        matcher.compute_bitmask()  # the first one takes longest; the library keeps what the next ones need
    if matcher.is_error():
        raise RefusedGrammar
    return matcher
