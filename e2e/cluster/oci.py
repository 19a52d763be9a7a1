"""OCI images as bytes, as far as we must write them ourselves: the sandbox image, which is one program."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

LAYER = "application/vnd.oci.image.layer.v1.tar"
CONFIG = "application/vnd.oci.image.config.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"


def descriptor(media_type: str, content: bytes) -> dict[str, Any]:
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    return {"mediaType": media_type, "digest": digest, "size": len(content)}


def single_program_archive(program: Path, reference: str) -> bytes:
    """An OCI archive (tar) of an image from scratch that holds and runs one static program."""
    layer = _tar({program.name: (program.read_bytes(), 0o755)})
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
    named = {**descriptor(MANIFEST, manifest), "annotations": {"io.containerd.image.name": reference}}
    files = {"oci-layout": _json({"imageLayoutVersion": "1.0.0"})}
    files["index.json"] = _json({"schemaVersion": 2, "manifests": [named]})
    for blob in (layer, config, manifest):
        files[f"blobs/sha256/{hashlib.sha256(blob).hexdigest()}"] = blob
    return _tar({name: (content, 0o644) for name, content in files.items()})


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def _tar(files: dict[str, tuple[bytes, int]]) -> bytes:
    """Reproducible: no times, no owners."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, (content, mode) in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
