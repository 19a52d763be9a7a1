"""First come, first served, with one token budget per step.

A step takes the running sequences first (one token each, or the next chunk of a prompt) and fills
what remains of the budget with waiting ones. When blocks run out, the sequence that came last gives
up its blocks and will be recomputed; they stay matchable, so most of it is usually found again.

Steps may overlap: `schedule` books a step as launched, `commit` follows when its ids are known, and
another step may be scheduled between the two. A launched step writes to the blocks and the device row of
each sequence in it, so a sequence that is removed or preempted meanwhile keeps both until that step is
committed (it is "leaving"). A token that ends a request is noticed at the commit: what the step launched
after it computes for that request is dropped. An end by length is foreseen, and nothing is computed past it.

Two invariants carry the proof of progress. `running` followed by `waiting` is always in order of
arrival, hence no sequence is overtaken; and the oldest running sequence can preempt all others, hence it
advances in every step that does not wait for a launched one, as long as the pool holds one request of
full length. Nothing waits for itself: a sequence without a block waits only for blocks of leaving sequences,
which return when the launched steps are committed, and the first one in the queue for a shared prefix
only as long as a running sequence has yet to compute it.
"""

import math
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tangram_engine.cache import BlockManager, extend_keys
from tangram_engine.schedule.batch import BatchRow, ScheduledBatch
from tangram_engine.schedule.request import Request
from tangram_engine.schedule.sequence import NO_SLOT, Sequence


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
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
    """Decides the rows of each step and keeps the block manager's books. Slots own the blocks."""

    def __init__(self, limits: SchedulerLimits, blocks: BlockManager) -> None:
        if blocks.blocks_for(limits.max_model_len) > blocks.num_blocks:
            raise ValueError(
                f"{blocks.num_blocks} blocks cannot hold one request of {limits.max_model_len} tokens"
            )
        self.limits = limits
        self.blocks = blocks
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self._by_id: dict[str, Sequence] = {}
        self._leaving: dict[int, Sequence] = {}  # by slot
        self._free_slots = list(range(limits.max_num_seqs))
        self._launched: deque[ScheduledBatch] = deque()

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._by_id

    def has_work(self) -> bool:
        """Whether any sequence is waiting or running."""
        return bool(self._by_id)

    def add(self, request: Request) -> Sequence:
        """Queue a request. Its id must not be in use."""
        if request.id in self._by_id:
            raise KeyError(f"request {request.id} is already here")
        sequence = Sequence(request, self.limits.max_model_len, self.limits.eos_token_ids)
        self._by_id[request.id] = sequence
        self.waiting.append(sequence)
        return sequence

    def remove(self, request_id: str) -> bool:
        """Forget a request at any time; False if it is not known.

        Its blocks return at once, or when the last launched step that writes to them is committed.
        """
        sequence = self._by_id.pop(request_id, None)
        if sequence is None:
            return False
        if sequence in self.running:
            self.running.remove(sequence)
            self._leave(sequence)
        else:
            self.waiting.remove(sequence)
        return True

    def schedule(self, now: float) -> ScheduledBatch:
        """Choose the rows of the next step, give them blocks, and book the step as launched.

        `now` is when the step begins, in seconds of any one clock; it is written down, never used to decide.
        A step without rows need not be launched or committed.
        """
        rows: list[BatchRow] = []
        budget, preemptions, short = self._continue_running(rows)
        queries, hits = (0, 0) if preemptions or short else self._admit_waiting(rows, budget, now)
        batch = ScheduledBatch(tuple(rows), preemptions, queries, hits)
        for sequence, _, length, samples, _ in rows:
            sequence.computed += length
            sequence.unknown += samples
            sequence.launched += 1
        if rows:
            self._launched.append(batch)
        return batch

    def commit(self, batch: ScheduledBatch, sampled: Mapping[str, int] | None) -> dict[str, str | None]:
        """Book the oldest launched step as computed. `sampled`: next token of each row that has one.

        Returns for each row that samples whether its request goes on (None) or why it ended: "stop",
        "length", or "error" where it has no token. What a request with an error has computed is found by no
        other one. Rows of requests that were removed in the meantime are ignored. `sampled` None: the whole
        step failed, and ends all its requests.
        """
        outcome: dict[str, str | None] = {}
        if not batch.rows:
            return outcome
        if self._launched.popleft() is not batch:
            raise ValueError("steps are committed in the order of their launch")
        for row in batch.rows:
            sequence = row.sequence
            sequence.launched -= 1
            if self._by_id.get(sequence.id) is sequence:
                self._book(row, sampled, outcome)
            if self._leaving and not sequence.launched and self._leaving.get(sequence.slot) is sequence:
                del self._leaving[sequence.slot]
                self._release(sequence)
        return outcome

    def audit(self) -> None:
        """Raise AssertionError unless exactly the sequences in slots hold blocks and the books balance."""
        for _ in self.audit_slices():
            pass

    def audit_slices(self) -> Iterator[None]:
        """As `audit`, with yields at which the caller may stop for good: see `BlockManager.audit_slices`."""
        sequence_ids = {sequence.id for sequence in (*self.running, *self.waiting)}
        if sequence_ids != set(self._by_id) or len(sequence_ids) != len(self.running) + len(self.waiting):
            raise AssertionError("a request is lost or queued twice")
        slots = [sequence.slot for sequence in self.running] + list(self._leaving)
        if self.blocks.owners != set(slots):
            raise AssertionError("blocks are held by a request without a slot, or not held by one with it")
        if sorted(slots + self._free_slots) != list(range(self.limits.max_num_seqs)):
            raise AssertionError("a slot is lost or given twice")
        launched = Counter(row.sequence for batch in self._launched for row in batch.rows)
        sampling = Counter(row.sequence for batch in self._launched for row in batch.rows if row.samples)
        for sequence in {*self.running, *self.waiting, *self._leaving.values(), *launched}:
            if sequence.launched != launched[sequence] or (sequence.launched and sequence.slot == NO_SLOT):
                raise AssertionError(f"{sequence.id}: a launched step writes to blocks that have returned")
            if sequence.id in self._by_id and sequence.unknown != sampling[sequence]:
                raise AssertionError(f"{sequence.id}: {sequence.unknown} tokens are awaited in vain")
        yield from self.blocks.audit_slices()

    def _continue_running(self, rows: list[BatchRow]) -> tuple[int, int, bool]:
        """Budget left, preemptions, and whether a sequence waits for blocks of leaving ones."""
        budget, preemptions, short = self.limits.max_num_batched_tokens, 0, False
        size = self.blocks.block_size
        for sequence in tuple(self.running):
            if not budget or sequence.slot == NO_SLOT or sequence.slot in self._leaving:
                break  # what comes after a preempted sequence has been preempted before it
            end = len(sequence.tokens) + sequence.unknown
            if end >= sequence.end:
                continue  # the launched steps give it the last token that its length allows
            start = sequence.computed
            length = min(end - start, budget)
            needed = start + length
            if needed > len(sequence.table) * size:  # a few rows of a step
                while not (self._leaving or self.blocks.can_extend(sequence.slot, needed)):
                    preemptions += 1
                    if self._preempt_last() is sequence:
                        return budget, preemptions, short
                short |= not self.blocks.can_extend(sequence.slot, needed)
                if short:
                    continue  # no younger sequence takes a block for which an older one waits
                self.blocks.extend(sequence.slot, needed)
            rows.append(BatchRow(sequence, start, length, needed == end, False))
            budget -= length
        return budget, preemptions, short

    def _admit_waiting(self, rows: list[BatchRow], budget: int, now: float) -> tuple[int, int]:
        queries = hits = 0
        while self.waiting and budget and self._free_slots:
            sequence = self.waiting[0]
            if sequence.launched:
                break  # preempted; a token of it is on its way
            self._extend_keys(sequence)
            keys = sequence.keys[: sequence.skippable // self.blocks.block_size]
            if self._is_being_computed(keys, len(self.blocks.matched(keys))):
                break
            # Blocks for the whole prompt at once, and one left for each running sequence to grow into:
            # a prefill that had to be given up half-way would be work for nothing.
            if not self.blocks.can_admit(keys, len(sequence.tokens), spare=len(self.running)):
                break
            sequence.slot = self._free_slots.pop()
            cached = self.blocks.admit(sequence.slot, keys, len(sequence.tokens))
            sequence.registered = cached
            sequence.computed = cached * self.blocks.block_size
            sequence.table = self.blocks.table(sequence.slot)
            self.running.append(self.waiting.popleft())
            # After a preemption it would find its own blocks: not what the prefix cache is for.
            if sequence.scheduled == math.inf:
                sequence.scheduled = now
                queries += len(sequence.tokens)
                hits += sequence.computed
                sequence.cached = sequence.computed
            pending = len(sequence.tokens) - sequence.computed
            length = min(pending, budget)
            rows.append(BatchRow(sequence, sequence.computed, length, length == pending))
            budget -= length
        return queries, hits

    def _is_being_computed(self, keys: list[bytes], index: int) -> bool:
        """Whether a running sequence has yet to compute the block `keys[index]`.

        The request that comes first in the queue waits for it instead of computing it once more. Not for
        ever: the running sequence advances until the block is registered, or it is removed or preempted, and
        then it is not asked any more. As long as it has prompt to compute, it uses up the budget of each
        step but the last, so the requests behind the waiting one lose nothing but that step.
        """
        return index < len(keys) and any(
            other.registered <= index < len(other.keys) and other.keys[index] == keys[index]
            for other in self.running
        )

    def _book(self, row: BatchRow, sampled: Mapping[str, int] | None, outcome: dict[str, str | None]) -> None:
        sequence, start, length, samples, _ = row
        sequence.unknown -= samples
        token = sampled.get(sequence.id) if sampled is not None else None
        if token is None and (samples or sampled is None):
            outcome[sequence.id] = "error"
            self.blocks.unregister(sequence.slot)
            self.remove(sequence.id)
            return
        filled = (start + length) // self.blocks.block_size
        if filled > sequence.registered:
            self._register(sequence, filled)
        if token is not None:
            sequence.tokens.append(token)
            outcome[sequence.id] = reason = sequence.finish_reason(token)
            if reason is not None:
                self.remove(sequence.id)

    def _preempt_last(self) -> Sequence:
        sequence = self.running.pop()
        self._leave(sequence)
        sequence.computed = 0
        sequence.preemptions += 1
        self.waiting.appendleft(sequence)
        return sequence

    def _leave(self, sequence: Sequence) -> None:
        """Return slot and blocks of a sequence that no longer runs, once no launched step uses them."""
        if sequence.launched:
            self._leaving[sequence.slot] = sequence
        else:
            self._release(sequence)

    def _release(self, sequence: Sequence) -> None:
        self.blocks.release(sequence.slot)
        self._free_slots.append(sequence.slot)
        sequence.slot, sequence.table, sequence.registered = NO_SLOT, [], 0

    def _register(self, sequence: Sequence, filled: int) -> None:
        """Register the blocks, up to this number, that the step has filled."""
        self._extend_keys(sequence)
        for index in range(sequence.registered, filled):
            self.blocks.register(sequence.slot, index, sequence.keys[index])
        sequence.registered = filled

    def _extend_keys(self, sequence: Sequence) -> None:
        extend_keys(sequence.keys, sequence.tokens, self.blocks.block_size, sequence.request.cache_root)
