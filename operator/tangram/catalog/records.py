"""Records of the catalog: GPUs and MIG profiles."""

import math
from dataclasses import dataclass

# GPUs that NVLink joins where the catalog has no number: a board of eight. Beyond it ranks talk through
# network cards, which sit behind PCIe and are about as fast (400 Gb/s against 63 GB/s).
NODE_GPUS = 8


@dataclass(frozen=True, slots=True)
class Profile:
    """A MIG profile on one board. Its name's GB are a label, never a size: plan with `memory_mib`."""

    name: str  # as NVIDIA prints it: 1g.10gb, 1g.10gb+me
    resource: str  # extended resource of the device plugin, mixed strategy
    memory_mib: int | None  # None: no source found
    compute_share: float  # compute slices over those of the board (sevenths on an H100)
    memory_share: float  # memory slices over those of the board (eighths on an H100); bandwidth follows it
    sm_count: int | None
    unverified_fields: tuple[str, ...]  # facts without a source good enough to rely on
    compute_slices: int = 0
    memory_slices: int = 0  # in the board's placement units: eighths on an H100, twelfths on an RTX PRO 6000
    starts: tuple[int, ...] = ()  # memory slices it may begin at; empty: not published
    engines: tuple[tuple[str, int], ...] = ()  # copy, decoder, encoder, jpeg, ofa; no source: absent

    @property
    def dominant_share(self) -> float:
        """Part of the GPU that this slice uses up: its larger share. `lookup.share` and prices follow it."""
        return max(self.compute_share, self.memory_share)

    @property
    def memory_is_known(self) -> bool:
        """Whether a plan may rely on `memory_mib`."""
        return self.memory_mib is not None and "memory" not in self.unverified_fields


@dataclass(frozen=True, slots=True)
class GPU:
    """A GPU model (SKU)."""

    sku: str
    memory_mib: int  # what NVML reports as the board's total
    mem_bw_gbps: float  # GB/s (1e9 bytes)
    tflops: tuple[tuple[str, float], ...]  # dense, by data type; a type it lacks is absent
    product_patterns: tuple[str, ...]  # regular expressions for the node label nvidia.com/gpu.product
    mig_key: str | None  # board in mig_profiles.yaml; None: cannot be cut
    unverified_facts: tuple[str, ...]  # recalled, not read in a cited source; outputs mark them
    aliases: tuple[str, ...]  # other names in public measurements: h100_sxm
    sms: int | None  # streaming multiprocessors of the whole board; None: no source found
    nvlink_gbps: float  # GB/s per GPU, both directions together; 0: none
    pcie_gen: int
    compute_capability: str
    price_range: tuple[float, float] | None  # lowest and highest list price seen, USD per hour
    sources: tuple[str, ...]  # keys of `meta.sources`
    profiles: tuple[Profile, ...] = ()
    compute_slices: int = 0  # of the whole board, 0 where it cannot be cut
    memory_slices: int = 0
    nvlink_gpus: int | None = None  # GPUs that one NVLink domain joins, 2: a bridge; None: all of a node
    peer_to_peer: bool = True  # False: the driver sends all between GPUs through the host's memory
    engine_caps: tuple[tuple[str, int], ...] = ()  # what instances share; one without a source is absent

    def nvlink_joins(self, gpus: int) -> bool:
        """Whether NVLink joins any `gpus` GPUs of a node.

        The device plugin picks the GPUs of a pod and only prefers those that are linked. So a bridge, which
        joins two, counts for none: the slowest link that a pod may get is PCIe.
        """
        domain = self.nvlink_gpus or NODE_GPUS
        return self.nvlink_gbps > 0 and gpus <= domain >= NODE_GPUS

    @property
    def price_per_hour(self) -> float | None:
        """USD, geometric mean of list prices, which spread by a factor; None: the user must set a price."""
        return math.sqrt(self.price_range[0] * self.price_range[1]) if self.price_range else None

    @property
    def unverified(self) -> bool:
        """Whether any fact was recalled and not read in a cited source."""
        return bool(self.unverified_facts)
