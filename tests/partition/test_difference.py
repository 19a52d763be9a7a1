"""Operations between layouts: what is kept, what has to wait, and that every point on the way is legal."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram.packing.geometry.board import board
from tangram.packing.geometry.layouts import (
    IllegalLayout,
    Placement,
    creation_order,
    is_legal,
    layouts,
    multiset,
)
from tangram.partition import (
    LayoutDifference,
    LayoutOperation,
    ObservedInstance,
    ObservedLayout,
    WantedLayout,
    difference,
)

GPU = "GPU-00000000-0000-0000-0000-00000000000a"
H100 = board("H100-80GB-SXM")
BOARDS = [board(sku) for sku in ("H100-80GB-SXM", "A100-40GB-SXM", "A30", "RTX-PRO-6000-SERVER")]


def at(text):
    profile, _, start = text.partition("@")
    return Placement(int(start), profile)


def instance(placement, **more):
    return ObservedInstance(placement, (f"MIG-{placement}",), **more)


def observed(*texts, on=H100, **more):
    instances = tuple(sorted(instance(at(text)) for text in texts))
    modes = {"mig_enabled": True, "pending_mig_enabled": True}
    return ObservedLayout(GPU, 0, "a GPU", on, **modes | {"instances": instances} | more)


def whole(**more):
    return ObservedLayout(GPU, 0, "a GPU", H100, **more)


def wanted(*texts):
    return WantedLayout(GPU, mig_enabled=True, placements=tuple(sorted(map(at, texts))))


WHOLE = WantedLayout(GPU, mig_enabled=False)


def said(result):
    return [str(operation).removesuffix(f" of {GPU}") for operation in result.operations]


def test_what_is_there_already_needs_nothing():
    assert difference(observed("4g.40gb@0", "3g.40gb@4"), wanted("4g.40gb@0", "3g.40gb@4")).is_empty
    assert difference(whole(), WHOLE).is_empty
    assert difference(observed(), wanted()).is_empty


def test_what_is_not_wanted_goes_before_what_is_wanted_comes_largest_first():
    result = difference(
        observed("4g.40gb@0", "1g.10gb@6"), wanted("1g.10gb@0", "1g.10gb@1", "2g.20gb@2", "3g.40gb@4")
    )

    assert said(result) == [
        "destroy-instance 4g.40gb@0",
        "destroy-instance 1g.10gb@6",
        "create-instance 3g.40gb@4",
        "create-instance 2g.20gb@2",
        "create-instance 1g.10gb@0",
        "create-instance 1g.10gb@1",
    ]


def test_the_same_profile_at_another_start_is_another_instance():
    assert said(difference(observed("3g.40gb@0"), wanted("3g.40gb@4"))) == [
        "destroy-instance 3g.40gb@0",
        "create-instance 3g.40gb@4",
    ]


def test_an_instance_that_a_pod_holds_stays_and_what_it_blocks_is_postponed():
    held = {"MIG-4g.40gb@0"}

    result = difference(
        observed("4g.40gb@0", "3g.40gb@4"), wanted("2g.20gb@0", "2g.20gb@2", "2g.20gb@4"), held
    )

    assert said(result) == ["destroy-instance 3g.40gb@4", "create-instance 2g.20gb@4"]
    assert result.in_use == (at("4g.40gb@0"),)
    assert result.postponed == (at("2g.20gb@0"), at("2g.20gb@2"))
    assert not result.is_empty


def test_an_instance_that_a_process_uses_stays_without_any_pod():
    layout = observed(instances=(instance(at("7g.80gb@0"), processes=(4711,)),))

    result = difference(layout, wanted("1g.10gb@6"))

    assert result == LayoutDifference(in_use=(at("7g.80gb@0"),), postponed=(at("1g.10gb@6"),))


def test_an_instance_that_is_held_and_wanted_needs_nothing():
    assert difference(observed("7g.80gb@0"), wanted("7g.80gb@0"), {"MIG-7g.80gb@0"}).is_empty


def test_engines_that_a_held_instance_takes_postpone_what_needs_them():
    result = difference(observed("1g.10gb+me@0"), wanted("1g.10gb+me@1", "1g.10gb@2"), {"MIG-1g.10gb+me@0"})

    assert said(result) == ["create-instance 1g.10gb@2"]
    assert result.postponed == (at("1g.10gb+me@1"),)


def test_an_instance_without_a_compute_instance_is_completed_where_it_is_wanted_and_else_destroyed():
    half = ObservedInstance(at("4g.40gb@0"), whole=False)
    layout = observed(instances=(half,))

    assert said(difference(layout, wanted("4g.40gb@0"))) == ["create-instance 4g.40gb@0"]
    assert said(difference(layout, wanted())) == ["destroy-instance 4g.40gb@0"]


def test_an_instance_that_was_cut_further_is_made_again_once_nothing_uses_it():
    shared = ObservedInstance(at("4g.40gb@0"), ("MIG-a", "MIG-b"), whole=False)
    layout = observed(instances=(shared,))

    assert said(difference(layout, wanted("4g.40gb@0"))) == [
        "destroy-instance 4g.40gb@0",
        "create-instance 4g.40gb@0",
    ]
    assert difference(layout, wanted("4g.40gb@0"), {"MIG-b"}) == LayoutDifference(
        in_use=(at("4g.40gb@0"),), postponed=(at("4g.40gb@0"),)
    )


def test_mig_mode_comes_first_on_and_last_off():
    assert said(difference(whole(), wanted("1g.10gb@6", "3g.40gb@0"))) == [
        "set-mode on",
        "create-instance 3g.40gb@0",
        "create-instance 1g.10gb@6",
    ]
    assert said(difference(observed("3g.40gb@0"), WHOLE)) == ["destroy-instance 3g.40gb@0", "set-mode off"]


@pytest.mark.parametrize(
    ("layout", "held"), [(whole(), {GPU}), (whole(processes=(1,)), set())], ids=["a-pod", "a-process"]
)
def test_mig_mode_is_not_switched_on_under_what_runs(layout, held):
    assert difference(layout, wanted("1g.10gb@0"), held) == LayoutDifference(
        gpu_in_use=True, postponed=(at("1g.10gb@0"),)
    )


def test_mig_mode_is_not_switched_off_while_an_instance_is_used():
    result = difference(observed("3g.40gb@0", "3g.40gb@4"), WHOLE, {"MIG-3g.40gb@4"})

    assert said(result) == ["destroy-instance 3g.40gb@0"]
    assert result.in_use == (at("3g.40gb@4"),)


def test_a_mode_that_the_next_reset_would_change_is_set_again():
    layout = replace(observed("7g.80gb@0"), pending_mig_enabled=False)

    assert said(difference(layout, wanted("7g.80gb@0"))) == ["set-mode on"]
    assert not wanted("7g.80gb@0").is_applied(layout)


@pytest.mark.parametrize(
    ("placements", "words"),
    [
        (("3g.40gb@2",), "3g.40gb may start at 0, 4"),
        (("3g.20gb@0",), "has no profile '3g.20gb'"),
        (("4g.40gb@0", "1g.10gb@3"), "overlaps another instance"),
        (("1g.10gb+me@0", "1g.10gb+me@1"), "needs more ofa"),
    ],
)
def test_a_layout_that_the_board_cannot_hold_is_refused_with_the_gpu_and_the_rule(placements, words):
    with pytest.raises(IllegalLayout, match=GPU) as caught:
        difference(observed(), wanted(*placements))

    assert words in str(caught.value)


def test_a_board_that_mig_cannot_cut_is_refused_by_name_and_may_stay_whole():
    l4 = ObservedLayout(GPU, 0, "NVIDIA L4", None)

    assert difference(l4, WHOLE).is_empty
    with pytest.raises(IllegalLayout, match="MIG cannot cut NVIDIA L4"):
        difference(l4, wanted())


def test_instances_of_a_gpu_without_mig_mode_are_refused():
    with pytest.raises(IllegalLayout, match="instances need MIG mode"):
        difference(whole(), replace(wanted("1g.10gb@0"), mig_enabled=False))


def test_layouts_of_two_gpus_are_never_compared():
    with pytest.raises(ValueError, match="compared"):
        difference(replace(whole(), gpu="GPU-b"), WHOLE)


def test_counts_get_the_positions_that_the_driver_would_choose():
    """The layout to want with NVIDIA's MIG manager, which creates by counts, is what that creation yields."""
    counts = multiset([at("3g.40gb@0"), at("2g.20gb@0"), at("1g.10gb@0"), at("1g.10gb@1")])

    assert creation_order(H100, counts) == tuple(
        map(at, ("3g.40gb@4", "2g.20gb@2", "1g.10gb@1", "1g.10gb@0"))
    )


