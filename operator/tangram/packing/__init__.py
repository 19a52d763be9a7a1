"""Which slice of which GPU serves what: geometry, columns, one exact solve for the whole fleet. Pure.

`solve` is imported from its module where it is needed: it loads the solver, and the command line starts fast.
"""

from tangram.fleet import Spread
from tangram.packing.geometry.board import Board, Option, board
from tangram.packing.problem.codec import from_json, to_json
from tangram.packing.problem.result import Choice, GPULayout, Move, Packing, Placed, Site, Stage, Unmet
from tangram.packing.problem.statement import (
    ANY_SKU,
    Allotment,
    Demand,
    GPUState,
    GrowablePool,
    Headroom,
    Instance,
    Offer,
    Part,
    Problem,
    slice_request,
)
from tangram.packing.problem.validate import validate

__all__ = [
    "ANY_SKU",
    "Allotment",
    "Board",
    "Choice",
    "Demand",
    "GPULayout",
    "GPUState",
    "GrowablePool",
    "Headroom",
    "Instance",
    "Move",
    "Offer",
    "Option",
    "Packing",
    "Part",
    "Placed",
    "Problem",
    "Site",
    "Spread",
    "Stage",
    "Unmet",
    "board",
    "from_json",
    "slice_request",
    "to_json",
    "validate",
]
