"""Steps on the device: enqueued by `launch`, which never waits, and collected by `Launched.result`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tangram_engine.models import Decoder
from tangram_engine.run.attention.paged_prefill import upload
from tangram_engine.run.attention.reference import AttentionBackend, Span, decode_first
from tangram_engine.run.graphs import DecodeGraphs
from tangram_engine.run.prompt_scores import ScoredChunk, score
from tangram_engine.run.rows import DeviceRows
from tangram_engine.sample.masks import LogitEdits, edit
from tangram_engine.sample.sampler import Sampled, TokenSampler, logprobs
from tangram_engine.schedule import BatchRow

# How the logits of the rows that get a token are changed; None: not at all.
Constrain = Callable[[list[BatchRow]], LogitEdits | None]


@dataclass(frozen=True, slots=True)
class _Logprobs:
    """Of the rows that ask for them; tensors on the host."""

    indices: list[int]  # among the rows that sample
    counts: list[int]
    chosen: Tensor  # [N]
    top_ids: Tensor  # [N, most]
    top_values: Tensor


@dataclass(frozen=True, slots=True)
class Launched:
    """A step that the device computes, or has computed."""

    sampling: list[BatchRow]  # the rows that get a token
    _ids: Tensor  # int32, on the host
    _logprobs: _Logprobs | None
    scored: list[ScoredChunk]  # complete once `result` has returned
    _done: torch.cuda.Event | None  # None on a CPU: there it is done already

    def result(self) -> list[Sampled | None]:
        """Wait for the step. One result per sampling row; None where the logits were not finite."""
        if self._done is not None:
            self._done.synchronize()
        results = [Sampled(token) if token >= 0 else None for token in self._ids.tolist()]
        if self._logprobs is not None:
            _attach(results, self._logprobs)
        return results


class Runner:
    """Turns scheduled rows into tensors and runs the decoder over them."""

    def __init__(
        self, decoder: Decoder, attention: AttentionBackend, rows: DeviceRows, sample: TokenSampler
    ) -> None:
        self.decoder = decoder
        self.attention = attention
        self.rows = rows
        self.device = rows.device
        self._sample = sample
        # With the hidden states, less than what the largest step needs elsewhere (`BufferSizes.step`).
        self._scored_at_once = max(1, rows.padding // 4)
        self._graphs: DecodeGraphs | None = None

    def allocate(self, num_blocks: int) -> int:
        """Replace the KV pool by one of that many blocks; returns its bytes. Recorded steps are freed."""
        self._graphs = None
        allocated = self.attention.resize(num_blocks)
        self.rows.pad_with(num_blocks)
        return allocated

    def capture(self, sizes: tuple[int, ...]) -> DecodeGraphs:
        """Record the decode step of these batch sizes, for the pool that is there."""
        with torch.inference_mode():
            # One step is replayed at a time: all leave their logits in one place, not each in its own.
            logits = torch.empty(sizes[-1], self.rows.vocab_size, device=self.device)

            def forward(rows: Tensor) -> tuple[Tensor]:
                return (self._decode_rows(rows, logits[: len(rows)]),)

            def sample(rows: Tensor) -> tuple[Tensor]:
                return (self._sample(logits[: len(rows)], rows, self.rows),)

            return DecodeGraphs(forward, sample, self.rows.padding, sizes, self.device)

    def use(self, graphs: DecodeGraphs) -> None:
        """Run batches that these graphs hold through them, until the pool is replaced."""
        self._graphs = graphs

    def launch(self, rows: Sequence[BatchRow], constrain: Constrain | None = None) -> Launched:
        """Enqueue one step: forward, sample, keep what the next step needs, copy the ids to the host.

        `constrain` is asked once the forward pass is enqueued, with the rows that get a token.
        """
        self.rows.update(rows)
        if self._graphs is not None and len(rows) in self._graphs and all(row.decodes for row in rows):
            # A recorded step plans nothing on the host, and its rows may come in any order.
            slots = upload([row.sequence.slot for row in rows], torch.int32, self.device)
            edited = _EditedLogits(list(rows), constrain)
            ids, _ = self._graphs.replay(slots, edited)
            return self._launched(edited, ids)
        spans = [Span(start, length, sequence.table, sequence.slot) for sequence, start, length, _, _ in rows]
        keys = [(not row.decodes, decode_first(span)) for row, span in zip(rows, spans, strict=True)]
        order = sorted(range(len(rows)), key=keys.__getitem__)
        ordered = [rows[index] for index in order]
        slots = upload([row.sequence.slot for row in ordered], torch.int32, self.device)
        if ordered[-1].decodes:
            sampling = ordered
            fed, positions = self.rows.fed.index_select(1, slots)
            self.attention.plan([spans[index] for index in order], positions)
            logits, drawn = self.decoder.logits(self.decoder.forward(fed, self.attention.attend)), slots
            scored: list[ScoredChunk] = []
        else:
            sampling = [row for row in ordered if row.samples]
            logits, drawn, scored = self._mixed(ordered, [spans[index] for index in order], slots)
        edited = _EditedLogits(sampling, constrain)
        edited(logits)
        return self._launched(edited, self._sample(logits, drawn, self.rows) if len(drawn) else drawn, scored)

    def _launched(self, edited: "_EditedLogits", ids: Tensor, scored: Sequence[ScoredChunk] = ()) -> Launched:
        return Launched(edited.rows, *self._to_host(ids, edited.logprobs(ids), scored))

    def _decode_rows(self, rows: Tensor, logits: Tensor) -> Tensor:
        """One token of each of the device rows int32 [B] -> `logits` [B, vocabulary], float32, written there.

        Static shapes, and nothing is read but `rows`, the device rows, the weights and the KV pool: what a
        CUDA graph asks for.
        """
        fed, positions = self.rows.fed.index_select(1, rows)
        self.attention.plan_decodes(rows, positions)
        return self.decoder.logits(self.decoder.forward(fed, self.attention.attend), logits)

    def _mixed(
        self, rows: Sequence[BatchRow], spans: Sequence[Span], slots: Tensor
    ) -> tuple[Tensor, Tensor, list[ScoredChunk]]:
        """Logits, the device rows that they are of, and what is scored of prompts.

        Single tokens, whose ids the device has, stand before chunks, whose ids the host has.
        """
        decodes = sum(row.decodes for row in rows)
        fed: list[int] = []
        positions: list[int] = []
        last: list[int] = []
        sampling: list[int] = []
        end = decodes
        for row in rows[decodes:]:
            fed += row.tokens
            positions += range(row.start, row.start + row.length)
        for index, row in enumerate(rows):
            end = index + 1 if index < decodes else end + row.length
            if row.samples:
                sampling.append(index)
                last.append(end - 1)
        uploaded = upload([*fed, *positions, *sampling, *last], torch.int32, self.device)
        chunks, chosen, ends = uploaded.split_with_sizes([2 * len(fed), len(sampling), len(last)])
        singles = self.rows.fed.index_select(1, slots[:decodes])
        ids, at = torch.cat((singles, chunks.view(2, -1)), 1)
        self.attention.plan(spans, at)
        hidden = self.decoder.forward(ids, self.attention.attend)
        scored = list(score(rows[decodes:], hidden[decodes:], self.decoder.logits, self._scored_at_once))
        if len(sampling) < len(hidden):
            hidden = hidden.index_select(0, ends)
        return self.decoder.logits(hidden), slots.index_select(0, chosen), scored

    def _to_host(
        self, ids: Tensor, logprobs: _Logprobs | None, scored: Sequence[ScoredChunk]
    ) -> tuple[Tensor, _Logprobs | None, list[ScoredChunk], torch.cuda.Event | None]:
        if self.device.type == "cpu":
            return (
                ids.clone(),
                logprobs,
                [*scored],
                None,
            )  # the next replay overwrites what a recorded step has computed
        if logprobs is not None:
            tensors = map(_enqueue_copy, (logprobs.chosen, logprobs.top_ids, logprobs.top_values))
            logprobs = _Logprobs(logprobs.indices, logprobs.counts, *tensors)
        host_ids, host_scored = _enqueue_copy(ids), [chunk.moved(_enqueue_copy) for chunk in scored]
        # `blocking`: `synchronize` sleeps. By default it spins, and takes a core for the whole of every step.
        done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        done.record()
        return host_ids, logprobs, host_scored, done


class _EditedLogits:
    """The logits of the rows that get a token, changed where a request's answer is constrained.

    Log-probabilities are those of the model: before the change.
    """

    def __init__(self, rows: list[BatchRow], constrain: Constrain | None) -> None:
        self.rows = rows
        self._constrain = constrain
        self._original: Tensor

    def __call__(self, logits: Tensor) -> None:
        """Change them in place."""
        self._original = logits
        edits = None if self._constrain is None else self._constrain(self.rows)
        if edits is None:
            return
        if any(row.sequence.request.params.logprobs is not None for row in self.rows):
            self._original = logits.clone()
        edit(logits, edits)

    def logprobs(self, ids: Tensor) -> _Logprobs | None:
        """Of the rows that ask for them."""
        return _logprobs(self.rows, self._original, ids)


def _enqueue_copy(tensor: Tensor) -> Tensor:
    """A pinned copy on the host, which is there once the device has come so far."""
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)


def _logprobs(rows: Sequence[BatchRow], logits: Tensor, ids: Tensor) -> _Logprobs | None:
    requested = [row.sequence.request.params.logprobs for row in rows]
    indices = [index for index, count in enumerate(requested) if count is not None]
    if not indices:
        return None
    counts = [count for count in requested if count is not None]
    if len(indices) < len(rows):
        at = torch.tensor(indices, pin_memory=logits.is_cuda).to(logits.device, non_blocking=True)
        logits, ids = logits.index_select(0, at), ids.index_select(0, at)
    return _Logprobs(indices, counts, *logprobs(logits, ids, max(counts)))


def _attach(results: list[Sampled | None], logprobs: _Logprobs) -> None:
    columns = (logprobs.chosen.tolist(), logprobs.top_ids.tolist(), logprobs.top_values.tolist())
    for index, count, chosen, ids, values in zip(logprobs.indices, logprobs.counts, *columns, strict=True):
        result = results[index]
        if result is not None:
            top = tuple(zip(ids[:count], values[:count], strict=True))
            results[index] = Sampled(result.token, chosen, top)
