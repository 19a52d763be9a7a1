"""Kernels that Triton compiles after the engine is ready: each one is a pause in the middle of serving.

Tile sizes come from a table and warm-up runs every kernel, so the count stays zero; it is on /metrics.
"""

import logging
import sys
from typing import Any

logger = logging.getLogger(__name__)


class LateKernels:
    """Counts from its construction on. Where nothing imported Triton by then, no kernel can be late."""

    def __init__(self) -> None:
        self._built = 0
        # Where plain torch computes everything, Triton is not imported, and importing it would take a while.
        triton: Any = sys.modules.get("triton")
        if triton is not None and hasattr(triton, "knobs"):
            self._next = triton.knobs.compilation.listener
            triton.knobs.compilation.listener = self._compiled

    def take(self) -> int:
        """How many kernels were compiled, or loaded from Triton's cache, since the last call."""
        built, self._built = self._built, 0
        return built

    def _compiled(self, *, src: Any, times: Any, cache_hit: bool, **rest: Any) -> None:
        self._built += 1
        how = "loaded from the kernel cache" if cache_hit else "compiled"
        logger.warning("kernel %s is %s while requests wait, %.1f s", src.name, how, times.total / 1e6)
        if self._next is not None:
            self._next(src=src, times=times, cache_hit=cache_hit, **rest)
