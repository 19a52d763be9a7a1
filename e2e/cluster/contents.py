"""What the layers of a built image hold, and which of it no image of the product may hold.

Every layer counts, not the file system that they make together: what a later layer hides is delivered, too.
"""

from __future__ import annotations

import re
import stat
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster import oci

# Folders of programs: the interpreter is the only one.
PROGRAMS = re.compile(r"(usr/(local/)?)?s?bin/(?!python3?(\.\d+)?$)[^/]+$")
# Shells, interpreters and installers, wherever they lie, and what the image was built with.
REFUSED = re.compile(
    r"(.*/)?((ba|da|z|k|a)?sh|busybox|perl[\d.]*|ensurepip|[^/]+\.lock|\.build)$|opt/build(/|$)"
    r"|opt/venv/(\.lock|bin/(uvx?|pip[\d.]*))$|.*/site-packages/(uv|pip)$"
)


@dataclass(frozen=True, slots=True)
class ImageFile:
    """An entry of a layer."""

    path: str  # without a leading slash
    mode: int  # with the bits of its kind, as `stat` has them


def files(layout: Path, reference: str) -> Iterator[ImageFile]:
    """Each entry of each layer of an image in an OCI layout with uncompressed layers."""
    for layer in oci.find_in_layout(layout, reference).layers:
        with tarfile.open(layout / "blobs/sha256" / layer.digest.removeprefix("sha256:"), "r:") as archive:
            yield from map(image_file, archive)


def image_file(entry: tarfile.TarInfo) -> ImageFile:
    """One entry of a layer's archive."""
    kind = stat.S_IFLNK if entry.issym() else stat.S_IFDIR if entry.isdir() else stat.S_IFREG
    return ImageFile(entry.name.removeprefix("./").strip("/"), entry.mode | kind)


def faults(entries: Iterable[ImageFile]) -> list[str]:
    """What is wrong with an image, one line for each file."""
    return [f"{entry.path}: {fault}" for entry in entries for fault in _faults(entry)]


def _faults(entry: ImageFile) -> Iterator[str]:
    if PROGRAMS.match(entry.path) or REFUSED.match(entry.path):
        yield "is no part of the product"
    if stat.S_ISLNK(entry.mode):
        return
    if entry.mode & (stat.S_ISUID | stat.S_ISGID):
        yield "changes its user or group"
    if entry.mode & stat.S_IWOTH and not (stat.S_ISDIR(entry.mode) and entry.mode & stat.S_ISVTX):
        yield "is writable by every user"
