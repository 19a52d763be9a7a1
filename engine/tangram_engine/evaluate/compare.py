"""A quantised format against the checkpoint's own, token by token, on a device that may hold neither model.

Both models are run over the same text, teacher-forced: at each position, each predicts the token that the
text has next. No model is ever in memory as a whole: a projection is read when the decoder comes to it,
quantised if it is the quantised model's, multiplied with the tokens of all windows, and let go of. So the
comparison runs on the very slice that only the quantised model fits. The memory is that of embedding, head,
one projection in both forms, and the activations of `PASS_TOKENS` tokens; the log-probabilities of both
models meet a few rows at a time, over the whole vocabulary.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tangram_engine.checkpoint import Checkpoint, DecoderSpec
from tangram_engine.kernels.ops import Ops, kernel_ops, reference_ops, why_not_kernels
from tangram_engine.kernels.rms_norm import RmsNorm
from tangram_engine.models import Decoder
from tangram_engine.models.rope import Rope
from tangram_engine.models.weights import (
    LayerWeights,
    MakeProjection,
    Projection,
    ReadMatrix,
    Weights,
    assemble,
    in_place,
    stored_tensors,
)
from tangram_engine.run.attention.reference import Span, TorchAttention

WINDOW = 512  # tokens: the context of a token is half of it on average
PASS_TOKENS = 4096  # in one pass through the layers; more text reads the checkpoint again
_BLOCK = 16  # tokens
_LOGIT_BYTES = 64 << 20  # of one model's float32 logits at a time


@dataclass(frozen=True, slots=True)
class Comparison:
    """What quantisation changes, per scored token. KL is that of the own format from the quantised one."""

    tokens: int  # scored
    perplexity: float
    quantised_perplexity: float
    perplexity_increase: float  # share of `perplexity`
    standard_error: float  # of `perplexity_increase`, tokens taken as independent
    top1_agreement: float  # share of positions at which both rank the same token first
    kl_mean: float  # nats, exact over the vocabulary
    kl_p99: float

    @property
    def is_finite(self) -> bool:
        """Whether every figure is a number."""
        return all(map(math.isfinite, (self.perplexity, self.quantised_perplexity, self.kl_p99)))


def windows(ids: Sequence[int], spec: DecoderSpec, tokens: int) -> list[tuple[int, ...]]:
    """Cut a text into windows that score `tokens` tokens together, fewer where it is shorter.

    Each begins with the token that texts begin with, where the model has one.
    """
    first = () if spec.bos_token_id is None else (spec.bos_token_id,)
    if first and ids[:1] == first:
        ids = ids[1:]
    size = min(WINDOW, spec.max_position_embeddings) - len(first)
    selected, scored = [], 0
    for start in range(0, len(ids), size):
        window = (*first, *ids[start : start + size])[: tokens - scored + 1]
        if len(window) > 1:
            selected.append(window)
            scored += len(window) - 1
    return selected


def compare(
    checkpoint: Checkpoint,
    texts: Sequence[Sequence[int]],
    make: MakeProjection,
    dtype: torch.dtype,
    device: torch.device,
) -> Comparison:
    """Compare the checkpoint as it is stored with projections that `make` quantises, over windows of ids."""
    parts: list[Tensor] = []
    with torch.inference_mode():
        for batch in _passes(texts):
            own, head = _hidden(checkpoint, batch, in_place, dtype, device)
            other, other_head = _hidden(checkpoint, batch, make, dtype, device)
            parts.append(_scores(batch, own, head, other, other_head, checkpoint.spec.vocab_size))
    return summary(torch.cat(parts, 1))


def summary(scores: Tensor) -> Comparison:
    """Scores [4, tokens], float64: negative log-likelihoods of both, agreement, KL."""
    own, other, agree, kl = scores
    tokens = scores.shape[1]
    difference = other - own
    increase = math.expm1(min(difference.mean().item(), 100.0))
    spread = difference.std().item() if tokens > 1 else 0.0
    return Comparison(
        tokens=tokens,
        perplexity=math.exp(min(own.mean().item(), 100.0)),
        quantised_perplexity=math.exp(min(other.mean().item(), 100.0)),
        perplexity_increase=increase,
        standard_error=(1 + increase) * spread / math.sqrt(tokens),
        top1_agreement=agree.mean().item(),
        kl_mean=kl.mean().item(),
        kl_p99=kl.sort().values[math.ceil(0.99 * tokens) - 1].item(),
    )


def _passes(texts: Sequence[Sequence[int]]) -> Iterator[list[Sequence[int]]]:
    batch: list[Sequence[int]] = []
    for text in texts:
        if batch and sum(map(len, batch)) + len(text) > PASS_TOKENS:
            yield batch
            batch = []
        batch.append(text)
    if batch:
        yield batch


def _hidden(
    checkpoint: Checkpoint,
    batch: Sequence[Sequence[int]],
    make: MakeProjection,
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[Tensor, Projection]:
    """Run one model; return hidden states [tokens of the batch, hidden] and its norm with the head."""
    spec = checkpoint.spec
    source = stored_tensors(checkpoint)
    ops = reference_ops() if why_not_kernels(device) else kernel_ops()
    weights: Weights = assemble(spec, source, dtype, device, ops, _when_needed(make))
    attention = _Windows(spec, batch, dtype, device)
    ids = torch.tensor([token for text in batch for token in text], device=device)
    head = partial(weights.head, norm=weights.norm)
    return Decoder(spec, weights).forward(ids, attention.attend), head


def _when_needed(make: MakeProjection) -> MakeProjection:
    """Return projections that are read and made for each call, and kept nowhere."""

    def later(read: ReadMatrix, ops: Ops) -> Projection:
        def multiply(x: Tensor, norm: RmsNorm | None = None, **options: Any) -> Tensor:
            return make(read, ops)(x, norm, **options)

        return multiply

    return later


class _Windows:
    """The engine's own attention over windows side by side; a pool of one layer serves them all in turn."""

    def __init__(
        self, spec: DecoderSpec, batch: Sequence[Sequence[int]], dtype: torch.dtype, device: torch.device
    ) -> None:
        spans, blocks = [], 0
        for text in batch:
            needed = -(-len(text) // _BLOCK)
            spans.append(Span(0, len(text), range(blocks, blocks + needed)))
            blocks += needed
        longest = max(map(len, batch))
        rope = Rope(spec, longest, dtype, device)
        self._attention = TorchAttention(replace(spec, layers=1), rope, blocks, _BLOCK, dtype)
        positions = torch.cat([torch.arange(len(text)) for text in batch]).to(device)
        self._attention.plan(spans, positions)

    def attend(self, index: int, qkv: Tensor, layer: LayerWeights) -> Tensor:
        """See `tangram_engine.models.decoder.Attend`."""
        return self._attention.attend(0, qkv, layer)


def _scores(
    batch: Sequence[Sequence[int]],
    own: Tensor,
    head: Projection,
    other: Tensor,
    other_head: Projection,
    vocabulary: int,
) -> Tensor:
    """Score every token but the first of each window. [4, tokens], float64, on the CPU."""
    ends = torch.tensor([len(text) for text in batch]).cumsum(0) - 1
    follows = torch.ones(own.shape[0], dtype=torch.bool)
    follows[ends] = False  # the last token of a window is followed by none
    rows = follows.nonzero().flatten().to(own.device)
    targets = torch.tensor([token for text in batch for token in text[1:]], device=own.device)
    step = max(1, _LOGIT_BYTES // (4 * vocabulary))
    parts = []
    for start in range(0, len(rows), step):
        some, target = rows[start : start + step], targets[start : start + step, None]
        p = head(own[some]).float().log_softmax(-1)
        q = other_head(other[some]).float().log_softmax(-1)
        kl = (p.exp() * (p - q)).sum(-1).clamp_min(0.0)
        agree = p.argmax(-1) == q.argmax(-1)
        nll = -p.gather(1, target)[:, 0], -q.gather(1, target)[:, 0]
        parts.append(torch.stack([tensor.double().cpu() for tensor in (*nll, agree, kl)]))
    return torch.cat(parts, 1)
