"""Tests that take minutes and depend on few files: what they have passed with, they do not run again on."""

import hashlib
import importlib.metadata
import sys
from collections.abc import Iterable
from pathlib import Path

from e2e.cluster import paths

ROOT = Path(__file__).parents[2]


class PassedBefore:
    """Whether a test has passed on this machine with the very files and packages that it depends on.

    The record is an empty file, named by a digest, in the cache directory (`TANGRAM_CACHE`).
    """

    def __init__(self, test: str, files: Iterable[str], packages: Iterable[str]) -> None:
        """`files`: of the repository; of a folder all Python sources."""
        digest = hashlib.sha256(f"{test} {sys.version}".encode())
        for name in files:
            for path in sorted((ROOT / name).rglob("*.py")) or [ROOT / name]:
                digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes() + b"\0")
        for package in packages:
            digest.update(f"{package} {importlib.metadata.version(package)}\0".encode())
        self._record = paths.cache() / "passed" / f"{test}-{digest.hexdigest()[:16]}"

    def __bool__(self) -> bool:
        return self._record.exists()

    def add(self) -> None:
        """Record that it has passed; earlier records of this test go."""
        self._record.parent.mkdir(parents=True, exist_ok=True)
        for earlier in self._record.parent.glob(f"{self._record.name.rpartition('-')[0]}-*"):
            earlier.unlink(missing_ok=True)
        self._record.touch()
