"""All rows of a step at once: logits in, tokens out."""

from collections.abc import Sequence as Ordered
from dataclasses import dataclass

import torch
from torch import Tensor

from tangram_engine.sample.filters import penalise, truncate
from tangram_engine.sample.noise import GumbelNoise, derived_seed, stream
from tangram_engine.schedule import Sequence


@dataclass(frozen=True, slots=True)
class Sampled:
    """A token and, where asked for, its log-probability and the most likely tokens with theirs."""

    token: int
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, float], ...] = ()


class Sampler:
    """Holds no state of requests: a row's token depends on its logits, its tokens and its parameters."""

    def __init__(self, vocab_size: int, seed: int, device: torch.device) -> None:
        self._seed = seed
        self._noise = GumbelNoise(vocab_size, device)

    def sample(self, sequences: Ordered[Sequence], logits: Tensor) -> list[Sampled | None]:
        """One result per row of `logits` [N, vocabulary], float32; None where they are not finite."""
        params = [sequence.request.params for sequence in sequences]
        if all(row.plain for row in params):
            best, tokens = logits.max(-1)
        else:
            adjusted = self._penalised(sequences, logits)
            best, tokens = adjusted.max(-1)
            drawn = [index for index, row in enumerate(params) if not row.greedy]
            if drawn:
                tokens[drawn] = self._draw([sequences[index] for index in drawn], adjusted[drawn])
        results: list[Sampled | None] = [
            Sampled(token) if finite else None
            for token, finite in zip(tokens.tolist(), best.isfinite().tolist(), strict=True)
        ]
        asked = [i for i, row in enumerate(params) if row.logprobs is not None and results[i] is not None]
        if asked:
            counts = [params[index].logprobs or 0 for index in asked]
            for index, result in zip(asked, _logprobs(logits[asked], tokens[asked], counts), strict=True):
                results[index] = result
        return results

    def _draw(self, sequences: list[Sequence], logits: Tensor) -> Tensor:
        params = [sequence.request.params for sequence in sequences]
        temperatures = torch.tensor([row.temperature for row in params], device=logits.device)
        scaled = logits / temperatures[:, None]
        cut = [index for index, row in enumerate(params) if row.truncated]
        if cut:
            scaled[cut] = truncate(scaled[cut], [params[index] for index in cut])
        return (scaled + self._noise([self._stream(sequence) for sequence in sequences])).argmax(-1)

    def _stream(self, sequence: Sequence) -> int:
        seed = sequence.request.params.seed
        if seed is None:
            seed = derived_seed(self._seed, sequence.id)
        return stream(seed, len(sequence.tokens))

    def _penalised(self, sequences: Ordered[Sequence], logits: Tensor) -> Tensor:
        rows = [index for index, sequence in enumerate(sequences) if sequence.request.params.penalised]
        if not rows:
            return logits
        adjusted = logits.clone()
        for index in rows:
            sequence = sequences[index]
            output = sequence.tokens[sequence.prompt_length :]
            request = sequence.request
            adjusted[index] = penalise(logits[index], request.prompt, output, request.params)
        return adjusted


def _logprobs(logits: Tensor, tokens: Tensor, counts: list[int]) -> list[Sampled]:
    """Log-probabilities of the model itself: before penalties, temperature and truncation."""
    logprobs = logits.log_softmax(-1)
    chosen = logprobs.gather(-1, tokens[:, None])[:, 0].tolist()
    top = logprobs.topk(min(max(counts), logits.shape[-1]))
    rows = zip(tokens.tolist(), chosen, top.indices.tolist(), top.values.tolist(), counts, strict=True)
    return [
        Sampled(token, logprob, tuple(zip(ids[:count], values[:count], strict=True)))
        for token, logprob, ids, values, count in rows
    ]
