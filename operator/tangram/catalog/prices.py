"""What a GPU-hour and a replica cost.

The price that a node's GPUPools set (`tangram.fleet.pool_price`) holds over that of the operator or the user,
which holds over the catalog's.
A slice costs its dominant share of the GPU; tensor parallelism multiplies.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tangram.catalog.lookup import gpu, share
from tangram.catalog.reading.errors import InputError

# No GPU-hour costs more than this; a price above it is a price per month or in another currency.
HIGHEST_USD_PER_HOUR = 1000.0


@dataclass(frozen=True, slots=True)
class Prices:
    """USD per GPU and hour by SKU."""

    overrides: Mapping[str, float] = field(default_factory=dict)

    def gpu_hour(self, sku: str, pool_price: float | None = None) -> float | None:
        """Return the price of one GPU-hour, `pool_price` where a pool sets one; None: no price is known."""
        if pool_price is not None:
            return pool_price
        if sku in self.overrides:
            return self.overrides[sku]
        facts = gpu(sku)
        return facts.price_per_hour if facts else None

    def required_gpu_hour(self, sku: str, pool_price: float | None = None) -> float:
        """Return the price of one GPU-hour. Raises `InputError` where none is known."""
        price = self.gpu_hour(sku, pool_price)
        if price is None:
            raise InputError(f"prices.{sku}", "no price is known for this SKU; set one")
        return price

    def replica_hour(
        self, sku: str, profile: str, tensor_parallel: int = 1, pool_price: float | None = None
    ) -> float | None:
        """Return the price of one replica per hour, by `pool_price` where a pool sets one; None: no price is
        known.
        """
        price = self.gpu_hour(sku, pool_price)
        return None if price is None else price * share(sku, profile, tensor_parallel)

    def required_replica_hour(self, sku: str, profile: str, tensor_parallel: int = 1) -> float:
        """Return the price of one replica per hour. Raises `InputError` where none is known."""
        return self.required_gpu_hour(sku) * share(sku, profile, tensor_parallel)

    def is_default(self, sku: str) -> bool:
        """Whether the price is the catalog's and not the user's."""
        return sku not in self.overrides
