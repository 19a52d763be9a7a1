"""Children of LLMDeployments in the Mirror: what is read back out of the manifests we wrote. Pure."""

import json
from functools import cache

from tangram.capacity.sizing.candidate_shapes import TENSOR_PARALLEL
from tangram.catalog import gpu as catalog_gpu
from tangram.catalog import skus
from tangram.fleet import QUANTISED, WHOLE_GPU, Shape
from tangram.shell.objects.kinds import (
    DEPLOYMENTS,
    GENERATION_ANNOTATION,
    SERVICES,
    SHAPE_ANNOTATION,
    VARIANT_LABEL,
    Object,
    key_of,
    owner_of,
)

MAX_ANNOTATION = 512  # of what we write ourselves; anyone who may edit a Deployment may write more
MAX_GENERATION_DIGITS = 18

_SERVED = ("bf16", "fp16", "fp32", *QUANTISED)  # formats of checkpoints, and those it converts them to


class UnknownShape(ValueError):
    """No shape has the variant of this Deployment's selector."""


def annotations_of(obj: Object) -> dict[str, str]:
    """Return an object's annotations."""
    return obj.get("metadata", {}).get("annotations") or {}


def labels_of(obj: Object) -> dict[str, str]:
    """Return an object's labels."""
    return obj.get("metadata", {}).get("labels") or {}


def shape_of(deployment: Object) -> Shape:
    """Return the shape that a Deployment was rendered from. Raises `UnknownShape` where none can be told.

    The selector cannot be changed, and holds a hash of the shape. The annotation can be: it is believed where
    it has that hash, which it needs to be only for a GPU or a slice that has left the catalog.
    """
    variant = variant_of(deployment)
    found = _shapes().get(variant) or _annotated(deployment)
    if found is None or found.variant != variant:
        name = deployment["metadata"]["name"]
        raise UnknownShape(
            f"no shape of the catalog, nor annotation {SHAPE_ANNOTATION} of Deployment {name}, is the variant"
            f" {variant!r} of its selector: restore the annotation, or delete the Deployment"
        )
    return found


def variant_of(deployment: Object) -> str:
    """Return the variant of a Deployment by its (immutable) selector, the empty string where it has none."""
    selector = (deployment.get("spec", {}).get("selector") or {}).get("matchLabels") or {}
    return str(selector.get(VARIANT_LABEL, ""))


@cache
def _shapes() -> dict[str, Shape]:
    """Return all shapes of the catalog, by variant."""
    boards = (gpu for sku in skus() if (gpu := catalog_gpu(sku)) is not None)
    return {
        shape.variant: shape
        for board in boards
        for profile in (WHOLE_GPU, *(each.name for each in board.profiles))
        for degree in TENSOR_PARALLEL
        for shape in (Shape(board.sku, profile, degree, precision) for precision in _SERVED)
    }


def _annotated(deployment: Object) -> Shape | None:
    text = annotations_of(deployment).get(SHAPE_ANNOTATION, "")
    if not isinstance(text, str) or len(text) > MAX_ANNOTATION:
        return None
    try:
        fields = json.loads(text)
        return Shape(
            sku=str(fields["sku"]),
            profile=str(fields["profile"]),
            tensor_parallel=int(fields["tensor_parallel"]),
            precision=str(fields["precision"]),
        )
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def generation_of(deployment: Object) -> int:
    """Return the generation of the LLMDeployment that a Deployment was rendered from, 0 when it does not
    say.
    """
    text = annotations_of(deployment).get(GENERATION_ANNOTATION, "")
    return int(text) if text.isdecimal() and len(text) <= MAX_GENERATION_DIGITS else 0


def class_of(deployment: Object) -> str:
    """Return the PriorityClass of the pods that a Deployment makes, the empty string where it names none."""
    template = deployment["spec"].get("template") or {}
    return str((template.get("spec") or {}).get("priorityClassName") or "")


def has_its_name(child: Object) -> bool:
    """Say whether a Deployment or Service of an LLMDeployment has the name that the operator gives it: its
    owner's, and for a Deployment the variant of its (immutable) selector. True for other kinds.
    """
    owner, kind = owner_of(child), child.get("kind")
    name = owner.name if owner else ""
    if kind == DEPLOYMENTS.kind:
        return key_of(child)[1] == f"{name}-{variant_of(child)}"
    return kind != SERVICES.kind or key_of(child)[1] == name
