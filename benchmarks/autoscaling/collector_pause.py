"""The cyclic garbage collector, paused while a simulation runs.

All objects of a run live until its end, so the collector finds nothing in a heap that it walks again and again. What a
run leaves is collected after it.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused_collector() -> Iterator[None]:
    """Collect no cyclic garbage inside, and all of it at the end."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.collect()
