"""Every way to serve a model that is worth looking at: GPU or slice, tensor parallelism, precision."""

from collections.abc import Iterable, Iterator

from tangram.catalog import GPU, InputError, Profile, gpu, skus
from tangram.catalog.models.architecture import Architecture
from tangram.catalog.models.precision import precision
from tangram.fleet import WHOLE_GPU, Shape

TENSOR_PARALLEL = (1, 2, 4, 8)  # within a node of eight GPUs
# Formats that people convert a checkpoint to. INT8 is worth it where there is no FP8, NVFP4 where it is
# computed in FP4; elsewhere INT4 is as small and as fast.
CONVERTED = ("fp8", "int8", "nvfp4", "int4")


def precisions_on(architecture: Architecture, board: GPU) -> tuple[str, ...]:
    """Return the format it is served in first, then those with fewer bits that this GPU is good at.

    More bits than the checkpoint has add nothing but bytes.
    """
    own = architecture.served_precision
    has = dict(board.tflops)
    worth = {
        "fp8": "fp8" in has,
        "int8": "int8" in has and "fp8" not in has,
        "nvfp4": "fp4" in has,
        "int4": "fp4" not in has,
    }
    fewer = [name for name in CONVERTED if worth[name] and precision(name).bits < precision(own).bits]
    return (own, *fewer)


def slices_of(board: GPU) -> tuple[Profile, ...]:
    """Return the profiles that differ for inference: not in media engines alone, and no full board."""
    seen: dict[tuple[int | None, int | None, float], Profile] = {}
    for profile in board.profiles:
        if profile.dominant_share < 1:
            seen.setdefault((profile.memory_mib, profile.sm_count, profile.dominant_share), profile)
    return tuple(seen.values())


def shapes(
    architecture: Architecture,
    wanted_skus: Iterable[str] = (),
    wanted_precisions: tuple[str, ...] = (),
    tensor_parallel: tuple[int, ...] = TENSOR_PARALLEL,
    *,
    whole: bool = True,
    slices: bool = True,
    profile: str | None = None,
) -> Iterator[Shape]:
    """Yield the shapes to look at, by SKU; no filter: all. Raises `InputError` for SKUs nobody knows."""
    for sku in wanted_skus or skus():
        board = gpu(sku)
        if board is None:
            raise InputError("sku", f"{sku!r} is not in the catalog; `tangram gpus` lists it")
        formats = wanted_precisions or precisions_on(architecture, board)
        if whole:
            yield from (Shape(sku, WHOLE_GPU, tp, form) for tp in tensor_parallel for form in formats)
        if slices and 1 in tensor_parallel:
            found = slices_of(board) if profile is None else [p for p in board.profiles if p.name == profile]
            yield from (Shape(sku, each.name, 1, form) for each in found for form in formats)
