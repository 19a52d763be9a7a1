"""MIG layouts of an A30 by number: the devices of each, and what the agent does between two of them."""

from functools import cache

from tangram.fleet import MIGLayout, MIGSlice, resource_name
from tangram.packing.geometry.board import board
from tangram.packing.geometry.layouts import Placement, is_legal
from tangram.partition import ObservedInstance, ObservedLayout, WantedLayout, difference
from tests.support.repartition_worlds import layout

BOARD = board("A30")
PROFILES = ("gpu", "1g.6gb", "2g.12gb", "4g.24gb")  # of the resources, which are numbered
RESOURCES = tuple(resource_name(profile) for profile in PROFILES)
NONE = -1  # no layout is wanted; no node; no time limit
WHOLE_START = 15  # as start of a device: the GPU as a whole

_layouts: list[MIGLayout] = []


class LawBroken(AssertionError):
    """A state or a step that must not be."""


def layout_number(of: MIGLayout) -> int:
    """Return the number of a layout."""
    if of not in _layouts:
        _layouts.append(of)
    return _layouts.index(of)


def layout_of(number: int) -> MIGLayout:
    """Return the layout with a number."""
    return _layouts[number]


def numbered(text: str) -> int:
    """Return the number of the layout that a text names."""
    return layout_number(layout(text))


@cache
def devices_of(number: int) -> tuple[tuple[int, int], ...]:
    """Return (start, resource) of each device of a layout."""
    of = _layouts[number]
    if not of.mig_enabled:
        return ((WHOLE_START, 0),)
    return tuple((s.start, RESOURCES.index(resource_name(s.profile))) for s in of.slices)


@cache
def is_legal_layout(number: int) -> bool:
    """Whether a GPU can have a layout."""
    return is_legal(BOARD, tuple(Placement(s.start, s.profile) for s in _layouts[number].slices))


@cache
def next_layout(actual: int, wanted: int, held: frozenset[int]) -> int:
    """Return the layout after the next operation of the agent; NONE: there is none that may be done now."""
    of, target = _layouts[actual], _layouts[wanted]
    instances = tuple(ObservedInstance(Placement(s.start, s.profile), (f"MIG-{s.start}",)) for s in of.slices)
    observed = ObservedLayout("GPU", 0, "A30", BOARD, of.mig_enabled, of.mig_enabled, instances)
    holders = {"GPU" if start == WHOLE_START else f"MIG-{start}" for start in held}
    placements = tuple(Placement(s.start, s.profile) for s in target.slices)
    left = difference(observed, WantedLayout("GPU", target.mig_enabled, placements), holders)
    if not left.operations:
        return NONE
    first = left.operations[0]
    slices = set(of.slices)
    if first.kind == "set-mode":
        return layout_number(MIGLayout(first.mig_enabled))
    assert first.placement is not None
    part = MIGSlice(first.placement.start, first.placement.profile)
    slices = slices | {part} if first.kind == "create-instance" else slices - {part}
    return layout_number(MIGLayout(True, tuple(sorted(slices))))