@st.composite
def situations(draw):
    """A board, what is there, what is wanted, and the devices that pods hold."""
    on = draw(st.sampled_from(BOARDS))
    present, target = (draw(st.sampled_from(layouts(on))) for _ in range(2))
    wholes = draw(
        st.lists(st.sampled_from(["whole", "half", "shared"]), min_size=len(present), max_size=len(present))
    )
    kinds = {"whole": (("a",), True), "half": ((), False), "shared": (("a", "b"), False)}
    instances = tuple(
        ObservedInstance(p, tuple(f"MIG-{p}-{d}" for d in kinds[kind][0]), whole=kinds[kind][1])
        for p, kind in zip(present, wholes, strict=True)
    )
    devices = [device for each in instances for device in each.devices]
    held = draw(st.sets(st.sampled_from(devices))) if devices else set()
    return observed(on=on, instances=instances), WantedLayout(GPU, mig_enabled=True, placements=target), held


def after(layout, operation):
    others = tuple(i for i in layout.instances if i.placement != operation.placement)
    if operation.kind == "create-instance":
        others = (*others, instance(operation.placement))
    return replace(layout, instances=tuple(sorted(others)))


@given(situations())
def test_every_point_on_the_way_is_legal_and_what_is_held_is_never_touched(situation):
    layout, target, held = situation
    result = difference(layout, target, held)
    kept = {i.placement: i for i in layout.instances if i.is_held(held)}

    for operation in result.operations:
        assert operation.placement not in kept
        layout = after(layout, operation)
        assert is_legal(layout.board, layout.placements)

    assert {i.placement: i for i in layout.instances if i.placement in kept} == kept
    assert set(target.placements) <= set(layout.placements) | set(result.postponed)
    again = difference(layout, target, held)
    assert again.operations == ()
    assert (again.in_use, again.postponed) == (result.in_use, result.postponed)
    assert bool(result.in_use) >= bool(result.postponed)


@given(situations(), st.data())
def test_interrupted_after_any_operation_the_same_layout_is_reached_once_nothing_is_held(situation, data):
    layout, target, held = situation
    operations = difference(layout, target, held).operations
    for operation in operations[: data.draw(st.integers(0, len(operations)))]:
        layout = after(layout, operation)

    for operation in difference(layout, target).operations:
        layout = after(layout, operation)

    assert target.is_applied(layout)
    assert difference(layout, target).is_empty


def test_operations_say_what_they_do():
    assert (
        str(LayoutOperation("create-instance", "GPU-a", at("1g.10gb@6")))
        == "create-instance 1g.10gb@6 of GPU-a"
    )
    assert str(LayoutOperation("set-mode", "GPU-a", mig_enabled=True)) == "set-mode on of GPU-a"
