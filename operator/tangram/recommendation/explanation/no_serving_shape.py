"""Who is served by no shape of the fleet: what the nearest one lacks, and the settings that would do."""

from collections.abc import Iterator

from tangram.eligibility.shapes.serving_shapes import AssessedShapes

_NEAREST = 12  # rejected shapes that are asked what would help
# Of what a shape needs to serve: the request's field, what people call it, and its unit.
REQUEST_SETTINGS = {
    "ttft-ms": ("ttft_ms", "TTFT", " ms"),
    "tpot-ms": ("tpot_ms", "TPOT", " ms"),
    "max-model-len": ("max_model_len", "engine.maxModelLen", ""),
    "max-running": ("max_running", "engine.maxRunningRequests", ""),
}


def nearest_shape_shortfall(each: AssessedShapes) -> list[str]:
    """Return why nothing serves it, nearest first."""
    if each.requirements.impossible:
        return [f"engine: {each.requirements.impossible}"]
    if not each.rejected:
        return ["placement: no GPU of this fleet is allowed"]
    nearest = min(each.rejected, key=lambda r: (r.excess, str(r.shape)))
    return [f"{nearest.constraint}: {nearest.shape}: {nearest.message}"]


def sufficient_settings(each: AssessedShapes) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield (text, changes of the request) with which a shape would serve, the nearest shape's first.

    What only another engine can do, formats and groups of GPUs, is left out.
    """
    if each.requirements.impossible:
        return
    seen: set[str] = set()
    for rejection in sorted(each.rejected, key=lambda r: (r.excess, str(r.shape)))[:_NEAREST]:
        found = each.assessed.relaxation(rejection)
        if (
            found is None
            or found.text in seen
            or not {name for name, _ in found.changes} <= set(REQUEST_SETTINGS)
        ):
            continue
        seen.add(found.text)
        told = [(*REQUEST_SETTINGS[name], float(value)) for name, value in found.changes]
        text = " and ".join(f"{label} {value:g}{unit}" for _, label, unit, value in told)
        yield text, {field: value if unit else int(value) for field, _, unit, value in told}
