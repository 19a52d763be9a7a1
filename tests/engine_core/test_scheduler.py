"""The scheduler with a pretended model whose every mistake of bookkeeping would be visible.

With a lag of one, the device is a step behind: ids are known when the next step has been scheduled.

The pool is an array that holds, for each slot, the cache salt and the whole prefix that its keys and
values would depend on. The next token is a function of the prefix, so each request must produce what it
produces alone.
"""

import random
from collections import Counter, deque
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tangram_engine.cache import ROOT, BlockManager, salted_root
from tangram_engine.sample.params import SamplingParams
from tangram_engine.schedule import Request, Scheduler, SchedulerLimits

EOS = 7


def next_token(prefix):
    return hash(prefix) % 8


def request(name, prompt, max_tokens, *, ignore_eos=False, stop=(), salt=None):
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=ignore_eos, stop_token_ids=tuple(stop))
    root = ROOT if salt is None else salted_root(salt)
    return Request(name, tuple(prompt), params, arrival=0.0, cache_root=root)


def alone(wanted, max_model_len):
    """What the request gives without scheduler, cache or company."""
    tokens = list(wanted.prompt)
    for _ in range(wanted.params.max_tokens):
        tokens.append(next_token(tuple(tokens)))
        ended = tokens[-1] in wanted.params.stop_token_ids or (
            tokens[-1] == EOS and not wanted.params.ignore_eos
        )
        if ended or len(tokens) == max_model_len:
            break
    return tokens[len(wanted.prompt) :]


