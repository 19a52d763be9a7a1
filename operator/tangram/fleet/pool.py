"""A group of GPU nodes, what they cost, and what may be done to them: one `GPUPool`."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from tangram.catalog.reading.field_path import FieldPath

NodeSelector = tuple[tuple[str, str], ...]
"""Labels, sorted, all of which a node must have."""


class PoolPolicy(StrEnum):
    """What Tangram may do to the MIG layout of a pool's GPUs."""

    IGNORE = "Ignore"  # plans take the layout as it is
    RECOMMEND = "Recommend"  # as FULL, once a person has approved the plan
    IDLE_ONLY = "IdleOnly"  # what no pod uses may be re-cut
    FULL = "Full"  # any GPU may be re-cut, and its replicas moved

    @property
    def cuts_unasked(self) -> bool:
        """Whether plans may re-cut GPUs before a person approves them."""
        return self in (PoolPolicy.IDLE_ONLY, PoolPolicy.FULL)


@dataclass(frozen=True, slots=True, order=True)
class Pool:
    """A valid `GPUPool`. Defaults are already filled in."""

    name: str
    selector: NodeSelector = ()  # none: no node
    price_per_gpu_hour: float | None = None  # USD; None: the operator's prices, else the catalog's
    policy: PoolPolicy = PoolPolicy.IDLE_ONLY
    backend: Literal["nvml", "mig-manager"] | None = None  # how GPUs are cut; None: the backend of each GPU
    disruption_budget: int | None = None  # most replicas that one plan may move here; None: any number
    max_nodes: int | None = None  # None: the nodes that there are
    sku: str | None = None  # of new nodes, and of nodes without the product label; None: that of its nodes
    gpus_per_node: int = 8
    zone: str = ""  # of new nodes
    mig_enabled: bool = False  # of new nodes
    model_storage_class: str = ""  # of claims that hold checkpoints; empty: each pod fetches its own
    # Why the present spec is not accepted, where this is the last accepted one, which stays in force.
    refused_edit: str = ""

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Whether a node with these labels belongs to it."""
        return bool(self.selector) and all(labels.get(key) == value for key, value in self.selector)


def declared_skus(labels: Mapping[str, str], pools: Iterable[Pool]) -> tuple[str, ...]:
    """Return the SKUs that the pools of a node with these labels declare, sorted; more than one: no SKU."""
    return tuple(sorted({pool.sku for pool in pools if pool.sku is not None and pool.selects(labels)}))


def pool_price(names: Iterable[str], pools: Mapping[str, Pool]) -> float | None:
    """Return USD per GPU-hour of a node in the pools `names`; None: no pool sets a price.

    The first pool by name that sets a price decides, not the first pool.
    """
    prices = (pools[name].price_per_gpu_hour for name in sorted(names))
    return next((price for price in prices if price is not None), None)


@dataclass(frozen=True, slots=True, order=True)
class InvalidPool:
    """A `GPUPool` with an invalid spec: a user error, reported in its status."""

    name: str
    message: str  # with the field's path and what to do
    fields: tuple[FieldPath, ...] = ()  # that the message is about


@dataclass(frozen=True, slots=True)
class PoolUse:
    """How much of a GPUPool is used."""

    gpus: int
    free: int  # GPUs that no pod uses
    cost_per_hour: float | None  # USD of those in use; None: a price is unknown
