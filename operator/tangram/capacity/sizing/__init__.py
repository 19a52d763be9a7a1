"""Which GPUs and slices serve a model within its objectives, at what price, and why the others do not."""

from tangram.capacity.sizing.rank import size
from tangram.capacity.sizing.results import (
    Carried,
    Constraint,
    Rejection,
    ShapeChange,
    SizedShape,
    Sizing,
    SizingRequest,
)

__all__ = [
    "Carried",
    "Constraint",
    "Rejection",
    "ShapeChange",
    "SizedShape",
    "Sizing",
    "SizingRequest",
    "size",
]
