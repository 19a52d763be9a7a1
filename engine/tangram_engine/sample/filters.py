"""What changes or excludes logits before a token is drawn."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tangram_engine.sample.params import SamplingParams

Integers = npt.NDArray[np.int64]
_SORTED_IDS = 16  # ids of the vocabulary that are counted in the time in which one token is sorted
WINDOW = 1024  # most likely tokens that are sorted before the whole vocabulary is


def penalise(logits: Tensor, prompt: Sequence[int], output: Sequence[int], params: SamplingParams) -> Tensor:
    """One row [vocabulary] with the three penalties applied.

    The repetition penalty pulls every seen token's logit towards the unlikely side by a factor (CTRL,
    arXiv:1909.05858, section 4.1); the other two subtract once per token or once per occurrence (OpenAI).
    Only the logits of tokens that are there are touched: a vocabulary has a hundred times as many.
    """
    penalised, vocab_size = logits.clone(), logits.shape[-1]
    generated = np.array(output, np.int64)
    factor = params.repetition_penalty
    if factor != 1.0:
        seen, _ = _counted(np.concatenate([np.array(prompt, np.int64), generated]), vocab_size)
        rows = torch.from_numpy(seen).to(logits.device)
        before = logits[rows]
        penalised[rows] = torch.where(before > 0, before / factor, before * factor)
    if params.frequency_penalty or params.presence_penalty:
        ids, times = _counted(generated, vocab_size)
        counts = torch.from_numpy(times).to(logits)
        rows = torch.from_numpy(ids).to(logits.device)
        penalised[rows] -= params.frequency_penalty * counts + params.presence_penalty
    return penalised


def _counted(tokens: Integers, vocab_size: int) -> tuple[Integers, Integers]:
    """Distinct tokens and how often each is there; sorting few is less work than counting all ids."""
    if _SORTED_IDS * len(tokens) < vocab_size:
        return np.unique(tokens, return_counts=True)
    times = np.bincount(tokens, minlength=vocab_size)
    ids = np.flatnonzero(times)
    return ids, times[ids]


def truncate(logits: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Rows [N, vocabulary] with the tokens beyond top-k, top-p or min-p at minus infinity.

    The most likely token always stays; tokens as likely as the last one that stays, stay too.
    """
    vocab_size = logits.shape[-1]
    width = min(vocab_size, max(WINDOW, *(row.top_k for row in params)))
    lowest, complete = _lowest_kept(logits, params, width)
    if not complete and width < vocab_size:
        lowest, _ = _lowest_kept(logits, params, vocab_size)
    return logits.masked_fill(logits < lowest, float("-inf"))


def _lowest_kept(logits: Tensor, params: Sequence[SamplingParams], width: int) -> tuple[Tensor, bool]:
    """The smallest logit that stays in each row, judged by the `width` largest; and whether these suffice."""

    def column(values: Sequence[float]) -> Tensor:
        return torch.tensor(values, device=logits.device)[:, None]

    top_k = column([row.top_k or logits.shape[-1] for row in params])
    best = logits.topk(width).values
    in_top_k = torch.arange(width, device=logits.device) < top_k
    best = best.masked_fill(~in_top_k, float("-inf"))
    rest = torch.where(top_k > width, logits.logsumexp(-1, keepdim=True), best.logsumexp(-1, keepdim=True))
    likely = (best - rest).exp()
    before = likely.cumsum(-1) - likely  # probability of everything more likely
    keep = in_top_k & (before < column([row.top_p for row in params]))
    keep &= likely >= column([row.min_p for row in params]) * likely[:, :1]
    keep[:, 0] = True
    complete = not bool((keep[:, -1:] & (top_k > width)).any())
    return best.masked_fill(~keep, float("inf")).amin(-1, keepdim=True), complete
