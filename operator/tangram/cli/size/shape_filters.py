"""Select the shapes to size by the options --sku, --mig, --precision and --tp."""

from collections.abc import Iterable

from tangram import catalog
from tangram.capacity.sizing.candidate_shapes import (
    TENSOR_PARALLEL,
    Device,
    candidate_shapes,
    catalog_devices,
)
from tangram.catalog import Architecture, InputError, gpu, skus
from tangram.catalog.lookup import gpu_of_name
from tangram.catalog.models.precision import precision
from tangram.fleet import Shape

ALLOWED, REQUIRED, FORBIDDEN = "allowed", "required", "forbidden"


def selected_shapes(
    architecture: Architecture,
    names: tuple[str, ...],
    precisions: tuple[str, ...],
    tp: tuple[int, ...],
    mig: str,
) -> tuple[Shape, ...]:
    """Return the shapes that pass the filters. Raises `InputError` for unknown names and contradictions."""
    boards = tuple(dict.fromkeys(gpu_of_name(name, "--sku").sku for name in names)) or skus()
    formats = tuple(dict.fromkeys(precision(name, "--precision").name for name in precisions))
    for size in tp:
        if size not in TENSOR_PARALLEL:
            raise InputError("--tp", f"must be one of {', '.join(map(str, TENSOR_PARALLEL))}, not {size}")
    policy = mig.lower() if mig.lower() in {ALLOWED, REQUIRED, FORBIDDEN} else REQUIRED
    profile = None if mig.lower() in {ALLOWED, REQUIRED, FORBIDDEN} else mig
    if policy == REQUIRED:
        _check_slices(boards, tp, profile)
    devices: Iterable[Device] = catalog_devices(boards, whole=policy != REQUIRED, slices=policy != FORBIDDEN)
    if profile is not None:
        devices = ((sku, profile) for sku in boards if catalog.profile(sku, profile))
    return tuple(
        candidate_shapes(
            architecture,
            devices,
            formats,
            tuple((degree, 1) for degree in sorted(set(tp)) or TENSOR_PARALLEL),
        )
    )


def _check_slices(boards: tuple[str, ...], tp: tuple[int, ...], profile: str | None) -> None:
    if tp and 1 not in tp:
        raise InputError(
            "--mig", f"MIG slices have no peer-to-peer links: they cannot serve with --tp {tp[0]}"
        )
    names = {facts.name for sku in boards if (board := gpu(sku)) for facts in board.profiles}
    if not names:
        raise InputError("--mig", f"{', '.join(boards)}: no MIG support")
    if profile is not None and profile not in names:
        raise InputError(
            "--mig",
            f"{profile!r} is neither allowed, required, forbidden nor a profile of the selected GPUs;"
            " `tangram mig` lists profiles",
        )
