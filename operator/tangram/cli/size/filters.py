"""Which shapes a person wants looked at: GPUs, slices, formats, tensor parallelism."""

from tangram.capacity.sizing.candidate_shapes import TENSOR_PARALLEL, shapes
from tangram.catalog import Architecture, InputError, gpu, skus
from tangram.catalog.lookup import find_gpu, nearest
from tangram.catalog.models.precision import precision
from tangram.fleet import Shape

ALLOWED, REQUIRED, FORBIDDEN = "allowed", "required", "forbidden"


def chosen(
    architecture: Architecture,
    names: tuple[str, ...],
    precisions: tuple[str, ...],
    tp: tuple[int, ...],
    mig: str,
) -> tuple[Shape, ...]:
    """Return the shapes that pass the filters. Raises `InputError` for unknown names and contradictions."""
    wanted = tuple(dict.fromkeys(map(_sku, names))) or skus()
    formats = tuple(dict.fromkeys(precision(name, "--precision").name for name in precisions))
    for each in tp:
        if each not in TENSOR_PARALLEL:
            raise InputError("--tp", f"must be one of {', '.join(map(str, TENSOR_PARALLEL))}, not {each}")
    policy = mig.lower() if mig.lower() in {ALLOWED, REQUIRED, FORBIDDEN} else REQUIRED
    profile = None if mig.lower() in {ALLOWED, REQUIRED, FORBIDDEN} else mig
    if policy == REQUIRED:
        _check_slices(wanted, tp, profile)
    found = shapes(
        architecture,
        wanted,
        formats,
        tuple(sorted(set(tp))) or TENSOR_PARALLEL,
        whole=policy != REQUIRED,
        slices=policy != FORBIDDEN,
        profile=profile,
    )
    return tuple(found)


def _sku(name: str) -> str:
    found = find_gpu(name)
    if found is None:
        raise InputError("--sku", f"no GPU is called {name!r}{nearest(name)}; `tangram gpus` lists them")
    return found.sku


def _check_slices(wanted: tuple[str, ...], tp: tuple[int, ...], profile: str | None) -> None:
    if tp and 1 not in tp:
        raise InputError(
            "--mig", f"slices have no peer-to-peer links, so they cannot serve with --tp {tp[0]}"
        )
    names = {each.name for sku in wanted if (board := gpu(sku)) for each in board.profiles}
    if not names:
        raise InputError("--mig", f"{', '.join(wanted)} cannot be cut into slices")
    if profile is not None and profile not in names:
        raise InputError(
            "--mig",
            f"{profile!r} is neither allowed, required, forbidden nor a profile of the GPUs looked at;"
            " `tangram mig` lists profiles",
        )
