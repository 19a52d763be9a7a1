"""Parse `model.uri`: a directory of the engine image or of a claim, or a repository that is fetched."""

import re
from dataclasses import dataclass

MODEL_MOUNT = "/mnt/model"
FETCHED = f"{MODEL_MOUNT}/checkpoint"  # where a pod has what it fetched

FETCHED_SCHEMES = ("hf", "s3", "oci")

_SEGMENT = r"[A-Za-z0-9_][A-Za-z0-9._-]*"  # no leading dot: neither `..` nor hidden directories
_CLAIM = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_DIGEST = r"sha256:[0-9a-f]{64}"
REVISION_PATTERN = rf"^({_SEGMENT}(/{_SEGMENT})*|{_DIGEST})$"
_REVISION = rf"{_SEGMENT}(/{_SEGMENT})*"
_BUCKET = r"[a-z0-9][a-z0-9.-]*[a-z0-9]"
_REGISTRY = r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:[0-9]{1,5})?"
_TAG = r"[A-Za-z0-9_][A-Za-z0-9._-]*"
# The one pattern for the CRD (RE2, in CEL) and for Python: both dialects read it alike.
URI_PATTERN = (
    rf"^(image://(/{_SEGMENT})+|pvc://{_CLAIM}(/{_SEGMENT})+|"
    rf"hf://{_SEGMENT}/{_SEGMENT}(@{_REVISION})?|s3://{_BUCKET}(/{_SEGMENT})+(@{_REVISION})?|"
    rf"oci://{_REGISTRY}(/[a-z0-9][a-z0-9._-]*)+(:{_TAG}|@{_DIGEST})?)$"
)
URI_HELP = (
    "must be hf://organisation/name (on the hub, at a revision: hf://organisation/name@revision), "
    "s3://bucket/prefix, oci://registry/repository:tag or @sha256:digest, pvc://claim/directory, or "
    "image:///absolute/directory (inside the engine image); "
    "names are letters, digits, '_', '-' and '.', and do not begin with '.' or '-'"
)
REVISION_HELP = "must be a branch, tag, commit, digest or pin: letters, digits and _ - . / only"
LONGEST_URI = 512

_URI = re.compile(URI_PATTERN.removesuffix("$") + r"\Z")


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A parsed `model.uri`."""

    scheme: str  # image | pvc | hf | s3 | oci
    claim: str | None  # name of the PersistentVolumeClaim, for pvc
    path: str  # directory as the engine sees it
    repository: str = ""  # organisation/name, for hf; bucket/prefix, for s3; registry/repository, for oci
    revision: str = ""  # of the repository; empty: its default branch, or the tag "latest"

    @property
    def is_fetched(self) -> bool:
        """Whether a pod fetches it before the engine starts."""
        return bool(self.repository)

    def at(self, revision: str) -> str:
        """Return the URI of a repository at another revision; empty: at none."""
        is_tag = self.scheme == "oci" and ":" not in revision
        mark = "" if not revision else ":" if is_tag else "@"
        return f"{self.scheme}://{self.repository}{mark}{revision}"


def model_source(uri: str) -> ModelSource:
    """Parse a valid `model.uri`. Raises `ValueError` with what to write instead."""
    if not _URI.match(uri):
        raise ValueError(f"model.uri {uri!r} {URI_HELP}")
    scheme, rest = uri.split("://", 1)
    if scheme == "image":
        return ModelSource("image", None, rest)
    if scheme in FETCHED_SCHEMES:
        repository, mark, revision = rest.partition("@")
        registry, slash, name = repository.partition("/")
        if scheme == "oci" and not mark and ":" in name:  # a colon before the slash is that of a port
            name, _, revision = name.partition(":")
            repository = f"{registry}{slash}{name}"
        return ModelSource(scheme, None, FETCHED, repository, revision)
    claim, directory = rest.split("/", 1)
    return ModelSource("pvc", claim, f"{MODEL_MOUNT}/{directory}")
