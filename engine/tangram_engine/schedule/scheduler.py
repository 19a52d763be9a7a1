"""First come, first served, with one token budget per step.

A step takes the running sequences first (one token each, or the next chunk of a prompt) and fills
what remains of the budget with waiting ones. When blocks run out, the sequence that came last gives
up its blocks and will be recomputed; they stay matchable, so most of it is usually found again.

Two invariants carry the proof of progress. `running` followed by `waiting` is always in order of
arrival, hence nobody is overtaken; and the oldest running sequence can preempt all others, hence it
advances in every step as long as the pool holds one request of full length.
"""

import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tangram_engine.cache import BlockManager, extend_keys
from tangram_engine.schedule.batch import Row, ScheduledBatch
from tangram_engine.schedule.request import Request
from tangram_engine.schedule.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one step and of one sequence, and the tokens that end any sequence."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    eos_token_ids: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        if not 1 <= self.max_num_seqs <= self.max_num_batched_tokens:
            raise ValueError(
                "max_num_batched_tokens must be at least max_num_seqs: each running sequence needs one"
            )


class Scheduler:
    """Decides the rows of each step and keeps the block manager's books."""

    def __init__(self, limits: Limits, blocks: BlockManager) -> None:
        if blocks.blocks_for(limits.max_model_len) > blocks.num_blocks:
            raise ValueError(
                f"{blocks.num_blocks} blocks cannot hold one request of {limits.max_model_len} tokens"
            )
        self.limits = limits
        self.blocks = blocks
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self._by_id: dict[str, Sequence] = {}

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._by_id

    def has_work(self) -> bool:
        """Whether any sequence is waiting or running."""
        return bool(self._by_id)

    def add(self, request: Request) -> Sequence:
        """Queue a request. Its id must not be in use."""
        if request.id in self._by_id:
            raise KeyError(f"request {request.id} is already here")
        sequence = self._by_id[request.id] = Sequence(request)
        self.waiting.append(sequence)
        return sequence

    def remove(self, request_id: str) -> bool:
        """Forget a request at any time and return its blocks; False if it is not known."""
        sequence = self._by_id.pop(request_id, None)
        if sequence is None:
            return False
        if sequence in self.running:
            self.running.remove(sequence)
            self.blocks.release(request_id)
        else:
            self.waiting.remove(sequence)
        return True

    def schedule(self, now: float) -> ScheduledBatch:
        """Choose the rows of the next step and give them blocks.

        `now` is when the step begins, in seconds of any one clock; it is written down, never used to decide.
        """
        rows: list[Row] = []
        budget, preemptions = self._continue_running(rows)
        queries, hits = (0, 0) if preemptions else self._admit_waiting(rows, budget, now)
        return ScheduledBatch(tuple(rows), preemptions, queries, hits)

    def commit(self, batch: ScheduledBatch, sampled: Mapping[str, int]) -> dict[str, str | None]:
        """Book a computed step; `sampled` holds the next token of the rows that have one.

        Returns for each of these whether it goes on (None) or why it ended ("stop", "length").
        Rows of requests that were removed in the meantime are ignored.
        """
        outcome: dict[str, str | None] = {}
        for row in batch.rows:
            sequence = row.sequence
            if self._by_id.get(sequence.id) is not sequence:
                continue
            sequence.computed += row.length
            self._publish(sequence, row.start)
            token = sampled.get(sequence.id)
            if token is not None:
                sequence.tokens.append(token)
                reason = outcome[sequence.id] = self._finish_reason(sequence, token)
                if reason is not None:
                    self.remove(sequence.id)
        return outcome

    def audit(self) -> None:
        """Raise AssertionError unless exactly the running sequences hold blocks and the books balance."""
        for _ in self.audit_slices():
            pass

    def audit_slices(self) -> Iterator[None]:
        """As `audit`, with yields at which the caller may stop for good: see `BlockManager.audit_slices`."""
        known = {sequence.id for sequence in (*self.running, *self.waiting)}
        if known != set(self._by_id) or len(known) != len(self.running) + len(self.waiting):
            raise AssertionError("a request is lost or queued twice")
        if self.blocks.owners != {sequence.id for sequence in self.running}:
            raise AssertionError(
                "blocks are held by a request that is not running, or not held by one that is"
            )
        yield from self.blocks.audit_slices()

    def _continue_running(self, rows: list[Row]) -> tuple[int, int]:
        budget, preemptions = self.limits.max_num_batched_tokens, 0
        for sequence in tuple(self.running):
            if not budget or (preemptions and sequence not in self.running):
                break  # who comes after a preempted sequence has been preempted before it
            length = min(sequence.pending, budget)
            needed = sequence.computed + length
            while not self.blocks.can_extend(sequence.id, needed):
                preemptions += 1
                if self._preempt_last() is sequence:
                    return budget, preemptions
            self.blocks.extend(sequence.id, needed)
            rows.append(Row(sequence, sequence.computed, length))
            budget -= length
        return budget, preemptions

    def _admit_waiting(self, rows: list[Row], budget: int, now: float) -> tuple[int, int]:
        queries = hits = 0
        while self.waiting and budget and len(self.running) < self.limits.max_num_seqs:
            sequence = self.waiting[0]
            self._extend_keys(sequence)
            # The last token is always computed, because its logits are what the request is about.
            keys = sequence.keys[: (len(sequence.tokens) - 1) // self.blocks.block_size]
            # Blocks for the whole prompt at once, and one left for each running sequence to grow into:
            # a prefill that had to be given up half-way would be work for nothing.
            if not self.blocks.can_admit(keys, len(sequence.tokens), spare=len(self.running)):
                break
            sequence.computed = (
                self.blocks.admit(sequence.id, keys, len(sequence.tokens)) * self.blocks.block_size
            )
            sequence.table = self.blocks.table(sequence.id)
            self.running.append(self.waiting.popleft())
            # Who comes back after a preemption would find its own blocks: not what the prefix cache is for.
            if sequence.scheduled == math.inf:
                sequence.scheduled = now
                queries += len(sequence.tokens)
                hits += sequence.computed
                sequence.cached = sequence.computed
            length = min(sequence.pending, budget)
            rows.append(Row(sequence, sequence.computed, length))
            budget -= length
        return queries, hits

    def _preempt_last(self) -> Sequence:
        sequence = self.running.pop()
        self.blocks.release(sequence.id)
        sequence.computed, sequence.table = 0, []
        sequence.preemptions += 1
        self.waiting.appendleft(sequence)
        return sequence

    def _publish(self, sequence: Sequence, start: int) -> None:
        """Name the blocks that the step has filled."""
        size = self.blocks.block_size
        if sequence.computed // size > start // size:
            self._extend_keys(sequence)
            for index in range(start // size, sequence.computed // size):
                self.blocks.publish(sequence.id, index, sequence.keys[index])

    def _extend_keys(self, sequence: Sequence) -> None:
        extend_keys(sequence.keys, sequence.tokens, self.blocks.block_size, sequence.request.cache_root)

    def _finish_reason(self, sequence: Sequence, token: int) -> str | None:
        params = sequence.request.params
        if token in params.stop_token_ids or (token in self.limits.eos_token_ids and not params.ignore_eos):
            return "stop"
        if sequence.generated >= params.max_tokens or len(sequence.tokens) >= self.limits.max_model_len:
            return "length"
        return None
