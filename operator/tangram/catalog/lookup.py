"""Questions people ask the catalog that is shipped."""

import re
from functools import cache

from tangram.catalog.load import load
from tangram.catalog.records import GPU, Profile

# Under strategy `single` a node's nvidia.com/gpu is a slice, and with time-slicing it is a turn: neither is a
# whole GPU, and the label says so. Such nodes are not used (yet), rather than planned with the wrong memory.
_NOT_A_WHOLE_GPU = re.compile(r"-MIG-|-SHARED$")


def skus() -> tuple[str, ...]:
    """Every SKU, sorted."""
    return tuple(load().gpus)


def gpu(sku: str) -> GPU | None:
    """Return the facts about a SKU, or None if the catalog does not know it."""
    return load().gpus.get(sku)


@cache
def match_product(label: str) -> str | None:
    """Return the SKU of a node label `nvidia.com/gpu.product`; None: unknown, a slice, or time-sliced."""
    if _NOT_A_WHOLE_GPU.search(label):
        return None
    for sku, facts in load().gpus.items():
        if any(re.search(pattern, label) for pattern in facts.product_patterns):
            return sku
    return None


def profile(sku: str, name: str) -> Profile | None:
    """Return the MIG profile `name` on the board of `sku`, or None if there is no such profile."""
    facts = gpu(sku)
    return next((p for p in facts.profiles if p.name == name), None) if facts else None


def profile_of_resource(sku: str, resource: str) -> Profile | None:
    """Return the MIG profile that a node of `sku` offers as `resource`, or None."""
    facts = gpu(sku)
    return next((p for p in facts.profiles if p.resource == resource), None) if facts else None


def share(sku: str, profile_name: str) -> float:
    """Return which part of a GPU one slice uses up: its dominant share; 1.0 for a whole GPU."""
    facts = profile(sku, profile_name)
    return facts.dominant_share if facts else 1.0
