"""The layers of an image or artifact that may hold files of a checkpoint. Pure.

Sources: OCI image spec 1.1 (manifest.md, image-index.md), CNCF ModelPack (model-spec, docs/annotations.md),
oras (io.deis.oras.content.unpack).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tangram.sources.checkpoint.errors import invalid
from tangram.sources.checkpoint.files import MOST_FILES, is_checkpoint_file

MANIFESTS = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
INDEXES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_MODEL_PATH = "org.cncf.model.filepath"  # of a single file, or of a tar
_TITLE, _UNPACK = "org.opencontainers.image.title", "io.deis.oras.content.unpack"
WHITEOUT = ".wh."  # of a lower layer's file (OCI image spec, layer.md)
HIDES_ALL = f"{WHITEOUT}.wh..opq"
_MODELS = "models"
_NAME = re.compile(rf"(\.wh\.)?[A-Za-z0-9_][A-Za-z0-9._-]{{0,199}}|{re.escape(HIDES_ALL)}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_LARGEST = 1 << 50  # bytes


@dataclass(frozen=True, slots=True)
class Blob:
    """One layer: a tar, or a single file."""

    digest: str  # sha256:hexadecimal
    size: int  # bytes, as stored
    name: str = ""  # of the single file; empty: a tar
    compression: str = ""  # of a tar: gzip | zstd | empty


def platform_digest(uri: str, index: Mapping[str, Any]) -> str:
    """Return the digest of the manifest for linux/amd64, else of the first one. Raises SourceError.

    Weights are the same for all platforms.
    """
    entries = _objects(uri, index, "manifests")
    images = [entry for entry in entries if _platform(entry) != ("unknown", "unknown")]  # attestations
    for entry in sorted(images, key=lambda entry: _platform(entry) != ("linux", "amd64")):
        if entry.get("mediaType") in MANIFESTS:
            return _digest(uri, entry)
    raise invalid(f"{uri} is an index without an image: name an image or a model artifact")


def layers(uri: str, manifest: Mapping[str, Any]) -> tuple[Blob, ...]:
    """Return the layers that may hold files of a checkpoint, the lowest first. Raises SourceError."""
    entries = _objects(uri, manifest, "layers")
    blobs = tuple(blob for entry in entries if (blob := _blob(uri, entry)) is not None)
    if not blobs:
        text = f"{uri} has no layer that is a tar or a named file"
        raise invalid(f"{text}: push the files of a checkpoint, as a modelcar or a ModelPack")
    return blobs


def _blob(uri: str, entry: Mapping[str, Any]) -> Blob | None:
    media_type, size = entry.get("mediaType"), entry.get("size")
    if not isinstance(media_type, str) or type(size) is not int or not 0 <= size <= _LARGEST:
        raise invalid(f"{uri}: a layer has no mediaType or size: push it again")
    notes = entry.get("annotations")
    notes = notes if isinstance(notes, Mapping) else {}
    digest = _digest(uri, entry)
    # oras gives single files the media type of a tar, and a title.
    is_titled = isinstance(notes.get(_TITLE), str) and notes.get(_UNPACK) != "true"
    if ".tar" in media_type and (not is_titled or _MODEL_PATH in notes):
        ending = re.search(r"[.+](gzip|zstd)$", media_type)
        return Blob(digest, size, "", ending[1] if ending else "")
    path = notes.get(_MODEL_PATH, notes.get(_TITLE))
    name = checkpoint_name(path) if isinstance(path, str) else None
    return Blob(digest, size, name) if name is not None and is_checkpoint_file(name) else None


def checkpoint_name(path: str) -> str | None:
    """Return the name of a file in the root or in `models/`, None for others.

    KServe's modelcars have the files of a checkpoint in `models/`, and artifacts have them in the root.
    """
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if parts == [f"{WHITEOUT}{_MODELS}"]:
        return HIDES_ALL
    if len(parts) == 2 and parts[0] == _MODELS:
        parts = parts[1:]
    return parts[0] if len(parts) == 1 and _NAME.fullmatch(parts[0]) else None


def _objects(uri: str, document: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    entries = document.get(name)
    if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
        raise invalid(f"{uri}: its manifest has no list of {name}: name an image or a model artifact")
    if len(entries) > MOST_FILES:
        raise invalid(f"{uri} has {len(entries)} {name}; at most {MOST_FILES} are read: merge them")
    return entries


def _platform(entry: Mapping[str, Any]) -> tuple[object, object]:
    platform = entry.get("platform")
    return (platform.get("os"), platform.get("architecture")) if isinstance(platform, Mapping) else ("", "")


def _digest(uri: str, entry: Mapping[str, Any]) -> str:
    digest = entry.get("digest")
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise invalid(f"{uri}: its manifest names {str(digest)[:100]!r}, which is no SHA-256: push it again")
    return digest
