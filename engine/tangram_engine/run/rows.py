"""What the device knows of the running requests: one row each, kept from step to step.

A row's number is the slot that the scheduler gave to its sequence. A step uploads only what changed: the
whole row of a sequence that was admitted, blocks that tables grew by, and where the chunks of prompts end.
All of it travels in one pinned buffer and is scattered on the device; nothing waits for the device. Sampled
ids never leave it before they are fed again: the sampler puts them into `last_tokens`.

The last row is padding for batches of a fixed size. Its table names a block that no request owns.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tangram_engine.sample.filters import IN_PROMPT
from tangram_engine.sample.noise import MASK, derived_seed, signed
from tangram_engine.sample.params import SamplingParams
from tangram_engine.sample.sampler import NEUTRAL
from tangram_engine.schedule import BatchRow
from tangram_engine.schedule import Sequence as Tokens

_FIXED_BYTES = 3 * 4 + len(NEUTRAL) * 4 + 8  # of a row without table and counts


def device_rows_bytes(max_num_seqs: int, max_model_len: int, block_size: int, vocab_size: int) -> int:
    """Bytes of all rows: (sequences + 1) * (44 + 4 * (blocks of the longest sequence + vocabulary))."""
    blocks = -(-max_model_len // block_size)
    return (max_num_seqs + 1) * (_FIXED_BYTES + 4 * (blocks + vocab_size))


class DeviceRows:
    """R = max_num_seqs + 1 rows of static shape and address. Alike on CPU and CUDA.

    During a step, `positions` holds the position of the last token that a row feeds, if the step samples for
    it, and otherwise that of the next one; `last_tokens` is the id of the last token of its sequence. The
    sampler moves both on (`tangram_engine.sample.sampler.SamplingRows`).
    """

    def __init__(
        self,
        max_num_seqs: int,
        max_model_len: int,
        block_size: int,
        vocab_size: int,
        device: torch.device,
        seed: int = 0,
    ) -> None:
        rows, self.device, self.vocab_size = max_num_seqs + 1, device, vocab_size
        self.padding = max_num_seqs
        self._seed = seed

        def zeros(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.tables = zeros(rows, -(-max_model_len // block_size))
        self.fed = zeros(2, rows)  # together: each step looks both up for its rows
        self.last_tokens, self.positions = self.fed
        self.top_k = zeros(rows)  # 0: off
        self.seed = zeros(rows, dtype=torch.int64)
        self.parameters = torch.tensor(NEUTRAL, device=device)[:, None].repeat(1, rows)
        self.temperature, self.top_p, self.min_p = self.parameters[:3]
        self.repetition, self.presence, self.frequency = self.parameters[3:]
        # Of penalised rows only. On a CPU, memory is committed when it is touched: not for the other rows.
        self.counts = zeros(rows, vocab_size)
        self._uploaded = [0] * rows  # entries of each table that the device has

    def pad_with(self, block: int) -> None:
        """Let the padding row write into this block, which must belong to no request."""
        self.tables[self.padding].fill_(block)

    def update(self, rows: Sequence[BatchRow]) -> None:
        """Bring the device rows up to date with what a step computes. No synchronisation."""
        upload = _Upload()
        uploaded = self._uploaded
        for sequence, start, length, samples, first in rows:
            if first:
                self._admit(upload, sequence)
            if first or length > 1 or not samples:
                upload.positions.append((sequence.slot, start + length - samples))
            if len(sequence.table) > uploaded[sequence.slot]:
                self._extend_table(upload, sequence)
        if upload.positions or upload.blocks:
            self._scatter(upload)

    def _admit(self, upload: "_Upload", sequence: Tokens) -> None:
        request, params = sequence.request, sequence.request.params
        seed = derived_seed(self._seed, request.id) if params.seed is None else params.seed
        upload.slots.append(sequence.slot)
        upload.last_tokens.append(sequence.tokens[-1])
        upload.top_k.append(0 if params.greedy else min(params.top_k, self.vocab_size))
        upload.seeds.append(signed(seed & MASK))
        upload.parameters.append(_parameters(params))
        self._uploaded[sequence.slot] = 0
        if params.penalised:
            upload.cleared.append(sequence.slot)
            occurrences = np.zeros(self.vocab_size, np.int64)
            output = np.array(sequence.tokens[sequence.prompt_length :], np.int64)
            occurrences += np.bincount(output, minlength=self.vocab_size)
            occurrences[list(request.prompt)] |= IN_PROMPT
            ids = np.flatnonzero(occurrences)
            upload.counts.append(np.stack((sequence.slot * self.vocab_size + ids, occurrences[ids])))

    def _extend_table(self, upload: "_Upload", sequence: Tokens) -> None:
        table, uploaded = sequence.table, self._uploaded[sequence.slot]
        first = sequence.slot * self.tables.shape[1]
        upload.blocks += zip(range(first + uploaded, first + len(table)), table[uploaded:], strict=True)
        self._uploaded[sequence.slot] = len(table)

    def _scatter(self, upload: "_Upload") -> None:
        pairs = [np.array(upload.positions).T, np.array(upload.blocks).T]
        rows = [upload.slots, upload.last_tokens, upload.top_k, upload.seeds, upload.cleared]
        floats = np.array(upload.parameters).T.reshape(-1).view(np.int64)
        counts = np.concatenate(upload.counts, axis=1) if upload.counts else np.empty((2, 0), np.int64)
        parts = [*(pair.reshape(-1) for pair in pairs), counts.reshape(-1), floats, *map(_integers, rows)]
        packed = torch.from_numpy(np.concatenate([part.astype(np.int64, copy=False) for part in parts]))
        if self.device.type == "cuda":  # torch keeps the pinned memory until the copy is done
            packed = packed.pin_memory()
        sections = packed.to(self.device, non_blocking=True).split_with_sizes([len(part) for part in parts])
        positions, blocks, counted, values, slots, last, top_k, seeds, cleared = sections
        if upload.slots:
            self.last_tokens[slots] = last.int()
            self.top_k[slots] = top_k.int()
            self.seed[slots] = seeds
            self.parameters[:, slots] = values.view(torch.float64).view(len(NEUTRAL), -1).float()
        if upload.cleared:
            self.counts.index_fill_(0, cleared, 0)
            _put(self.counts, counted)
        _put(self.positions, positions)
        _put(self.tables, blocks)


class _Upload:
    """What changed since the last step, as lists of numbers."""

    def __init__(self) -> None:
        self.positions: list[tuple[int, int]] = []  # row, position
        self.blocks: list[tuple[int, int]] = []  # entry of all tables, block
        self.slots: list[int] = []  # of admitted sequences; the next four are theirs
        self.last_tokens: list[int] = []
        self.top_k: list[int] = []
        self.seeds: list[int] = []
        self.parameters: list[tuple[float, ...]] = []
        self.cleared: list[int] = []  # rows whose counts begin anew
        self.counts: list[NDArray[np.int64]] = []  # [entry of all counts; value]


def _parameters(params: SamplingParams) -> tuple[float, ...]:
    penalties = (params.repetition_penalty, params.presence_penalty, params.frequency_penalty)
    if params.greedy:  # the most likely token always survives truncation
        return (*NEUTRAL[:3], *penalties)
    return (params.temperature, params.top_p, params.min_p, *penalties)


def _integers(values: Iterable[int]) -> NDArray[np.int64]:
    return np.fromiter(values, np.int64)


def _put(target: Tensor, pairs: Tensor) -> None:
    """Write pairs [entries; values] into a tensor, whatever its shape."""
    if len(pairs):
        entries, values = pairs.view(2, -1)
        target.view(-1)[entries] = values.to(target.dtype)
