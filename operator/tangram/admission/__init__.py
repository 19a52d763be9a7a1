"""What an admission request for an object of Tangram is answered: a refusal, or warnings. Pure.

In: the object as a person applies it, the mirrored objects beside it, and the fleet of the last round. Out:
the field that is refused and why, or sentences that kubectl prints.
"""

from tangram.admission.object_warnings import object_warnings
from tangram.admission.placement_warnings import NO_ANSWER, placement_warnings
from tangram.admission.refusal import refusal
from tangram.admission.review import (
    LONGEST_WARNING,
    ObjectKey,
    RefusedField,
    Review,
    ReviewedFleet,
    ReviewedObjects,
)

__all__ = [
    "LONGEST_WARNING",
    "NO_ANSWER",
    "ObjectKey",
    "RefusedField",
    "Review",
    "ReviewedFleet",
    "ReviewedObjects",
    "object_warnings",
    "placement_warnings",
    "refusal",
]
