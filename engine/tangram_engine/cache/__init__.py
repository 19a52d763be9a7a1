"""The paged KV cache's bookkeeping, without torch.

In: sequences, their lengths and prefix keys. Out: block tables, hits in the prefix cache, free blocks.
"""

from tangram_engine.cache.keys import ROOT, extend_keys, salted_root
from tangram_engine.cache.manager import BlockManager

__all__ = ["ROOT", "BlockManager", "extend_keys", "salted_root"]
