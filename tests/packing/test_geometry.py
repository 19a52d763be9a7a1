from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram import catalog
from tangram.catalog import InputError
from tangram.packing.geometry.board import Board, board
from tangram.packing.geometry.layouts import (
    IllegalLayout,
    Placement,
    check,
    creation_order,
    default_position,
    layout_of,
    layouts,
    maximal_layouts,
    maximal_multisets,
    multiset,
    multisets,
)

EIGHT_BY_SEVEN = [
    sku for sku in catalog.skus() if (found := board(sku)) is not None and found.memory_slices == 8
]


def by_class(sku: str, *classes: str) -> Board:
    """The board with only the profiles of these classes: 1g, 2g, ..., `1gd` for 1g of double memory, `me`."""
    gpu, whole = catalog.gpu(sku), board(sku)
    smallest = min(profile.memory_slices for profile in gpu.profiles)

    def kind(profile) -> str:
        if "+me" in profile.name:
            return "me"
        if profile.compute_slices == 1 and profile.memory_slices > smallest:
            return "1gd"
        return profile.name.split(".", 1)[0] if profile.name.count("+") + profile.name.count("-") == 0 else ""

    return whole.only(frozenset(p.name for p in gpu.profiles if kind(p) in classes))


def counts(cut: Board) -> tuple[int, ...]:
    return (
        len(layouts(cut)),
        len(maximal_layouts(cut)),
        len(multisets(cut)),
        len({multiset(layout) for layout in maximal_layouts(cut)}),
        len(maximal_multisets(cut)),
    )


BASIC = ("1g", "2g", "3g", "4g", "7g")


def test_every_board_that_mig_can_cut_has_a_geometry():
    assert [sku for sku in catalog.skus() if catalog.gpu(sku).mig_key and board(sku) is None] == []
    assert len(EIGHT_BY_SEVEN) >= 8


@pytest.mark.parametrize("sku", EIGHT_BY_SEVEN)
def test_an_8x7_board_has_the_published_number_of_layouts(sku):
    assert counts(by_class(sku, *BASIC)) == (298, 19, 38, 14, 12)
    assert counts(by_class(sku, *BASIC, "1gd"))[:2] == ((723, 78) if has_double(sku) else (298, 19))


def has_double(sku: str) -> bool:
    return by_class(sku, "1gd").profiles != ()


def test_double_memory_and_media_slices_are_counted_too():
    assert counts(by_class("H100-80GB-SXM", *BASIC, "1gd")) == (723, 78, 78, 38, 28)
    assert counts(board("H100-80GB-SXM")) == (2319, 239, 128, 64, 44)


def test_an_a30_has_four_slices():
    assert counts(by_class("A30", "1g", "2g", "4g"))[:3] == (26, 5, 10)
    assert len(maximal_multisets(by_class("A30", "1g", "2g", "4g"))) == 4
    assert counts(board("A30"))[:3] == (76, 17, 20)
    assert len(maximal_multisets(board("A30"))) == 8


def test_an_rtx_pro_6000_has_twelve_units_and_engine_sums():
    plain = by_class("RTX-PRO-6000-SERVER", "1g", "2g", "4g")

    assert counts(plain)[:3] == (26, 5, 10)
    assert len(maximal_multisets(plain)) == 4
    assert counts(board("RTX-PRO-6000-SERVER"))[:3] == (717, 302, 115)
    assert len(maximal_multisets(board("RTX-PRO-6000-SERVER"))) == 64


def test_the_twelve_columns_are_those_of_the_oracle():
    found = {
        tuple((name.split(".")[0], count) for name, count in wanted)
        for wanted in maximal_multisets(by_class("H100-80GB-SXM", *BASIC))
    }
    assert found == {
        (("1g", 7),),
        (("1g", 5), ("2g", 1)),
        (("1g", 3), ("2g", 2)),
        (("1g", 1), ("2g", 3)),
        (("1g", 4), ("3g", 1)),
        (("1g", 2), ("2g", 1), ("3g", 1)),
        (("2g", 2), ("3g", 1)),
        (("3g", 2),),
        (("1g", 3), ("4g", 1)),
        (("1g", 1), ("2g", 1), ("4g", 1)),
        (("3g", 1), ("4g", 1)),
        (("7g", 1),),
    }


