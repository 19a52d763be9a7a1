"""Targets against every legal layout, by counting without packed vectors."""

from collections import Counter

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tangram.fleet import ShapeKey
from tangram.packing.geometry.board import board
from tangram.packing.geometry.count_vectors import guards, maximal, pack, within
from tangram.packing.geometry.layouts import Placement, creation_order, layouts, multiset
from tangram.packing.model.targets import Origin, Rules, Slot, gpu_targets, node_targets

BOARDS = [board("A30"), board("H100-80GB-SXM").only(frozenset({"1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb"}))]
COUNTS = st.lists(st.integers(0, 9), min_size=3, max_size=3)


@given(COUNTS, COUNTS)
def test_a_packed_vector_is_within_another_if_each_of_its_counts_is(small, large):
    each = all(a <= b for a, b in zip(small, large, strict=True))

    assert within(pack(small), pack(large), guards(3)) == each
    assert maximal([pack(small), pack(large)], guards(3), [pack(large)]) == ([] if each else [pack(small)])


@st.composite
def states(draw, backend):
    """Rules, and what is on a GPU: free slices, replicas of three demands, foreign pods."""
    cut = draw(st.sampled_from(BOARDS))
    profiles = frozenset(draw(st.lists(st.sampled_from(cut.profiles), min_size=1, unique=True)))
    slots = []
    for placement in draw(st.sampled_from(layouts(cut))):
        who = draw(st.sampled_from(["", "", "a", "b", "a pinned", "foreign"]))
        if who == "foreign":
            slots.append(Slot(placement, fixed=True, foreign=True))
        elif who:
            slots.append(Slot(placement, (who, placement.profile), fixed="pinned" in who))
            profiles |= {placement.profile}
        else:
            slots.append(Slot(placement))
    return Rules(cut, "SKU", profiles, backend), tuple(slots)


def value(rules, slots, layout):
    """What a layout offers and keeps."""
    foreign = {slot.placement for slot in slots if slot.foreign}
    there = [p for p in layout if p not in foreign and p.profile in rules.profiles]
    kept = [slot.owner_tag for slot in slots if slot.owner_tag and slot.placement in layout]
    return Counter(ShapeKey("SKU", p.profile) for p in there) + Counter(kept)


def offered(target):
    return Counter(dict(target.supply)) + Counter(dict(target.kept))


@settings(max_examples=60)
@given(states("nvml"))
def test_no_layout_that_nvml_can_cut_offers_or_keeps_more_than_the_targets(state):
    rules, slots = state
    targets = gpu_targets(rules, slots)
    fixed = {slot.placement for slot in slots if slot.fixed}

    for layout in layouts(rules.board):
        if fixed <= set(layout):
            assert any(value(rules, slots, layout) <= offered(target) for target in targets), layout
    for target in targets:
        if target.kind == "cut":
            assert fixed <= set(target.layout)
            assert target.layout in layouts(rules.board)
            assert offered(target) == value(rules, slots, target.layout)
            assert not any(other != target and offered(target) <= offered(other) for other in targets)


@settings(max_examples=40)
@given(states("mig-manager"))
def test_mig_manager_keeps_nothing_where_it_cuts_and_cuts_nothing_beside_fixed_instances(state):
    rules, slots = state
    targets = [target for target in gpu_targets(rules, slots) if target.kind == "cut"]

    assert not (targets and any(slot.fixed for slot in slots))
    assume(not any(slot.fixed for slot in slots))
    same = value(rules, slots, tuple(slot.placement for slot in slots))
    for layout in layouts(rules.board):
        counts = value(rules, (), layout)
        assert counts <= same or any(counts <= offered(target) for target in targets), layout
    for target in targets:
        assert not target.kept
        assert creation_order(rules.board, multiset(target.layout)) is not None


def test_each_choice_of_gangs_that_stay_is_a_target_of_their_node():
    pair, single = ShapeKey("SKU", "gpu", 2), ShapeKey("SKU", "gpu", 1)
    gangs = ((("a",), pair), (("b",), single), (("b",), single))

    whole, empty = Origin("nvml", mig_enabled=False), Origin("nvml", mig_enabled=True)
    cut = Origin("nvml", mig_enabled=True, slots=(Slot(Placement(4, "3g.40gb")),))

    found = node_targets(8, ((whole, 1), (empty, 1), (cut, 1)), 1, gangs)

    # the pair or not, none to both of the equal ones, each of three free GPUs in MIG mode or not
    assert len(set(found)) == len(found) == 2 * 3 * 2**3
    assert found[0].in_mig == ((empty, 1), (cut, 1))
    assert (found[0].used, found[0].recut) == (5, 0)
    for target in found:
        taken = sum(shape.gpus * n for shape, n in target.supply)
        in_mig = dict(target.in_mig)
        assert target.used == taken + 1
        assert target.used + target.free + sum(in_mig.values()) == 8
        assert target.recut == 2 - in_mig.get(empty, 0) - in_mig.get(cut, 0)
