"""Which tokens some rows may get: bits from the host, applied to logits on their device."""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tangram_engine.sample.biases import TokenBiases


class LogitEdits(NamedTuple):
    """What is changed before tokens are chosen."""

    allowed: "AllowedTokens | None"
    biases: TokenBiases | None


class AllowedTokens(NamedTuple):
    """The rows with a constraint, and one bit for each token of the vocabulary, as llguidance writes them."""

    rows: list[int]  # of the logits
    bits: NDArray[np.int32]  # [rows, vocabulary / 32]


def edit(logits: Tensor, edits: LogitEdits) -> None:
    """Change logits [N, vocabulary] in place. No synchronisation."""
    if edits.biases is not None:
        places = torch.from_numpy(np.stack((edits.biases.rows, edits.biases.tokens)))
        values = torch.from_numpy(edits.biases.values)
        if logits.is_cuda:
            places, values = places.pin_memory(), values.pin_memory()
        rows, tokens = places.to(logits.device, non_blocking=True)
        values = values.to(logits.device, logits.dtype, non_blocking=True)
        logits.index_put_((rows, tokens), values, accumulate=True)
    if edits.allowed is not None:
        allow(logits, edits.allowed)


def allow(logits: Tensor, allowed: AllowedTokens) -> None:
    """Set the logits [N, vocabulary] of all other tokens to minus infinity, in place. No synchronisation."""
    packed = torch.from_numpy(allowed.bits.view(np.uint8))
    rows = torch.tensor(allowed.rows)
    if logits.is_cuda:
        packed, rows = packed.pin_memory(), rows.pin_memory()
    device = logits.device
    packed, rows = packed.to(device, non_blocking=True), rows.to(device, non_blocking=True)
    places = torch.arange(8, dtype=torch.uint8, device=device)
    bits = (packed[:, :, None] >> places) & 1
    forbidden = bits.view(len(rows), -1)[:, : logits.shape[-1]] == 0
    logits[rows] = logits.index_select(0, rows).masked_fill_(forbidden, float("-inf"))
