"""What no image of the product may hold is found in any of its layers."""

import hashlib
import io
import json
import stat
import tarfile
from pathlib import Path

import pytest

from e2e.cluster import contents, oci
from e2e.cluster.contents import ImageFile

FILE, FOLDER, LINK = stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK


@pytest.mark.parametrize(
    ("path", "mode"),
    [
        ("usr/bin/perl", FILE | 0o755),
        ("usr/bin/bash", FILE | 0o755),
        ("bin/sh", LINK | 0o777),
        ("usr/sbin/ldconfig", FILE | 0o755),
        ("usr/local/bin/pip3", FILE | 0o755),
        ("opt/venv/bin/uv", FILE | 0o755),
        ("opt/venv/.lock", FILE | 0o644),
        ("opt/venv/lib/python3.12/site-packages/pip", FOLDER | 0o755),
        ("usr/lib/python3.12/ensurepip", FOLDER | 0o755),
        ("opt/build/.build/ca-certificates.crt", FILE | 0o644),
        ("opt/build", FOLDER | 0o755),
        ("srv/requirements/engine.lock", FILE | 0o644),
        ("opt/tangram/tool", FILE | 0o4755),
        ("opt/tangram/tool", FILE | 0o2755),
        ("opt/tangram/module.py", FILE | 0o666),
        ("var/spool", FOLDER | 0o777),
    ],
)
def test_a_file_that_no_image_may_hold_is_named(path: str, mode: int) -> None:
    (fault,) = contents.faults([ImageFile(path, mode)])
    assert fault.startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("path", "mode"),
    [
        ("usr/bin/python3.12", FILE | 0o755),
        ("usr/local/bin/python3", LINK | 0o777),
        ("opt/venv/bin/tangram-engine", FILE | 0o755),
        ("opt/venv/lib/python3.12/site-packages/torch/bin/protoc", FILE | 0o755),
        ("opt/venv/lib/python3.12/site-packages/torch/include/tensorpipe/transport/uv", FOLDER | 0o755),
        ("opt/venv/lib/python3.12/site-packages/setuptools/_vendor/.lock", FILE | 0o644),
        ("var/lib/dpkg/status.d/libc6", FILE | 0o644),
        ("tmp", FOLDER | 0o1777),
    ],
)
def test_what_images_need_is_no_fault(path: str, mode: int) -> None:
    assert contents.faults([ImageFile(path, mode)]) == []


def test_a_file_that_a_later_layer_removes_is_found_nevertheless(tmp_path: Path) -> None:
    blobs = tmp_path / "blobs/sha256"
    blobs.mkdir(parents=True)

    def put(content: bytes) -> dict[str, object]:
        digest = hashlib.sha256(content).hexdigest()
        (blobs / digest).write_bytes(content)
        return {"digest": f"sha256:{digest}", "size": len(content)}

    def layer(name: str, mode: int) -> bytes:
        return oci.tar({name: (b"x", mode)})

    layers = [put(layer("./usr/bin/su", 0o4755)), put(layer("usr/bin/.wh.su", 0o644))]
    manifest = put(json.dumps({"config": put(b"{}"), "layers": layers}).encode())
    entry = {**manifest, "annotations": {oci.REFERENCE: "tangram.local/x:1"}}
    (tmp_path / "index.json").write_text(json.dumps({"manifests": [entry]}))

    held = list(contents.files(tmp_path, "tangram.local/x:1"))
    assert held[0] == ImageFile("usr/bin/su", FILE | 0o4755)
    assert "usr/bin/su: changes its user or group" in contents.faults(held)


def test_links_and_folders_of_a_layer_keep_their_kind(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "layer", "w") as archive:
        for name, kind in (("lib", tarfile.SYMTYPE), ("tmp", tarfile.DIRTYPE)):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = kind, 0o777
            archive.addfile(entry, io.BytesIO())
    with tarfile.open(tmp_path / "layer") as archive:
        kinds = [contents.image_file(entry).mode & 0o170000 for entry in archive]
    assert kinds == [LINK, FOLDER]
