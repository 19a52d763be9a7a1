"""What is refused of an object that CEL rules cannot know."""

from tangram.admission.review import RefusedField, Review, ReviewedObjects


def refusal(review: Review, objects: ReviewedObjects) -> RefusedField | None:
    """Return the field that is refused, None where the object is admitted. No solve: under 10 ms.

    An update is refused only for a field that it changes, and never while the object is being deleted.
    """
    return None
