"""Which KV block holds what: the paged cache's bookkeeping, without torch."""

from tangram_engine.cache.keys import extend_keys
from tangram_engine.cache.manager import BlockManager

__all__ = ["BlockManager", "extend_keys"]
