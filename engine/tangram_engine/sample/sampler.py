"""All rows of a step at once: logits in, tokens out.

In plain torch. It looks at the parameters to leave out what no row asks for, which a GPU would have to wait
for: there, the kernel that is held to the same choices takes its place.
"""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from tangram_engine.sample.filters import penalise, truncate
from tangram_engine.sample.noise import GumbelNoise, streams

# Of `parameters`, one each: temperature, top_p, min_p, repetition, presence and frequency penalty.
NEUTRAL = (0.0, 1.0, 0.0, 1.0, 0.0, 0.0)  # greedy, and nothing changes the logits


class Sampled(NamedTuple):
    """A token and, where asked for, its log-probability and the most likely tokens with theirs."""

    token: int
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, float], ...] = ()


class SamplingRows(Protocol):
    """What sampling reads and changes of the R device rows. The last is padding, its parameters neutral."""

    parameters: Tensor  # float32 [6, R], see NEUTRAL; temperature 0 is greedy
    top_k: Tensor  # int32 [R]; 0: off
    seed: Tensor  # int64 [R]
    positions: Tensor  # int32 [R], of the token that precedes the one to be drawn; one more afterwards
    last_tokens: Tensor  # int32 [R], becomes the id that was drawn
    counts: Tensor  # int32 [R, vocabulary], see IN_PROMPT; of penalised rows one more of that id


class TokenSampler(Protocol):
    """Chooses the next token of some device rows and leaves it there, for the step that feeds it."""

    def __call__(self, logits: Tensor, rows: Tensor, table: SamplingRows) -> Tensor:
        """Logits [N, vocabulary], float32 or in 16 bits, of the rows int32 [N] -> ids int32 [N].

        -1 where a row's logits are not finite: such a row feeds id 0. No row is there twice but the padding
        row, which stays as it is.
        """
        ...


class Sampler:
    """A row's token depends on its logits, its parameters, its position and the counts of its tokens."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._noise = GumbelNoise(vocab_size, device)

    def __call__(self, logits: Tensor, rows: Tensor, table: SamplingRows) -> Tensor:
        """See `TokenSampler`."""
        ids = self._choose(logits.float(), rows, table)
        keep(ids, rows, table)
        return ids

    def _choose(self, logits: Tensor, rows: Tensor, table: SamplingRows) -> Tensor:
        parameters, neutral = table.parameters.index_select(1, rows), table.parameters[:, -1:]
        if torch.equal(parameters, neutral.expand_as(parameters)):
            best, tokens = logits.max(-1)
            return _without_failed(best, tokens)
        changed = (parameters[3:] != neutral[3:]).any(0)
        adjusted = logits
        if changed.any():
            adjusted = logits.clone()
            counts = table.counts.index_select(0, rows[changed])
            adjusted[changed] = penalise(logits[changed], counts, *parameters[3:, changed])
        best, tokens = adjusted.max(-1)
        drawn = parameters[0] > 0
        if drawn.any():
            tokens[drawn] = self._draw(adjusted[drawn], rows[drawn], parameters[:3, drawn], table)
        return _without_failed(best, tokens)

    def _draw(self, logits: Tensor, rows: Tensor, parameters: Tensor, table: SamplingRows) -> Tensor:
        temperature, top_p, min_p = parameters.unbind()
        top_k = table.top_k.index_select(0, rows)
        scaled = logits / temperature[:, None]
        cut = (top_k > 0) | (top_p < 1.0) | (min_p > 0.0)
        if cut.any():
            scaled[cut] = truncate(scaled[cut], top_k[cut], top_p[cut], min_p[cut])
        drawn_at = table.positions.index_select(0, rows).long() + 1
        noise = self._noise(streams(table.seed.index_select(0, rows), drawn_at))
        return (scaled + noise).argmax(-1)


def keep(ids: Tensor, rows: Tensor, table: SamplingRows) -> None:
    """Leave the ids int32 [N] to the next step; see `TokenSampler`. It waits for the device."""
    neutral = table.parameters[3:, -1:]
    real = rows != table.positions.shape[0] - 1
    rows, ids = rows[real].long(), ids[real].clamp_min(0)
    table.last_tokens[rows] = ids
    table.positions[rows] += 1
    penalised = (table.parameters[3:, rows] != neutral).any(0)
    if penalised.any():
        table.counts[rows[penalised], ids[penalised].long()] += 1


def logprobs(logits: Tensor, tokens: Tensor, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities of the model itself: before penalties, temperature and truncation.

    Logits [N, vocabulary] and chosen tokens [N] -> those of the tokens [N]; the `most` most likely ids and
    theirs, [N, most] each.
    """
    log_probabilities = logits.log_softmax(-1, torch.float32)
    chosen = log_probabilities.gather(-1, tokens.long().clamp_min(0)[:, None])[:, 0]
    top = log_probabilities.topk(min(most, logits.shape[-1]))
    return chosen, top.indices, top.values


def _without_failed(best: Tensor, tokens: Tensor) -> Tensor:
    return tokens.int().masked_fill_(~best.isfinite(), -1)