class Pretender:
    """Steps a scheduler and checks everything that can be checked from outside."""

    def __init__(self, *, num_blocks=16, block_size=4, seqs=4, budget=16, max_model_len=40, lag=0):
        self.limits = SchedulerLimits(seqs, budget, max_model_len, frozenset({EOS}))
        self.blocks = BlockManager(num_blocks, block_size)
        self.scheduler = Scheduler(self.limits, self.blocks)
        self.lag = lag
        self.launched = deque()
        self.contents = {}  # of a slot of the pool
        self.fed = {}  # device row -> tokens of its sequence, as the device knows them
        self.outputs = {}
        self.reasons = {}
        self.preemptions = 0
        self.steps = 0
        self.first_step = {}
        self.preempted = Counter()

    def step(self):
        self.steps += 1
        before = {sequence.id for sequence in self.scheduler.running}
        batch = self.scheduler.schedule(now=self.steps)
        lost = before - {sequence.id for sequence in self.scheduler.running}
        self.preempted.update(lost)
        self.preemptions += batch.preemptions
        assert batch.preemptions == len(lost)
        assert batch.tokens <= self.limits.max_num_batched_tokens
        assert len(batch.rows) <= self.limits.max_num_seqs
        assert len({row.sequence.id for row in batch.rows}) == len(batch.rows)
        assert batch.rows or self.launched or not self.scheduler.has_work(), "no progress"
        for row in batch.rows:
            self._store(row)
            sequence = row.sequence
            assert sequence.scheduled == self.first_step.setdefault(sequence.id, self.steps)
            assert sequence.preemptions == self.preempted[sequence.id]
        self.scheduler.audit()
        if batch.rows:
            # Computed at once, as if on a device: what the host does afterwards cannot change it.
            ids = {row.sequence: self._sample(row) for row in batch.rows if row.samples}
            self.launched.append((batch, ids))
        if len(self.launched) > self.lag or (self.launched and not batch.rows):
            self.commit(*self.launched.popleft())
        return batch

    def commit(self, batch, ids):
        alive = {s.id: token for s, token in ids.items() if self.scheduler._by_id.get(s.id) is s}
        for name, token in alive.items():
            self.outputs.setdefault(name, []).append(token)
        outcome = self.scheduler.commit(batch, {sequence.id: token for sequence, token in ids.items()})
        assert outcome.keys() == alive.keys()
        self.reasons |= {name: reason for name, reason in outcome.items() if reason}
        self.scheduler.audit()

    def has_work(self):
        return self.scheduler.has_work() or bool(self.launched)

    def run(self, steps=5000):
        for _ in range(steps):
            if not self.has_work():
                assert self.blocks.used == 0
                return
            self.step()
        pytest.fail("does not come to an end")

    def _store(self, row):
        tokens, slot = row.sequence.tokens, row.sequence.slot
        assert 0 <= slot < self.limits.max_num_seqs
        if row.first or row.length > 1:
            self.fed[slot] = list(tokens)  # all known: nothing of a sequence that begins anew is in flight
            assert len(tokens) >= row.start + row.length
        for position in range(row.start, row.start + row.length):
            self.contents[self._place(row, position)] = self._content(row, position)

    def _sample(self, row):
        tokens = self.fed[row.sequence.slot]
        assert len(tokens) == row.start + row.length
        for position in range(len(tokens)):
            assert self.contents[self._place(row, position)] == self._content(row, position)
        token = next_token(tuple(tokens))
        tokens.append(token)
        return token

    def _content(self, row, position):
        return row.sequence.request.cache_root, tuple(self.fed[row.sequence.slot][: position + 1])

    def _place(self, row, position):
        size = self.blocks.block_size
        return row.sequence.table[position // size] * size + position % size


@dataclass(frozen=True)
class Arrival:
    prompt: tuple
    max_tokens: int
    steps_until_next: int
    abort_after: int | None
    salt: str | None


arrivals = st.lists(
    st.builds(
        Arrival,
        # Many prompts begin alike, so that the prefix cache has something to get wrong.
        prompt=st.builds(
            lambda shared, own: (1,) * shared + tuple(own),
            st.integers(1, 20),
            st.lists(st.integers(0, 6), max_size=12),
        ),
        max_tokens=st.integers(1, 30),
        steps_until_next=st.integers(0, 3),
        abort_after=st.none() | st.integers(0, 12),
        salt=st.sampled_from([None, None, "a", "b"]),
    ),
    min_size=1,
    max_size=12,
)
shapes = st.builds(
    lambda blocks, size, seqs, extra, lag: {
        "lag": lag,
        "num_blocks": -(-40 // size) + blocks,
        "block_size": size,
        "seqs": seqs,
        "budget": seqs + extra,
    },
    st.integers(0, 12),
    st.sampled_from([1, 2, 4, 8]),
    st.integers(1, 6),
    st.integers(0, 20),
    st.integers(0, 1),
)


@settings(max_examples=700, deadline=None)
@given(shapes, arrivals)
def test_every_request_gives_what_it_gives_alone_whatever_happens_around_it(shape, trace):
    pretender = Pretender(**shape)
    requests, deadlines = {}, {}
    for number, arrival in enumerate(trace):
        name = str(number)
        requests[name] = request(name, arrival.prompt, arrival.max_tokens, salt=arrival.salt)
        pretender.scheduler.add(requests[name])
        if arrival.abort_after is not None:
            deadlines[name] = arrival.abort_after
        for _ in range(arrival.steps_until_next):
            pretender.step()
            abort_due(pretender, deadlines)
    for _ in range(13):
        pretender.step()
        abort_due(pretender, deadlines)
    pretender.run()
    for name, wanted in requests.items():
        expected = alone(wanted, 40)
        got = pretender.outputs.get(name, [])
        assert got == expected[: len(got)]
        if name in pretender.reasons:
            assert got == expected


def abort_due(pretender, deadlines):
    for name in list(deadlines):
        deadlines[name] -= 1
        if deadlines[name] < 0:
            pretender.scheduler.remove(name)
            del deadlines[name]
            pretender.scheduler.audit()


def test_many_crowded_traces_lose_nothing():
    preempted = 0
    for seed in range(800):
        chance = random.Random(seed)
        pretender = Pretender(
            num_blocks=chance.randint(10, 14),
            seqs=chance.randint(2, 8),
            budget=chance.randint(8, 24),
            lag=seed % 2,
        )
        names = [str(number) for number in range(chance.randint(2, 8))]
        wanted = {}
        for name in names:
            prompt = [1] * chance.randint(0, 10) + [
                chance.randint(0, 6) for _ in range(chance.randint(1, 12))
            ]
            wanted[name] = request(name, prompt, chance.randint(1, 18), ignore_eos=True)
            pretender.scheduler.add(wanted[name])
        pretender.run()
        preempted += pretender.preemptions
        assert {name: alone(wanted[name], 40) for name in names} == pretender.outputs, f"seed {seed}"
    assert preempted > 200, "the traces are not crowded enough to mean anything"


@pytest.mark.parametrize("lag", [0, 1])
def test_nobody_is_overtaken(lag):
    pretender = Pretender(num_blocks=12, seqs=8, lag=lag)
    for number in range(8):
        pretender.scheduler.add(request(str(number), [number % 7] * 9, 12, ignore_eos=True))
    while pretender.has_work():
        pretender.step()
        order = [int(s.id) for s in (*pretender.scheduler.running, *pretender.scheduler.waiting)]
        assert order == sorted(order)
    assert pretender.preemptions > 0


def test_running_sequences_get_their_token_before_a_long_prompt_gets_the_rest():
    pretender = Pretender(num_blocks=40, seqs=4, budget=8)
    for name in "ab":
        pretender.scheduler.add(request(name, [3], 20, ignore_eos=True))
    pretender.step()
    pretender.scheduler.add(request("long", [5] * 30, 1))
    batch = pretender.step()
    assert [(row.sequence.id, row.length) for row in batch.rows] == [("a", 1), ("b", 1), ("long", 6)]


def test_a_prompt_that_is_wholly_cached_still_computes_its_last_token():
    pretender = Pretender()
    for name in ("first", "second"):
        pretender.scheduler.add(request(name, [2] * 8, 1))
        batch = pretender.step()
    assert [(row.start, row.length) for row in batch.rows] == [(4, 4)]
    assert (batch.prefix_queries, batch.prefix_hits) == (8, 4)


def test_only_requests_with_the_same_salt_share_blocks():
    pretender = Pretender(num_blocks=40)
    cached = []
    for number, salt in enumerate(("ours", "theirs", None, "ours", None, "theirs")):
        sequence = pretender.scheduler.add(request(str(number), [2] * 12, 6, ignore_eos=True, salt=salt))
        pretender.run()
        cached.append(sequence.cached)
    assert cached == [0, 0, 0, 8, 8, 8]


def test_an_answer_is_cached_for_the_next_turn():
    pretender = Pretender()
    pretender.scheduler.add(request("turn 1", [2] * 6, 8, ignore_eos=True))
    pretender.run()
    history = [2] * 6 + pretender.outputs["turn 1"]
    pretender.scheduler.add(request("turn 2", [*history, 1, 1], 1))
    assert (
        pretender.step().prefix_hits == 12
    )  # 14 tokens, of which the last was never fed back: three full blocks


def test_preempted_work_is_mostly_found_again():
    pretender = Pretender(num_blocks=10, seqs=2, budget=40)
    pretender.scheduler.add(request("a", [1] * 13, 10, ignore_eos=True))
    pretender.scheduler.add(request("b", [2] * 13, 24, ignore_eos=True))
    batches = []
    while pretender.scheduler.has_work():
        batches.append(pretender.step())
    assert pretender.preemptions == 1
    resumed = [row for batch in batches for row in batch.rows if row.start and row.length > 1]
    assert [(row.sequence.id, row.start) for row in resumed] == [("b", 16)]  # of 20 tokens


@pytest.mark.parametrize(
    ("params", "reason", "count"),
    [
        ({"max_tokens": 3, "ignore_eos": True}, "length", 3),
        ({"max_tokens": 99, "ignore_eos": True}, "length", 38),
        ({"max_tokens": 99, "ignore_eos": True, "stop": range(8)}, "stop", 1),
    ],
)
def test_the_finish_reason_says_why(params, reason, count):
    pretender = Pretender()
    pretender.scheduler.add(request("a", [1, 2], **params))
    pretender.run()
    assert pretender.reasons == {"a": reason}
    assert len(pretender.outputs["a"]) == count


def test_a_prompt_preempted_half_way_keeps_its_start_and_is_looked_up_once():
    pretender = Pretender(num_blocks=14, budget=4)
    for number in range(3):
        pretender.scheduler.add(request(str(number), [number] * 4, 20, ignore_eos=True))
    long = pretender.scheduler.add(request("long", [5] * 20, 5, ignore_eos=True))
    queries = hits = given_up = 0
    while pretender.scheduler.has_work():
        batch = pretender.step()
        queries, hits = queries + batch.prefix_queries, hits + batch.prefix_hits
        given_up |= long.preemptions and not long.generated
    assert given_up
    assert (queries, hits, long.cached) == (3 * 4 + 20, 0, 0)


def test_eos_ends_unless_it_is_ignored():
    prompt = next((n, m) for n in range(8) for m in range(8) if next_token((n, m)) == EOS)
    pretender = Pretender()
    pretender.scheduler.add(request("ends", prompt, 5))
    pretender.scheduler.add(request("goes on", prompt, 5, ignore_eos=True))
    pretender.run()
    assert pretender.reasons == {"ends": "stop", "goes on": "length"}
    assert pretender.outputs["ends"] == [EOS]


def test_a_request_removed_while_its_step_runs_is_ignored_by_the_commit():
    pretender = Pretender()
    pretender.scheduler.add(request("a", [1, 2], 5))
    batch = pretender.scheduler.schedule(now=0)
    assert pretender.scheduler.remove("a")
    assert not pretender.scheduler.remove("a")
    assert pretender.scheduler.commit(batch, {"a": 3}) == {}
    pretender.scheduler.audit()
    assert pretender.blocks.used == 0


@pytest.mark.parametrize("lag", [0, 1])
def test_equal_prompts_that_arrive_together_are_computed_once(lag):
    pretender = Pretender(num_blocks=64, block_size=16, seqs=8, budget=512, max_model_len=600, lag=lag)
    for number in range(8):
        pretender.scheduler.add(request(str(number), [2] * 512, 2, ignore_eos=True))
    tokens = blocks = prompt = 0
    while pretender.has_work():
        batch = pretender.step()
        prompt, tokens = prompt + batch.prompt_tokens, tokens + batch.tokens
        blocks = max(blocks, pretender.blocks.used)
    assert prompt == 512 + 7 * 16  # each computes the block with its own last token
    assert tokens == prompt + 8  # and feeds the first of its two tokens
    assert blocks <= 32 + 7 + 8
    assert len(set(map(tuple, pretender.outputs.values()))) == 1


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("ends", ["aborted", "preempted"])
def test_a_request_does_not_wait_for_a_prefix_that_is_not_computed_any_more(ends, lag):
    pretender = Pretender(num_blocks=10, budget=4, lag=lag)
    pretender.scheduler.add(request("older", [3] * 9, 20, ignore_eos=True))
    for _ in range(4):
        pretender.step()
    for name in ("computes", "waits"):
        pretender.scheduler.add(request(name, [2] * 20, 1))
    pretender.step()
    assert [sequence.id for sequence in pretender.scheduler.running] == ["older", "computes"]
    if ends == "aborted":
        pretender.scheduler.remove("computes")
    else:
        pretender.scheduler._preempt_last()
        pretender.preempted["computes"] += 1
    pretender.run()
    assert pretender.reasons["waits"] == "length"


def test_a_stop_is_noticed_one_step_late_and_an_end_by_length_is_foreseen():
    pretender = Pretender(lag=1)
    pretender.scheduler.add(request("stops", [1, 2], 9, ignore_eos=True, stop=range(8)))
    pretender.scheduler.add(request("ends", [1, 3], 2, ignore_eos=True))
    rows = []
    while pretender.has_work():
        rows.append([row.sequence.id for row in pretender.step().rows])
    assert rows == [["stops", "ends"], ["stops", "ends"], []]
    assert {name: len(ids) for name, ids in pretender.outputs.items()} == {"stops": 1, "ends": 2}


def test_blocks_and_slot_of_a_removed_request_return_when_its_step_is_done():
    pretender = Pretender(seqs=1, lag=1)
    pretender.scheduler.add(request("a", [1] * 5, 9, ignore_eos=True))
    pretender.step()
    assert pretender.scheduler.remove("a")
    pretender.scheduler.add(request("a", [2] * 5, 1))  # the id is free at once
    pretender.first_step.clear()
    assert pretender.blocks.used == 2
    pretender.scheduler.audit()
    assert pretender.step().rows == ()
    assert pretender.blocks.used == 0
    assert [row.start for row in pretender.step().rows] == [0]
    pretender.run()
    assert pretender.outputs["a"] == alone(request("a", [2] * 5, 1), 40)


def test_a_request_without_a_token_ends_and_none_of_its_blocks_is_found_again():
    scheduler = Scheduler(SchedulerLimits(4, 8, 40), BlockManager(16, 4))
    scheduler.add(request("bad", [1] * 12, 5))
    first = scheduler.schedule(now=0)
    second = scheduler.schedule(now=0)
    assert scheduler.commit(first, {}) == {}  # a chunk: its blocks get names
    scheduler.add(request("shares", [1] * 12, 5))
    third = scheduler.schedule(now=0)
    assert scheduler.commit(second, {}) == {"bad": "error"}
    scheduler.audit()
    assert third.rows[-1].sequence.cached == 8
    assert scheduler.commit(third, None) == {"shares": "error"}
    assert (scheduler.blocks.used, scheduler.has_work()) == (0, False)
    scheduler.add(request("again", [1] * 12, 5))
    assert scheduler.schedule(now=0).prefix_hits == 0
    scheduler.audit()


def test_steps_are_committed_in_the_order_of_their_launch():
    scheduler = Scheduler(SchedulerLimits(4, 8, 40), BlockManager(16, 4))
    scheduler.add(request("a", [1] * 12, 5))
    scheduler.schedule(now=0)
    second = scheduler.schedule(now=0)
    with pytest.raises(ValueError, match="order"):
        scheduler.commit(second, {"a": 3})


def test_limits_that_cannot_make_progress_are_refused():
    with pytest.raises(ValueError, match="max_num_batched_tokens"):
        SchedulerLimits(8, 7, 40)
    with pytest.raises(ValueError, match="cannot hold one request"):
        Scheduler(SchedulerLimits(1, 8, 41), BlockManager(10, 4))
