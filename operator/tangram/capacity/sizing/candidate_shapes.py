"""Shapes worth an assessment: GPU or slice, tensor parallelism, format of the weights."""

from collections.abc import Collection, Iterable, Iterator

from tangram.catalog import GPU, Profile
from tangram.catalog.lookup import required_gpu
from tangram.catalog.models.architecture import Architecture
from tangram.catalog.models.precision import precision
from tangram.fleet import BUNDLED, WHOLE_GPU, Shape

TENSOR_PARALLEL = (1, 2, 4, 8)  # within a node of eight GPUs
Split = tuple[int, int]
"""How a model is split over GPUs: those that share each layer (tensor parallelism), stages of a pipeline."""
WITHOUT_STAGES: tuple[Split, ...] = tuple((degree, 1) for degree in TENSOR_PARALLEL)
_ALONE = (1, 1)
# Formats that people convert a checkpoint to. INT8 is worth it where there is no FP8, NVFP4 where it is
# computed in FP4; elsewhere INT4 is as small and as fast.
CONVERTED = ("fp8", "int8", "nvfp4", "int4")
Device = tuple[str, str]
"""(SKU, profile): a whole GPU or a slice."""


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
    distinct: dict[tuple[int | None, int | None, float], Profile] = {}
    for profile in board.profiles:
        if profile.dominant_share < 1:
            distinct.setdefault((profile.memory_mib, profile.sm_count, profile.dominant_share), profile)
    return tuple(distinct.values())


def catalog_devices(skus: Iterable[str], *, whole: bool = True, slices: bool = True) -> Iterator[Device]:
    """Yield the whole GPU and the slices of each SKU."""
    for sku in skus:
        if whole:
            yield sku, WHOLE_GPU
        if slices:
            yield from ((sku, profile.name) for profile in slices_of(required_gpu(sku)))


def candidate_shapes(
    architecture: Architecture,
    devices: Iterable[Device],
    precisions: tuple[str, ...] = (),
    splits: tuple[Split, ...] = WITHOUT_STAGES,
    runtime: str = BUNDLED,
) -> Iterator[Shape]:
    """Yield the shapes on each device; slices have no peer-to-peer links, so they serve alone.

    A model is split into stages where NVLink does not join as many GPUs: over NVLink, tensor parallelism is
    faster. Without `precisions`: those that the GPU is good at. Raises `InputError` for SKUs
    outside of the catalog.
    """
    for sku, profile in devices:
        board = required_gpu(sku)
        for degree, stages in splits:
            if (degree, stages) != _ALONE and (
                profile != WHOLE_GPU or _is_slower(degree, stages, board, splits)
            ):
                continue
            for form in precisions or precisions_on(architecture, board):
                yield Shape(sku, profile, degree, form, runtime, stages)


def _is_slower(degree: int, stages: int, board: GPU, splits: Collection[Split]) -> bool:
    """Whether tensor parallelism over NVLink takes the place of stages."""
    gpus = degree * stages
    return stages > 1 and board.nvlink_joins(gpus) and (gpus, 1) in splits
