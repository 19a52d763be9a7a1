"""What changes or excludes logits before a token is drawn. N rows at once, each with its own parameters."""

import torch
from torch import Tensor

IN_PROMPT = 1 << 30  # in counts of tokens: the token is in the prompt; lower bits count it in the output
WINDOW = 1024  # most likely tokens that are sorted before the whole vocabulary is


def penalise(
    logits: Tensor, counts: Tensor, repetition: Tensor, presence: Tensor, frequency: Tensor
) -> Tensor:
    """Logits [N, vocabulary] with the three penalties [N] applied; counts int32 [N, vocabulary].

    The repetition penalty pulls every seen token's logit towards the unlikely side by a factor (CTRL,
    arXiv:1909.05858, section 4.1); the other two subtract once per token or once per occurrence (OpenAI).
    """
    factor = repetition[:, None]
    pulled = torch.where(logits > 0, logits / factor, logits * factor)
    times = counts & (IN_PROMPT - 1)
    subtracted = frequency[:, None] * times + presence[:, None] * (times > 0)
    return torch.where(counts != 0, pulled, logits) - subtracted


def truncate(logits: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """Logits [N, vocabulary] with the tokens beyond top-k (0: off), top-p or min-p at minus infinity.

    The most likely token always stays; tokens as likely as the last one that stays, stay too.
    """
    vocab_size = logits.shape[-1]
    width = min(vocab_size, max(WINDOW, int(top_k.max())))
    limit = torch.where(top_k > 0, top_k, vocab_size)[:, None]
    lowest, complete = _lowest_kept(logits, limit, top_p[:, None], min_p[:, None], width)
    if not complete and width < vocab_size:
        lowest, _ = _lowest_kept(logits, limit, top_p[:, None], min_p[:, None], vocab_size)
    return logits.masked_fill(logits < lowest, float("-inf"))


def _lowest_kept(
    logits: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, width: int
) -> tuple[Tensor, bool]:
    """The smallest logit that stays in each row, judged by the `width` largest; and whether these suffice."""
    best = logits.topk(width).values
    in_top_k = torch.arange(width, device=logits.device) < top_k
    best = best.masked_fill(~in_top_k, float("-inf"))
    rest = torch.where(top_k > width, logits.logsumexp(-1, keepdim=True), best.logsumexp(-1, keepdim=True))
    likely = (best - rest).exp()
    before = likely.cumsum(-1) - likely  # probability of everything more likely
    keep = in_top_k & (before < top_p)
    keep &= likely >= min_p * likely[:, :1]
    keep[:, 0] = True
    complete = not bool((keep[:, -1:] & (top_k > width)).any())
    return best.masked_fill(~keep, float("inf")).amin(-1, keepdim=True), complete
