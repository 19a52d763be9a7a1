"""What a token adds to the text of an answer."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One token of an answer with its alternatives; `offset` is where its text begins in the answer."""

    token: int
    logprob: float | None  # None: of the first token of a prompt
    top: tuple[tuple[int, float], ...]
    offset: int


@dataclass(slots=True)  # not frozen: building one takes half the time, and every token builds one
class Delta:
    """What one token added to one answer. `finish` is set on the last: "stop" or "length".

    `stop` is the stop string that ended the answer, if one did.
    """

    index: int
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()
    finish: str | None = None
    stop: str | None = None
