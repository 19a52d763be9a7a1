"""Metrics pages in the text format, from what simulated engines count."""

from tangram.scaling.queries import RECEIVED
from tangram.simulator.metrics import EnginePage
from tangram.simulator.metrics.page_layout import series_labels

Series = dict[tuple[str, str], float]
"""Values by name and labels, without those that a scrape adds."""

REJECTED = "tangram:requests_rejected_total"  # the operator does not read it


def series(page: EnginePage, model: str, engine: str | None = "0", without: tuple[str, ...] = ()) -> Series:
    """The series of an engine, without those whose text contains one of `without`."""
    identity = f'model_name="{model}"' + ("" if engine is None else f',engine="{engine}"')
    values: Series = {}
    for (name, le), value in zip(series_labels(), page.scrape(), strict=True):
        values[name, f'{identity},le="{le}"' if le else identity] = value
        if le == "+Inf":
            values[f"{name.removesuffix('_bucket')}_count", identity] = value
    return {key: value for key, value in values.items() if not any(part in f"{key}" for part in without)}


def rejections(model: str, engine: str, by_reason: dict[str, float]) -> Series:
    """The counter of rejected requests, one series for each reason."""
    return {
        (REJECTED, f'engine="{engine}",model_name="{model}",reason="{reason}"'): count
        for reason, count in by_reason.items()
    }


def text(values: Series) -> bytes:
    """The page, with a comment and a series that the operator does not read."""
    lines = [f"# HELP {RECEIVED} Requests", "process_cpu_seconds_total 3.5"]
    lines += [f"{name}{{{labels}}} {value!r}" for (name, labels), value in values.items()]
    return ("\n".join(lines) + "\n").encode()
