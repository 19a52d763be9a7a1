"""Tile sizes of the kernels: a plain table. Nothing is tuned and nothing is compiled while requests wait.

A row is keyed by kernel, architecture (compute capability, 90 for 9.0) and the least number of streaming
multiprocessors for which it holds, so that a MIG slice can have a row of its own: the row with the largest
such number that the device reaches applies. The row (kernel, 0, 0) is safe on any hardware.
"""

from collections.abc import Mapping
from functools import lru_cache

import torch

Tile = Mapping[str, int]  # names of constexprs, `num_warps` and `num_stages`

TILES: dict[tuple[str, int, int], Tile] = {
    ("rms_norm", 0, 0): {"num_warps": 8},
    ("fp8_rows", 0, 0): {"num_warps": 8},
    ("silu_mul", 0, 0): {"BLOCK": 1024, "num_warps": 4},
    ("store_kv", 0, 0): {"HEADS": 8, "num_warps": 4},
    # Half of the stages hold page numbers, half keys and values: 70 KB a program, and as many as fit an SM.
    ("decode_attention", 0, 0): {"PROGRAMS_PER_SM": 2, "num_warps": 4, "num_stages": 5},
    **{
        ("decode_attention", sm, 0): {"PROGRAMS_PER_SM": 3, "num_warps": 4, "num_stages": 5}
        for sm in (90, 100, 103)
    },
    ("small_linear", 0, 0): {"BLOCK_N": 16, "BLOCK_K": 64, "num_warps": 4, "num_stages": 4},
    ("small_linear fp8", 0, 0): {"BLOCK_N": 16, "BLOCK_K": 128, "num_warps": 4, "num_stages": 4},
    ("small_linear int4", 0, 0): {"BLOCK_N": 16, "num_warps": 4, "num_stages": 4},
    ("int4_gemm", 0, 0): {"BLOCK_N": 64, "num_warps": 4, "num_stages": 4},
    # Tokens of a group, groups that a program of the first launch reads, and of the second at a time.
    ("sample", 0, 0): {"GROUP": 256, "SPAN": 8, "TILE": 8, "scan_warps": 4, "choose_warps": 8},
}


def tile(kernel: str, device: torch.device) -> Tile:
    """The row for `kernel` on `device`; a device that is no GPU takes the safe row.

    Raises KeyError for a kernel without rows.
    """
    return tile_for(kernel, *hardware(device))


def tile_for(kernel: str, architecture: int, multiprocessors: int) -> Tile:
    """The row for `kernel` on that hardware. Raises KeyError for a kernel without rows."""
    fitting = [key for key in TILES if key[:2] == (kernel, architecture) and key[2] <= multiprocessors]
    return TILES[max(fitting, default=(kernel, 0, 0))]


@lru_cache
def hardware(device: torch.device) -> tuple[int, int]:
    """Architecture and number of streaming multiprocessors of a GPU or slice; (0, 0) for anything else."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return 0, 0
    properties = torch.cuda.get_device_properties(device)
    return properties.major * 10 + properties.minor, properties.multi_processor_count
