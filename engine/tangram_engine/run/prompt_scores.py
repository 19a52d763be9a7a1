"""Log-probabilities of the tokens of prompts, from the hidden states that a prefill has anyway.

The hidden state of a position gives the distribution of the token behind it. Logits of a whole chunk would
take gigabytes: they are computed for a few positions at a time.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tangram_engine.sample.prompt_logprobs import PromptLogprobs
from tangram_engine.sample.sampler import logprobs
from tangram_engine.schedule import BatchRow
from tangram_engine.schedule import Sequence as Tokens


class _Scores(NamedTuple):
    """Of N positions; see PromptLogprobs."""

    logprobs: Tensor
    ranks: Tensor
    top_ids: Tensor
    top_logprobs: Tensor


@dataclass(frozen=True, slots=True)
class ScoredChunk:
    """A part of a prompt whose next tokens were scored."""

    sequence: Tokens
    start: int  # its first position
    scores: _Scores

    def moved(self, copy: Callable[[Tensor], Tensor]) -> "ScoredChunk":
        """With its tensors elsewhere."""
        return ScoredChunk(self.sequence, self.start, _Scores(*map(copy, self.scores)))

    def keep(self) -> PromptLogprobs | None:
        """Add it to its sequence; the scores of the whole prompt, once they are there.

        A chunk that is computed again after a preemption adds what is new in it.
        """
        sequence, known = self.sequence, self.sequence.scored or 0
        arrays = [tensor.numpy()[known - self.start :] for tensor in self.scores]
        if not len(arrays[0]):
            return None
        sequence.scored = known + len(arrays[0])
        sequence.scores.append(arrays)
        return _joined(sequence.scores) if sequence.scored == sequence.prompt_length - 1 else None


def _joined(parts: list[Sequence[NDArray[np.generic]]]) -> PromptLogprobs:
    return PromptLogprobs(*(b"".join(a.tobytes() for a in arrays) for arrays in zip(*parts, strict=True)))


def score(
    rows: Sequence[BatchRow], hidden: Tensor, logits: Callable[[Tensor], Tensor], at_once: int
) -> Iterator[ScoredChunk]:
    """Score the rows that ask for it. `hidden` [T, hidden] of all tokens of the rows, one after the other.

    `logits` of at most `at_once` positions exist at a time.
    """
    begin = 0
    for row in rows:
        sequence, states = row.sequence, hidden[begin : begin + row.length]
        begin += row.length
        most, end = sequence.request.params.prompt_logprobs, sequence.prompt_length - 1
        if most is None or row.start >= end:
            continue
        next_tokens = sequence.tokens[row.start + 1 : min(row.start + row.length, end) + 1]
        targets = torch.tensor(next_tokens, pin_memory=hidden.is_cuda).to(hidden.device, non_blocking=True)
        states = states[: len(targets)]
        places = (slice(at, at + at_once) for at in range(0, len(targets), at_once))
        parts = [_scores(logits(states[some]), targets[some], most) for some in places]
        yield ScoredChunk(sequence, row.start, _Scores(*map(torch.cat, zip(*parts, strict=True))))


def _scores(logits: Tensor, tokens: Tensor, most: int) -> _Scores:
    ranks = (logits > logits.gather(-1, tokens[:, None])).sum(-1, dtype=torch.int32) + 1
    chosen, top_ids, top_values = logprobs(logits, tokens, most)
    return _Scores(chosen, ranks, top_ids.int(), top_values)
