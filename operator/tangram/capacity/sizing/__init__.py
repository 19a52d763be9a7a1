"""Which GPUs and slices serve a model within its objectives, at what price, and why the others do not."""

from tangram.capacity.sizing.rank import size
from tangram.capacity.sizing.request import SizingRequest
from tangram.capacity.sizing.results import (
    Constraint,
    Rejection,
    ServingShape,
    ShapeChange,
    SizedShape,
    Sizing,
)

__all__ = [
    "Constraint",
    "Rejection",
    "ServingShape",
    "ShapeChange",
    "SizedShape",
    "Sizing",
    "SizingRequest",
    "size",
]
