"""A GPU or one MIG slice of it: memory, bandwidth, FLOP/s and links of one rank."""

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from tangram.catalog import GPU, InputError, Profile, profile
from tangram.catalog.lookup import required_gpu
from tangram.fleet import WHOLE_GPU

# PCIe, one direction, x16: GB/s by generation (PCI-SIG encoded rates: gen 3 and later 128b/130b).
PCIE_GBPS = {3: 15.75, 4: 31.5, 5: 63.0, 6: 121.0}
KERNELS_FROM = 8.0  # compute capability; the engine computes in plain torch on older GPUs


@dataclass(frozen=True, slots=True)
class Hardware:
    """What one rank runs on. Of a slice: its own memory, its share of bandwidth, its SMs' share of FLOPS."""

    sku: str
    profile: str  # WHOLE_GPU or a MIG profile
    memory_mib: int  # real size, 0 where it is not published
    sms: int | None  # streaming multiprocessors; None: not published
    bandwidth: float  # bytes/s, data sheet
    flops: tuple[tuple[str, float], ...]  # dense FLOP/s by data type that it has: bf16, fp16, fp8, int8, fp4
    link_bandwidth: float  # bytes/s to a peer of its group, one direction: NVLink if it joins all, else PCIe
    nvlink: bool
    unverified: tuple[str, ...]  # facts without a source good enough to rely on; every output marks them
    kernels: bool = True  # the bundled engine's run on it: compute capability 8.0 and above

    def flops_of(self, kind: str) -> float | None:
        """Return dense FLOP/s of one data type, None where the GPU lacks it."""
        return dict(self.flops).get(kind)

    @property
    def flops_16(self) -> float:
        """Dense FLOP/s in 16 bits, which every GPU of the catalog computes in."""
        return self.flops_of("bf16") or self.flops_of("fp16") or min(value for _, value in self.flops)

    @property
    def is_slice(self) -> bool:
        """Whether this is a MIG slice: no peer-to-peer, so no tensor parallelism."""
        return self.profile != WHOLE_GPU


@lru_cache(maxsize=4096)
def hardware(sku: str, profile_name: str = WHOLE_GPU, ranks: int = 1) -> Hardware:
    """Return the facts about a SKU or one of its slices, as one of `ranks` that share a replica.

    Raises `InputError` for unknown names.
    """
    board = required_gpu(sku)
    if profile_name != WHOLE_GPU:
        return _slice(hardware(sku), board, profile_name)
    nvlink = board.nvlink_joins(ranks)
    return Hardware(
        sku=sku,
        profile=WHOLE_GPU,
        memory_mib=board.memory_mib,
        sms=board.sms,
        bandwidth=board.mem_bw_gbps * 1e9,
        flops=tuple((kind, tera * 1e12) for kind, tera in board.tflops),
        link_bandwidth=(board.nvlink_gbps / 2 if nvlink else _pcie_gbps(board)) * 1e9,
        nvlink=nvlink,
        unverified=board.unverified_facts,
        kernels=float(board.compute_capability) >= KERNELS_FROM,
    )


def _slice(whole: Hardware, board: GPU, name: str) -> Hardware:
    mig_profile = profile(board.sku, name)
    if mig_profile is None:
        problem = f"{board.sku} has no MIG profile {name!r}; `tangram mig {board.sku}` lists them"
        raise InputError("profile", problem)
    compute = _compute(board, mig_profile)
    return replace(
        whole,
        profile=name,
        memory_mib=mig_profile.memory_mib or 0,
        sms=_sms(board, mig_profile),
        bandwidth=whole.bandwidth * mig_profile.memory_share,
        flops=tuple((kind, flops * compute) for kind, flops in whole.flops),
        unverified=tuple(sorted({*board.unverified_facts, *mig_profile.unverified_fields})),
    )


def _sms(board: GPU, mig_profile: Profile) -> int | None:
    """SMs of a slice; where they are not published, its share of the board's, rounded up."""
    if mig_profile.sm_count or board.sms is None:
        return mig_profile.sm_count
    return math.ceil(board.sms * mig_profile.compute_share)


def _compute(board: GPU, mig_profile: Profile) -> float:
    """Share of the SMs. From the table: an SM count is not sevenths of the board."""
    if mig_profile.sm_count and board.sms:
        return mig_profile.sm_count / board.sms
    return mig_profile.compute_share


def _pcie_gbps(board: GPU) -> float:
    """Through the host's memory every byte takes two trips, one to write and one to read."""
    return PCIE_GBPS[board.pcie_gen] / (1 if board.peer_to_peer else 2)
