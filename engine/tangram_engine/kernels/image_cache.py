"""Triton's cache in two folders: what the image was built with, and what is compiled at run time."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tangram_engine.kernels.checked_cache import CheckedCache

IMAGE_CACHE = "TANGRAM_IMAGE_CACHE"  # environment: the folder that the image was built with; it is read-only


class ImageCache(CheckedCache):
    """Looks into the image's folder first; TRITON_CACHE_DIR, on a volume, takes what is new.

    Triton loads the class that TRITON_CACHE_MANAGER names.
    """

    def get_file(self, filename: str) -> str | None:
        """The path of a file, or None."""
        path: str | None = self._first(super().get_file, filename)
        return path

    def get_group(self, filename: str) -> dict[str, str] | None:
        """The paths of the files that were put together under a name, or None."""
        group: dict[str, str] | None = self._first(super().get_group, filename)
        return group

    def _first(self, look: Callable[[str], Any], filename: str) -> Any:
        writable: str = self.cache_dir
        self.cache_dir: str = str(Path(os.environ[IMAGE_CACHE], self.key))
        try:
            entry = look(filename)
        finally:
            self.cache_dir = writable
        return look(filename) if entry is None else entry
