"""The block manager under arbitrary orders of its commands."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tangram_engine.cache import ROOT, BlockManager, extend_keys, salted_root
from tangram_engine.cache.manager import AUDIT_SLICE

SIZE = 4
# A tiny alphabet, so that prefixes are shared all the time.
prompts = st.lists(st.integers(0, 1), min_size=1, max_size=24)
commands = st.lists(
    st.tuples(st.sampled_from(["admit", "extend", "register", "release"]), st.integers(0, 5), prompts),
    max_size=60,
)


def keys_of(tokens, root=ROOT):
    keys = []
    extend_keys(keys, tokens, SIZE, root)
    return keys


@settings(max_examples=600, deadline=None)
@given(commands)
def test_books_balance_after_any_sequence_of_commands(trace):
    blocks = BlockManager(10, SIZE)
    held = {}
    for command, number, tokens in trace:
        owner = str(number)
        if command == "admit" and owner not in held and blocks.can_admit(keys_of(tokens), len(tokens)):
            blocks.admit(owner, keys_of(tokens), len(tokens))
            held[owner] = list(tokens)
        elif (
            command == "extend" and owner in held and blocks.can_extend(owner, len(held[owner]) + len(tokens))
        ):
            held[owner] += tokens
            blocks.extend(owner, len(held[owner]))
        elif command == "register" and owner in held:
            for index, key in enumerate(keys_of(held[owner])):
                blocks.register(owner, index, key)
        elif command == "release" and owner in held:
            blocks.release(owner)
            del held[owner]
        blocks.audit()
        assert blocks.free + blocks.used == blocks.num_blocks
    for owner in held:
        blocks.release(owner)
    assert blocks.free == blocks.num_blocks


@settings(max_examples=300, deadline=None)
@given(prompts, prompts)
def test_keys_are_equal_exactly_as_far_as_the_tokens_are(first, second):
    common = 0
    while common < min(len(first), len(second)) and first[common] == second[common]:
        common += 1
    for index, (one, other) in enumerate(zip(keys_of(first), keys_of(second), strict=False)):
        assert (one == other) == ((index + 1) * SIZE <= common)


salts = st.none() | st.text(min_size=1, max_size=2)


@settings(max_examples=300, deadline=None)
@given(salts, salts, prompts)
def test_keys_of_equal_tokens_are_equal_exactly_where_the_salts_are(first, second, tokens):
    one, other = (ROOT if salt is None else salted_root(salt) for salt in (first, second))
    for left, right in zip(keys_of(tokens, one), keys_of(tokens, other), strict=True):
        assert (left == right) == (first == second)


def filled(blocks, owner, tokens):
    blocks.admit(owner, keys_of(tokens), len(tokens))
    for index, key in enumerate(keys_of(tokens)):
        blocks.register(owner, index, key)
    return list(blocks.table(owner))


def test_a_released_prefix_is_found_again():
    blocks = BlockManager(4, SIZE)
    table = filled(blocks, "a", [1] * 8)
    blocks.release("a")
    assert blocks.matched(keys_of([1] * 8)) == table
    assert blocks.admit("b", keys_of([1] * 8), 9) == 2


def test_the_least_recently_used_prefix_goes_first_and_its_end_before_its_beginning():
    blocks = BlockManager(4, SIZE)
    filled(blocks, "old", [1] * 8)
    filled(blocks, "new", [2] * 8)
    blocks.release("old")
    blocks.release("new")
    blocks.admit("c", [], SIZE)
    assert len(blocks.matched(keys_of([1] * 8))) == 1
    assert len(blocks.matched(keys_of([2] * 8))) == 2


def test_a_block_without_a_name_is_given_away_before_any_matchable_one():
    blocks = BlockManager(3, SIZE)
    filled(blocks, "a", [1] * 8)
    blocks.admit("b", [], 1)
    blocks.release("a")
    (nameless,) = blocks.table("b")
    blocks.release("b")
    blocks.admit("c", [], 1)
    assert blocks.table("c") == [nameless]


def test_shared_blocks_return_only_with_their_last_owner():
    blocks = BlockManager(4, SIZE)
    filled(blocks, "a", [1] * 8)
    blocks.admit("b", keys_of([1] * 8), 8)
    blocks.release("a")
    assert blocks.used == 2
    blocks.release("b")
    assert blocks.used == 0


def test_a_command_against_the_answer_of_its_question_raises():
    blocks = BlockManager(1, SIZE)
    blocks.admit("a", [], SIZE)
    assert not blocks.can_extend("a", SIZE + 1)
    with pytest.raises(KeyError):
        blocks.extend("a", SIZE + 1)
    with pytest.raises(KeyError):
        blocks.admit("a", [], 1)


def leak(blocks):
    blocks._tables["a"].pop()


def foreign_holder(blocks):
    blocks._tables["b"] = [blocks._tables["a"][0]]


def shared_without_a_key(blocks):
    blocks.admit("b", keys_of([1] * 8), 8)
    block = blocks._tables["a"][0]
    del blocks._registered[blocks._keys[block]]
    blocks._keys[block] = None


def held_twice(blocks):
    blocks._tables["a"].append(blocks._tables["a"][0])
    blocks._references[blocks._tables["a"][0]] += 1


def used_and_free(blocks):
    blocks._free.give_last(blocks._tables["a"][0])


def neither_used_nor_free(blocks):
    blocks._free.pop()


def no_such_block_is_free(blocks):
    blocks._free.give_last(blocks.num_blocks)


def key_of_another_block(blocks):
    blocks._registered[keys_of([1] * 8)[0]] = blocks._tables["a"][1]


def key_without_a_block(blocks):
    blocks._registered[b"nothing has this key"] = blocks._tables["a"][0]


def block_missing_in_the_index(blocks):
    del blocks._registered[keys_of([1] * 8)[0]]


DAMAGES = [
    (leak, "1 references, 0 holders"),
    (foreign_holder, "1 references, 2 holders"),
    (shared_without_a_key, "shared without a key"),
    (held_twice, "a holds a block twice"),
    (used_and_free, "neither free nor used"),
    (neither_used_nor_free, "neither free nor used"),
    (no_such_block_is_free, "in the free list"),
    (key_of_another_block, "under a foreign key"),
    (key_without_a_block, "in the index"),
    (block_missing_in_the_index, "under a foreign key"),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGES, ids=[damage.__name__ for damage, _ in DAMAGES])
def test_the_audit_notices_damaged_books(damage, message):
    blocks = BlockManager(4, SIZE)
    filled(blocks, "a", [1] * 8)
    damage(blocks)
    with pytest.raises(AssertionError, match=message):
        blocks.audit()


class Counted(list):
    """A list that counts its elements as they are read."""

    reads = 0

    def __getitem__(self, at):
        found = super().__getitem__(at)
        self.reads += len(found) if isinstance(at, slice) else 1
        return found


def test_a_slice_of_an_audit_reads_few_blocks_however_large_the_pool_is():
    blocks = BlockManager(240_000, 16)
    blocks.admit("long", [], 100_000 * 16)
    blocks.admit("short", [], 5 * 16)
    lists = [blocks._references, blocks._keys, *blocks._tables.values()]
    blocks._references, blocks._keys, blocks._tables["long"], blocks._tables["short"] = counted = [
        Counted(values) for values in lists
    ]
    reads = [0, *(sum(values.reads for values in counted) for _ in blocks.audit_slices())]
    assert max(after - before for before, after in pairwise(reads)) <= 2 * AUDIT_SLICE
    assert [values.reads for values in counted] == [240_000, 240_000, 100_000, 5]
