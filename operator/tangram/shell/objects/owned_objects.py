"""Read back what the operator wrote into the objects that an LLMDeployment owns: shape, generation. Pure."""

import json
from functools import cache

from tangram.capacity.sizing.candidate_shapes import TENSOR_PARALLEL
from tangram.catalog import gpu as catalog_gpu
from tangram.catalog import skus
from tangram.fleet import BUNDLED, QUANTISED, WHOLE_GPU, Shape
from tangram.kube.kinds import (
    DEPLOYMENTS,
    GENERATION_ANNOTATION,
    SERVICES,
    SHAPE_ANNOTATION,
    VARIANT_LABEL,
    Object,
    annotations_of,
    key_of,
    owner_of,
)

MAX_ANNOTATION = 512  # characters of one that the operator writes; other editors may write more
MAX_GENERATION_DIGITS = 18
_MOST_GPUS = 64  # of one replica, as in recorded back-offs

_PRECISIONS = ("bf16", "fp16", "fp32", *QUANTISED)  # of checkpoints, and those that engines convert to


class UnknownShape(ValueError):
    """No known shape has the variant of this Deployment's selector."""


def shape_of(deployment: Object) -> Shape:
    """Return the shape that a Deployment was rendered from. Raises `UnknownShape` where it cannot be found.

    The selector is immutable and holds a hash of the shape. The annotation can be edited: it counts where it
    has that hash, and is needed only for a GPU or a slice that has left the catalog.
    """
    variant = variant_of(deployment)
    shape = _catalog_shapes().get(variant) or _annotated_shape(deployment)
    if shape is None or shape.variant != variant:
        name = deployment["metadata"]["name"]
        raise UnknownShape(
            f"no shape of the catalog, nor annotation {SHAPE_ANNOTATION} of Deployment {name}, is the variant"
            f" {variant!r} of its selector: restore the annotation, or delete the Deployment"
        )
    return shape


def variant_of(deployment: Object) -> str:
    """Return the variant in the (immutable) selector of a Deployment, the empty string where it has none."""
    selector = (deployment.get("spec", {}).get("selector") or {}).get("matchLabels") or {}
    return str(selector.get(VARIANT_LABEL, ""))


@cache
def _catalog_shapes() -> dict[str, Shape]:
    """Return all shapes of the catalog, by variant."""
    boards = (gpu for sku in skus() if (gpu := catalog_gpu(sku)) is not None)
    return {
        shape.variant: shape
        for board in boards
        for profile in (WHOLE_GPU, *(profile.name for profile in board.profiles))
        for degree in TENSOR_PARALLEL
        for shape in (Shape(board.sku, profile, degree, precision) for precision in _PRECISIONS)
    }


def _annotated_shape(deployment: Object) -> Shape | None:
    text = annotations_of(deployment).get(SHAPE_ANNOTATION, "")
    if not isinstance(text, str) or len(text) > MAX_ANNOTATION:
        return None
    try:
        fields = json.loads(text)
        shape = Shape(
            sku=str(fields["sku"]),
            profile=str(fields["profile"]),
            tensor_parallel=int(fields["tensor_parallel"]),
            precision=str(fields["precision"]),
            runtime=str(fields.get("runtime", BUNDLED)),
            pipeline_parallel=int(fields.get("pipeline_parallel", 1)),
        )
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    return shape if min(shape.split) >= 1 and shape.gpus <= _MOST_GPUS else None


def generation_of(deployment: Object) -> int:
    """Return the generation of the LLMDeployment that a Deployment was rendered from, 0 if unrecorded."""
    text = annotations_of(deployment).get(GENERATION_ANNOTATION, "")
    return int(text) if text.isdecimal() and len(text) <= MAX_GENERATION_DIGITS else 0


def priority_class_of(deployment: Object) -> str:
    """Return the PriorityClass in the pod template of a Deployment, the empty string where it has none."""
    template = deployment["spec"].get("template") or {}
    return str((template.get("spec") or {}).get("priorityClassName") or "")


def has_rendered_name(obj: Object) -> bool:
    """Say whether an owned Deployment or Service has the name that the operator gives it: that of its owner,
    for a Deployment with the variant of its (immutable) selector. True for other kinds.
    """
    owner, kind = owner_of(obj), obj.get("kind")
    name = owner.name if owner else ""
    if kind == DEPLOYMENTS.kind:
        return key_of(obj)[1] == f"{name}-{variant_of(obj)}"
    return kind != SERVICES.kind or key_of(obj)[1] == name
