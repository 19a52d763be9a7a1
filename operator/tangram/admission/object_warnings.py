"""Warnings about a GPUPool or a FleetPlan that need no plan."""

from tangram.admission.review import Review, ReviewedObjects


def object_warnings(review: Review, objects: ReviewedObjects) -> tuple[str, ...]:
    """Return sentences for kubectl, each of at most `LONGEST_WARNING` characters. No solve: under 10 ms."""
    return ()
