"""Settings of an LLMDeployment with which a shape would serve that does not serve now."""

from collections.abc import Iterator

from tangram.capacity.sizing import ShapeChange
from tangram.eligibility.shapes.serving_shapes import AssessedShapes

_NEAREST = 12  # rejected shapes whose changes are considered
# Settings that a shape may need to be changed: the field of the request, the label and the unit.
_SETTINGS = {
    "ttft-ms": ("ttft_ms", "TTFT", " ms"),
    "tpot-ms": ("tpot_ms", "TPOT", " ms"),
    "max-model-len": ("max_model_len", "engine.maxModelLen", ""),
    "max-running": ("max_running", "engine.maxRunningRequests", ""),
}


def changes_settings_only(change: ShapeChange) -> bool:
    """Whether a change needs no other format or number of GPUs, which takes another engine."""
    return {name for name, _ in change.changes} <= _SETTINGS.keys()


def sufficient_settings(assessed: AssessedShapes) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield (text, changes of the request) with which a shape would serve, the nearest shape's first."""
    if assessed.requirements.impossible:
        return
    texts: set[str] = set()
    for rejection in sorted(assessed.rejected, key=lambda r: (r.excess, str(r.shape)))[:_NEAREST]:
        relaxation = assessed.relaxation(rejection)
        if relaxation is None or relaxation.text in texts or not changes_settings_only(relaxation):
            continue
        texts.add(relaxation.text)
        settings = [(*_SETTINGS[name], float(value)) for name, value in relaxation.changes]
        text = " and ".join(f"{label} {value:g}{unit}" for _, label, unit, value in settings)
        yield text, {field: value if unit else int(value) for field, _, unit, value in settings}