H100 = board("H100-80GB-SXM")
NAMES = {"1": "1g.10gb", "1m": "1g.10gb+me", "1d": "1g.20gb", "2": "2g.20gb", "3": "3g.40gb", "4": "4g.40gb"}
NAMES["7"] = "7g.80gb"


def at(text: str) -> tuple[Placement, ...]:
    """`3@4 1@0` as placements."""
    return tuple(
        sorted(Placement(int(start), NAMES[name]) for name, start in (w.split("@") for w in text.split()))
    )


@pytest.mark.parametrize(
    "text",
    ["3@0 3@4", "4@0 3@4", "4@0 2@4 1@6", "2@0 2@2 2@4 1@6", "1d@6 2@0 2@2 2@4", "1d@0 1d@2 1d@4 1d@6"],
)
def test_a_layout_that_the_guide_shows_is_legal(text):
    check(H100, at(text))
    assert tuple(at(text)) in layouts(H100)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("4@0 4@4", "4g.40gb may start at 0"),
        ("2@6", "2g.20gb may start at 0, 2, 4"),
        ("1@4 3@4", "overlaps"),
        ("1m@0 1m@1", "ofa"),
        ("7@0 1@6", "overlaps"),
    ],
)
def test_a_layout_that_no_driver_makes_is_refused_with_the_rule_that_it_breaks(text, why):
    with pytest.raises(IllegalLayout, match=why):
        check(H100, at(text), "gpus[0].instances")
    assert tuple(at(text)) not in layouts(H100)


def test_an_unknown_profile_is_named_with_those_that_exist():
    with pytest.raises(IllegalLayout, match=r"no profile '3g.20gb'; it has 1g.10gb"):
        check(H100, (Placement(0, "3g.20gb"),))


def test_the_driver_puts_slices_at_the_high_end_and_order_matters():
    assert default_position(H100, (), NAMES["3"]) == at("3@4")[0]
    assert default_position(H100, (), NAMES["1"]) == at("1@6")[0]
    assert default_position(H100, (), NAMES["2"]) == at("2@4")[0]
    small_first: tuple[Placement, ...] = ()
    for name in ("1", "1", "2"):
        small_first = (*small_first, default_position(H100, small_first, NAMES[name]))
    assert default_position(H100, small_first, NAMES["3"]) is None
    assert creation_order(H100, multiset(at("1@0 1@1 2@2 3@4"))) is not None


@pytest.mark.parametrize("sku", ["H100-80GB-SXM", "A30", "RTX-PRO-6000-SERVER"])
def test_every_column_can_be_created_without_naming_positions(sku):
    cut = board(sku)
    for wanted in maximal_multisets(cut):
        made = creation_order(cut, wanted)
        assert made is not None, wanted
        check(cut, made)
        assert multiset(made) == wanted


def test_a_discovered_board_may_have_other_positions():
    found = Board(
        "found", 8, 7, (), tuple(o for o in H100.options if o.profile == NAMES["3"] and o.start == 4)
    )

    assert layouts(found) == ((), at("3@4"))
    assert layout_of(found, ((NAMES["3"], 2),)) is None


def test_an_option_that_leaves_its_board_is_refused():
    option = replace(H100.options[0], mask=1 << 8)
    with pytest.raises(InputError, match="leaves the board"):
        Board("bad", 8, 7, (), (option,))


@given(st.lists(st.sampled_from(H100.options), max_size=7, unique=True))
def test_checked_and_enumerated_layouts_agree(options):
    layout = tuple(sorted(Placement(o.start, o.profile) for o in options))
    try:
        check(H100, layout)
        legal = True
    except IllegalLayout:
        legal = False
    assert legal == (layout in set(layouts(H100)))
