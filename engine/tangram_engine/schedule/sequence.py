"""The state of a request in the engine."""

import math
from collections.abc import Set
from typing import Any

from tangram_engine.schedule.request import Request

NO_SLOT = -1


class Sequence:
    """The tokens of one request and how far their keys and values have been computed.

    `tokens` holds prompt and output, as far as the ids are known; `unknown` more are sampled by steps that
    were launched and not committed yet. `computed` of all these are in the KV cache once the launched steps
    are done; the others are pending. One pending token is a decode, more are a prefill, be it of the
    prompt or, after a preemption, of everything that was there before.
    """

    __slots__ = (
        "cached",
        "computed",
        "end",
        "id",
        "keys",
        "launched",
        "preemptions",
        "prompt_length",
        "registered",
        "request",
        "scheduled",
        "scored",
        "scores",
        "slot",
        "stop_ids",
        "table",
        "tokens",
        "unknown",
    )

    def __init__(
        self, request: Request, max_model_len: int | None = None, eos_token_ids: Set[int] = frozenset()
    ) -> None:
        params = request.params
        self.request = request
        # Copies, not properties: each is read several times for every token.
        self.id = request.id
        self.prompt_length = len(request.prompt)
        self.end = self.prompt_length + params.max_tokens  # length at which the request ends
        if max_model_len is not None:
            self.end = min(self.end, max_model_len)
        eos = () if params.ignore_eos else eos_token_ids
        self.stop_ids = frozenset(params.stop_token_ids).union(eos)
        self.tokens: list[int] = list(request.prompt)
        self.unknown = 0
        self.computed = 0
        self.cached = 0  # prompt tokens that were found in the prefix cache at first admission
        self.scheduled = math.inf  # when it was first given a place in a step; not yet
        self.preemptions = 0  # how often it has lost its blocks since
        self.keys: list[bytes] = []  # of the full blocks of `tokens`, as far as they are known
        self.slot = NO_SLOT  # number of the device row and owner of the blocks
        self.launched = 0  # steps with the sequence in them that were launched and not committed yet
        self.registered = 0  # full blocks that have been found or computed by committed steps
        # Positions of the prompt whose next token has its log-probability in `scores`; None: not asked for.
        self.scored: int | None = None if params.prompt_logprobs is None else 0
        self.scores: list[Any] = []
        self.table: list[int] = []  # the block manager's own list: it grows in place

    @property
    def generated(self) -> int:
        """Tokens produced so far whose ids are known."""
        return len(self.tokens) - self.prompt_length

    @property
    def skippable(self) -> int:
        """Tokens that need not be computed if their keys and values are found in the prefix cache.

        The last token is always computed, because its logits are what the request is about, and so is each
        prompt token that has yet to be scored.
        """
        last = len(self.tokens) - 1
        return last if self.scored is None else min(last, self.scored)

    def finish_reason(self, token: int) -> str | None:
        """Why the request ends with `token`, which has just been appended; None if it goes on."""
        if token in self.stop_ids:
            return "stop"
        return "length" if len(self.tokens) >= self.end else None
