"""Children of LLMDeployments in the Mirror: what is read back out of the manifests we wrote. Pure."""

import json

from tangram.fleet import WHOLE_GPU, Shape
from tangram.shell.kinds import (
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

UNKNOWN_SHAPE = Shape("unknown", WHOLE_GPU)
"""Stands for an annotation that someone broke: the planner replaces or removes such a variant."""


def annotations_of(obj: Object) -> dict[str, str]:
    """Return an object's annotations."""
    return obj.get("metadata", {}).get("annotations") or {}


def labels_of(obj: Object) -> dict[str, str]:
    """Return an object's labels."""
    return obj.get("metadata", {}).get("labels") or {}


def shape_of(deployment: Object) -> Shape:
    """Return the shape that a Deployment was rendered from."""
    text = annotations_of(deployment).get(SHAPE_ANNOTATION, "")
    if len(text) > MAX_ANNOTATION:
        return UNKNOWN_SHAPE
    try:
        fields = json.loads(text)
        return Shape(
            sku=str(fields["sku"]),
            profile=str(fields["profile"]),
            tensor_parallel=int(fields["tensor_parallel"]),
            precision=str(fields["precision"]),
        )
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return UNKNOWN_SHAPE


def generation_of(deployment: Object) -> int:
    """Return the generation of the LLMDeployment that a Deployment was rendered from, 0 when it does not
    say.
    """
    text = annotations_of(deployment).get(GENERATION_ANNOTATION, "")
    return int(text) if text.isdecimal() and len(text) <= MAX_GENERATION_DIGITS else 0


def has_its_name(child: Object) -> bool:
    """Say whether a Deployment or Service of an LLMDeployment has the name that the operator gives it: its
    owner's, and for a Deployment the variant of its (immutable) selector. True for other kinds.
    """
    owner, kind = owner_of(child), child.get("kind")
    name = owner.name if owner else ""
    if kind == DEPLOYMENTS.kind:
        selector = (child.get("spec", {}).get("selector") or {}).get("matchLabels") or {}
        return key_of(child)[1] == f"{name}-{selector.get(VARIANT_LABEL)}"
    return kind != SERVICES.kind or key_of(child)[1] == name
