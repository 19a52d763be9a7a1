"""How fast the device reads and multiplies, measured at start in under half a second.

Two numbers say what a slice can do without its name: decoding waits for weights and keys to be read, prompts
for products. They also show a slice that is misconfigured or throttled.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

logger = logging.getLogger(__name__)

PROBE_S = 0.2  # for each of the two
READ_BYTES = 1 << 30  # much more than the L2 cache of any GPU (126 MB on a B200)
SHARE_OF_FREE = 4  # of free memory, the buffer takes one part in four at most
GEMM_SIZE = 8192  # rows and columns; smaller where three matrices would not fit


@dataclass(frozen=True, slots=True)
class DeviceSpeed:
    """Measured rates."""

    read_bandwidth: float  # bytes/s of a reduction, which only reads
    gemm_flops: float  # FLOP/s of a product of large matrices in the model's 16-bit dtype


def measure_speed(free_bytes: int, dtype: torch.dtype, device: torch.device) -> DeviceSpeed:
    """Measure both on a GPU. All tensors are freed; the allocator keeps their memory until it is trimmed."""
    kind = dtype if dtype.itemsize == 2 else torch.float16
    speed = DeviceSpeed(
        read_bandwidth(min(READ_BYTES, free_bytes // SHARE_OF_FREE), device),
        gemm_flops(_gemm_size(free_bytes // SHARE_OF_FREE), kind, device),
    )
    rates = speed.read_bandwidth / 1e9, speed.gemm_flops / 1e12
    logger.info("the device reads %.0f GB/s and multiplies at %.0f TFLOP/s", *rates)
    return speed


def read_bandwidth(nbytes: int, device: torch.device, seconds: float = PROBE_S) -> float:
    """Bytes per second that the maximum of a buffer reads: it writes next to nothing."""
    buffer = torch.zeros(nbytes // 4, dtype=torch.int32, device=device)
    return buffer.nbytes * _rate(buffer.max, device, seconds)


def gemm_flops(size: int, dtype: torch.dtype, device: torch.device, seconds: float = PROBE_S) -> float:
    """FLOP per second of square matrices of random numbers: zeros take less power and run faster."""
    a, b = (torch.randn(size, size, dtype=dtype, device=device) for _ in range(2))
    out = torch.empty(size, size, dtype=dtype, device=device)
    return 2 * size**3 * _rate(lambda: torch.mm(a, b, out=out), device, seconds)


def predicted_tokens_per_second(weight_bytes_read: int, speed: DeviceSpeed) -> float:
    """The most that one request alone can get: each token reads all weights once. Short context."""
    return speed.read_bandwidth / weight_bytes_read


def _gemm_size(nbytes: int) -> int:
    """Rows of the largest power of two of which three 16-bit matrices fit."""
    size = GEMM_SIZE
    while size > 256 and 3 * 2 * size * size > nbytes:
        size //= 2
    return size


def _rate(work: Callable[[], object], device: torch.device, seconds: float) -> float:
    """Runs per second. In rounds of twice as many, so that few synchronisations are among them."""
    work()
    _wait(device)
    runs = 1
    while True:
        begin = time.perf_counter()
        for _ in range(runs):
            work()
        _wait(device)
        elapsed = time.perf_counter() - begin
        if elapsed >= seconds / 2:
            return runs / elapsed
        runs *= 2


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
