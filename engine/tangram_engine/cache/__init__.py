"""Which KV block holds what: the paged cache's bookkeeping, without torch."""

from tangram_engine.cache.keys import ROOT, extend_keys, salted_root
from tangram_engine.cache.manager import BlockManager

__all__ = ["ROOT", "BlockManager", "extend_keys", "salted_root"]
