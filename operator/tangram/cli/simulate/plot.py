"""Draw load, replicas, attainment and cost over time: a PNG, or an HTML page without external resources."""

import html
import io
import os
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from tangram.catalog import InputError
from tangram.cli.installation import installation
from tangram.cli.output import Row
from tangram.cli.simulate.simulation import SimulationOutcome
from tangram.simulator.result.attainment import WINDOW_S
from tangram.simulator.result.run_result import DeploymentResult

FORMATS = (".png", ".html")
_REPLICAS = "replicas: line ordered, dots ready"
_INK, _MUTED, _GRID = "#1a1a19", "#5f5e5b", "#e4e3df"
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#6A3D9A")
_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;color:#1a1a19;max-width:1000px;margin:2em auto;padding:0 1em}"
    "svg{width:100%;height:auto}table{border-collapse:collapse}"
    "th,td{padding:.3em .9em;border-bottom:1px solid #e4e3df;text-align:right}"
    "th:first-child,td:first-child{text-align:left}"
)


def check_plot(path: Path) -> None:
    """Raise `InputError` before anything is simulated if the plot cannot be drawn."""
    if path.suffix.lower() not in FORMATS:
        raise InputError("--plot", f"{str(path)!r} must end in {' or '.join(FORMATS)}")
    if path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise InputError("--plot", f"cannot write {str(path)!r}")
    try:
        import matplotlib.figure  # noqa: F401, PLC0415 - half a second
    except ImportError:
        raise InputError("--plot", f"needs matplotlib: {installation()}") from None


def draw(path: Path, outcome: SimulationOutcome, deployments: Sequence[Row]) -> None:
    """Write the plot of the first seed; `deployments`: its rows in the document.

    Raises `InputError` where it cannot be written.
    """
    figure = _figure(outcome)
    try:
        if path.suffix.lower() == ".html":
            path.write_text(_page(outcome, deployments, _svg(figure)), encoding="utf-8")
        else:
            figure.savefig(path, dpi=130, metadata={"Software": None})
    except (OSError, ValueError) as error:
        raise InputError("--plot", f"{path}: {getattr(error, 'strerror', None) or error}") from None


def _figure(outcome: SimulationOutcome) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure: Any = Figure(figsize=(10, 11), facecolor="white")
    FigureCanvasAgg(figure)
    load, replicas, attainment, cost = figure.subplots(4, 1, sharex=True)
    result, loads = outcome.results[0], outcome.loads[0]
    end_h = result.duration_s / 3600
    shapes_drawn = 0
    for place, deployment in enumerate(result.deployments):
        colour = _COLOURS[place % len(_COLOURS)]
        line = {"color": colour, "linewidth": 1.5}
        edges = _edges(len(deployment.usd), end_h)
        per_second = [
            count / max(1.0, 3600 * (end - begin))
            for count, begin, end in zip(list(loads.values())[place], edges, edges[1:], strict=False)
        ]
        load.stairs(per_second, edges, label=deployment.name, **line)
        at = [count.at / 3600 for count in deployment.counts] + [end_h]
        for name, style in (("ordered", "-"), ("ready", ":")):
            values = [getattr(count, name) for count in deployment.counts]
            replicas.step(at, [*values, values[-1]], where="post", linestyle=style, **line)
        if len(deployment.shape_uses) > 1:
            for shape, _ in deployment.shape_uses:
                ready = [count.on(shape).ready for count in deployment.counts]
                colour = _COLOURS[::-1][shapes_drawn % len(_COLOURS)]
                label = f"{deployment.name} on {shape.described}"
                replicas.step(at, [*ready, ready[-1]], "--", where="post", color=colour, label=label)
                shapes_drawn += 1
        middles = [(begin + end) / 2 for begin, end in pairwise(edges)]
        busy = [
            (middle, 100 * window.attainment)
            for middle, window in zip(middles, deployment.attainment.windows, strict=True)
            if window.requests
        ]
        attainment.plot([at for at, _ in busy], [share for _, share in busy], marker=".", **line)
        cost.plot(edges, list(_running_sum(deployment)), **line)
    titles = (
        "requests/s",
        f"{_REPLICAS}, dashes ready on one shape" if shapes_drawn else _REPLICAS,
        "requests within both objectives, %",
        "USD so far",
    )
    for axis, title in zip((load, replicas, attainment, cost), titles, strict=True):
        axis.set_title(title, fontsize=10, color=_INK, loc="left")
        axis.grid(visible=True, color=_GRID, linewidth=0.7)
        axis.set_axisbelow(True)
        axis.tick_params(colors=_MUTED, labelsize=9)
        for side in axis.spines.values():
            side.set_color(_GRID)
    for axis in (load, replicas, cost):
        axis.set_ylim(bottom=0)
    cost.set_xlabel("hours", color=_MUTED)
    cost.set_xlim(0, end_h)
    for axis in (load, replicas) if shapes_drawn else (load,):
        legend = axis.legend(loc="upper left", fontsize=8.5, frameon=False, labelcolor=_INK)
        for text in legend.get_texts():
            text.set_parse_math(False)
    figure.suptitle(_title(outcome), color=_INK, fontsize=12, x=0.07, ha="left", parse_math=False)
    figure.subplots_adjust(left=0.07, right=0.98, top=0.93, bottom=0.05, hspace=0.22)
    return figure


def _edges(windows: int, end_h: float) -> list[float]:
    return [min(end_h, place * WINDOW_S / 3600) for place in range(windows + 1)]


def _running_sum(deployment: DeploymentResult) -> Iterator[float]:
    usd = 0.0
    yield usd
    for more in deployment.usd:
        usd += more
        yield usd


def _title(outcome: SimulationOutcome) -> str:
    return f"tangram simulate: law {outcome.terms.law}, seed {outcome.terms.seeds[0]}"


def _svg(figure: Any) -> str:
    from matplotlib import rc_context  # noqa: PLC0415

    text = io.StringIO()
    with rc_context({"svg.hashsalt": "tangram", "svg.fonttype": "path"}):
        figure.savefig(text, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    whole = text.getvalue()
    return whole[whole.index("<svg") :]  # without the XML declaration, which HTML does not have


def _page(outcome: SimulationOutcome, deployments: Sequence[Row], svg: str) -> str:
    title = html.escape(_title(outcome))
    head = (
        "LLMDeployment",
        "requests",
        "within both objectives",
        "USD",
        "GPU-hours",
        "replicas min / mean / max",
    )
    rows = [
        cells
        for row, result in zip(deployments, outcome.results[0].deployments, strict=True)
        for cells in _rows(row, result)
    ]
    body = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{_STYLE}</style></head><body><h1>{title}</h1><table><thead><tr>"
        f"{''.join(f'<th>{name}</th>' for name in head)}</tr></thead><tbody>{body}</tbody></table>{svg}"
        "</body></html>\n"
    )


def _rows(row: Row, result: DeploymentResult) -> Iterator[tuple[str, ...]]:
    """Yield the row of an LLMDeployment, and one for each shape where it ran on several."""
    share = f"{100 * row['attainment']['joint']['share']:.2f} %"
    yield row["name"], f"{row['requests']:,}", share, *_use_cells(row)
    if len(result.shape_uses) > 1:
        for (shape, _), part in zip(result.shape_uses, row["shapes"], strict=True):
            yield f"on {shape.described}", "", "", *_use_cells(part)


def _use_cells(row: Row) -> tuple[str, ...]:
    replicas = "{min} / {mean:.1f} / {max}".format_map(row["replicas"])
    return f"{row['usd']:,.2f}", f"{row['gpu_hours']:,.2f}", replicas
