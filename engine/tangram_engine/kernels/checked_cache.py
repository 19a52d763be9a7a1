"""Triton's kernel cache with checksums: a damaged entry is compiled again instead of ending every start.

Triton trusts what it finds: a truncated file of metadata raises, a truncated kernel is refused by the driver,
and both again after each restart of the container, because the cache outlives it.
"""

import hashlib
import json
import logging
from pathlib import Path

from triton.runtime.cache import FileCacheManager

logger = logging.getLogger(__name__)


class CheckedCache(FileCacheManager):  # type: ignore[misc]  # Triton has no types
    """Keeps a SHA-256 beside each file that it writes. A file without one, of another writer, is trusted."""

    def put(self, data: object, filename: str, binary: bool = True) -> str:
        """Write a file, after its checksum: when that was all that was written, the file is not there."""
        content = data if isinstance(data, bytes) else str(data).encode()
        super().put(hashlib.sha256(content).hexdigest(), _checksum_of(filename), binary=False)
        path: str = super().put(content, filename, binary=binary)
        return path

    def get_file(self, filename: str) -> str | None:
        """The path of a whole file, or None."""
        path: str | None = super().get_file(filename)
        return path if path is None or _whole(Path(path)) else None

    def get_group(self, filename: str) -> dict[str, str] | None:
        """The paths of the files that were put together, or None unless each is there and whole."""
        path = CheckedCache.get_file(self, f"__grp__{filename}")
        if path is None:
            return None
        group: dict[str, str] = json.loads(Path(path).read_bytes())["child_paths"]
        return group if all(_whole(Path(path)) for path in group.values()) else None


def _checksum_of(filename: str) -> str:
    return f"{filename}.sha256"


def _whole(path: Path) -> bool:
    checksum = path.with_name(_checksum_of(path.name))
    if not path.exists():
        return False
    if not checksum.exists():
        return True
    expected = checksum.read_text()
    if hashlib.sha256(path.read_bytes()).hexdigest() == expected:
        return True
    logger.warning("kernel cache: %s is damaged and is made again", path)
    return False
