"""Parse `model.uri`: `image:///dir` inside the engine image, or `pvc://claim/dir`."""

import re
from dataclasses import dataclass

PVC_MOUNT = "/mnt/model"

_SEGMENT = r"[A-Za-z0-9_][A-Za-z0-9._-]*"  # no leading dot: neither `..` nor hidden directories
_CLAIM = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
# The one pattern for the CRD (RE2, in CEL) and for Python: both dialects read it alike.
URI_PATTERN = rf"^(image://(/{_SEGMENT})+|pvc://{_CLAIM}(/{_SEGMENT})+)$"
URI_HELP = (
    "must be image:///absolute/directory (inside the engine image) or pvc://claim/directory; "
    "directory names are letters, digits, '_', '-' and '.', and do not begin with '.' or '-'"
)

_URI = re.compile(URI_PATTERN.removesuffix("$") + r"\Z")


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A parsed `model.uri`."""

    scheme: str  # image | pvc
    claim: str | None  # name of the PersistentVolumeClaim, for pvc
    path: str  # directory as the engine sees it


def model_source(uri: str) -> ModelSource:
    """Parse a valid `model.uri`. Raises `ValueError` with what to write instead."""
    if not _URI.match(uri):
        raise ValueError(f"model.uri {uri!r} {URI_HELP}")
    scheme, rest = uri.split("://", 1)
    if scheme == "image":
        return ModelSource("image", None, rest)
    claim, directory = rest.split("/", 1)
    return ModelSource("pvc", claim, f"{PVC_MOUNT}/{directory}")
