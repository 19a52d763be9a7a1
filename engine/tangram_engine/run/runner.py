"""One forward pass over a scheduled batch."""

from collections.abc import Sequence

import torch
from torch import Tensor

from tangram_engine.models import Decoder
from tangram_engine.run.attention import Attention, Span, decode_first
from tangram_engine.schedule import Row


class Runner:
    """Turns rows into tensors, runs the decoder, and returns logits where a token is due."""

    def __init__(self, decoder: Decoder, attention: Attention, device: torch.device) -> None:
        self.decoder = decoder
        self.attention = attention
        self.device = device

    def forward(self, rows: Sequence[Row]) -> tuple[list[Row], Tensor]:
        """The rows that sample, and their logits [len, vocabulary] in that order."""
        pairs = [(Span(row.start, row.length, row.sequence.table), row) for row in rows]
        pairs.sort(key=lambda pair: decode_first(pair[0]))
        sampling: list[Row] = []
        last: list[int] = []
        ids: list[int] = []
        positions: list[int] = []
        for _, row in pairs:
            ids += row.tokens
            positions += range(row.start, row.start + row.length)
            if row.samples:
                sampling.append(row)
                last.append(len(ids) - 1)
        self.attention.plan([span for span, _ in pairs], self._tensor(positions))
        hidden = self.decoder.forward(self._tensor(ids), self.attention.attend)
        if len(last) < len(ids):
            hidden = hidden.index_select(0, self._tensor(last))
        return sampling, self.decoder.logits(hidden)

    def _tensor(self, values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.device)
