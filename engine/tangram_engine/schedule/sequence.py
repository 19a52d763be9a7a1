"""A request on its way through the engine."""

import math

from tangram_engine.schedule.request import Request


class Sequence:
    """The tokens of one request and how far their keys and values have been computed.

    `tokens` holds prompt and output. `computed` of them are in the KV cache; the others are pending.
    One pending token is a decode, more are a prefill, be it of the prompt or, after a preemption, of
    everything that was there before.
    """

    __slots__ = ("cached", "computed", "keys", "preemptions", "request", "scheduled", "table", "tokens")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.tokens: list[int] = list(request.prompt)
        self.computed = 0
        self.cached = 0  # prompt tokens that were found in the prefix cache at first admission
        self.scheduled = math.inf  # when it was first given a place in a step; not yet
        self.preemptions = 0  # how often it has lost its blocks since
        self.keys: list[bytes] = []  # names of the full blocks of `tokens`, as far as they are known
        self.table: list[int] = []  # the block manager's own list: it grows in place

    @property
    def id(self) -> str:
        """The request's id."""
        return self.request.id

    @property
    def prompt_length(self) -> int:
        """Tokens in the prompt."""
        return len(self.request.prompt)

    @property
    def generated(self) -> int:
        """Tokens produced so far."""
        return len(self.tokens) - len(self.request.prompt)

    @property
    def pending(self) -> int:
        """Tokens whose keys and values are yet to be computed; at least 1 while the sequence lives."""
        return len(self.tokens) - self.computed
