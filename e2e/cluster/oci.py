"""OCI images as bytes: the sandbox image, and what containerd must read of a builder's layout."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.cluster.base import write_atomically

LAYER = "application/vnd.oci.image.layer.v1.tar"
CONFIG = "application/vnd.oci.image.config.v1+json"
REFERENCE = "org.opencontainers.image.ref.name"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"


def descriptor(media_type: str, content: bytes) -> dict[str, Any]:
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    return {"mediaType": media_type, "digest": digest, "size": len(content)}


def single_program_archive(program: Path, reference: str) -> bytes:
    """An OCI archive (tar) of an image from scratch that holds and runs one static program."""
    layer = tar({program.name: (program.read_bytes(), 0o755)})
    config = _json(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Entrypoint": [f"/{program.name}"], "User": "65535:65535"},
            "rootfs": {"type": "layers", "diff_ids": [descriptor(LAYER, layer)["digest"]]},
        }
    )
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": descriptor(CONFIG, config),
            "layers": [descriptor(LAYER, layer)],
        }
    )
    return archive(reference, descriptor(MANIFEST, manifest), [layer, config, manifest])


def archive(reference: str, entry: dict[str, Any], blobs: list[bytes]) -> bytes:
    """A tar that ``ctr images import`` reads; ``entry`` describes the manifest among ``blobs``."""
    named = {**entry, "annotations": {"io.containerd.image.name": reference}}
    files = {"oci-layout": _json({"imageLayoutVersion": "1.0.0"})}
    files["index.json"] = _json({"schemaVersion": 2, "manifests": [named]})
    files |= {f"blobs/sha256/{hashlib.sha256(blob).hexdigest()}": blob for blob in blobs}
    return tar({name: (content, 0o644) for name, content in files.items()})


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def tar(files: dict[str, tuple[bytes, int]]) -> bytes:
    """Reproducible: no times, no owners."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, (content, mode) in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


@dataclass(frozen=True, slots=True)
class Blob:
    """A layer: ``sha256:…`` and its size in bytes."""

    digest: str
    size: int


@dataclass(frozen=True, slots=True)
class LayoutImage:
    """An image in a layout. ``archive``: all of it but the layers, as ``ctr images import`` reads it."""

    layers: tuple[Blob, ...]
    archive: bytes


def digest_in_layout(layout: Path, reference: str) -> str:
    """The digest of the image that ``index.json`` lists under ``reference``; KeyError when there is none."""
    return str(_entry(layout, reference)["digest"])


def _entry(layout: Path, reference: str) -> dict[str, Any]:
    index = json.loads((layout / "index.json").read_bytes())
    for entry in reversed(index["manifests"]):
        if entry.get("annotations", {}).get(REFERENCE) == reference:
            return dict(entry)
    raise KeyError(reference)


def find_in_layout(layout: Path, reference: str) -> LayoutImage:
    """The image that ``index.json`` lists under ``reference``; KeyError when there is none."""
    entry = _entry(layout, reference)

    def blob(digest: str) -> bytes:
        return (layout / "blobs/sha256" / digest.removeprefix("sha256:")).read_bytes()

    manifest = blob(entry["digest"])
    parsed = json.loads(manifest)
    layers = tuple(Blob(layer["digest"], layer["size"]) for layer in parsed["layers"])
    return LayoutImage(layers, archive(reference, entry, [manifest, blob(parsed["config"]["digest"])]))


def named(layout: Path) -> list[str]:
    """The references in a layout, the one that `retain` saw last at the end; none where no layout is."""
    try:
        index = json.loads((layout / "index.json").read_bytes())
    except FileNotFoundError:
        return []
    names = (entry.get("annotations", {}).get(REFERENCE) for entry in index["manifests"])
    return [name for name in names if name]


def retain(layout: Path, reference: str, builds: int) -> None:
    """Note the use of `reference`; drop the names of its repository but the `builds` used last."""
    index = json.loads((layout / "index.json").read_bytes())

    def name(entry: dict[str, Any]) -> str:
        return str(entry.get("annotations", {}).get(REFERENCE, ""))

    entries = sorted(index["manifests"], key=lambda entry: name(entry) == reference)
    siblings = [entry for entry in entries if repository(name(entry)) == repository(reference)]
    dropped = {name(entry) for entry in siblings[:-builds]}
    index["manifests"] = [entry for entry in entries if name(entry) not in dropped]
    write_atomically(layout / "index.json", _json(index))


def repository(reference: str) -> str:
    """``host:port/path`` of ``host:port/path:tag``."""
    return reference.rpartition(":")[0]


def prune_layout(layout: Path) -> int:
    """Remove what no named image uses any more (layers of earlier builds); returns the number of blobs."""
    index = json.loads((layout / "index.json").read_bytes())
    index["manifests"] = [m for m in index["manifests"] if REFERENCE in m.get("annotations", {})]
    write_atomically(layout / "index.json", _json(index))
    blobs = layout / "blobs/sha256"
    used: set[str] = set()
    for entry in index["manifests"]:
        manifest = json.loads((blobs / entry["digest"].removeprefix("sha256:")).read_bytes())
        parts = [entry, manifest["config"], *manifest["layers"]]
        used.update(part["digest"].removeprefix("sha256:") for part in parts)
    unused = [blob for blob in blobs.iterdir() if blob.name not in used]
    for blob in unused:
        blob.unlink()
    return len(unused)
