"""Draw predicted against measured TTFT and TPOT, side by side, one colour for each combination."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tangram.capacity.accuracy.score import Errors, Scores
from tangram.catalog import InputError
from tangram.cli.installation import installation

BAND = 0.2
FORMATS = (".png", ".svg", ".pdf")
MOST_KEYS = 24
OTHERS = "others"
_INK, _MUTED, _GRID = "#1a1a19", "#5f5e5b", "#e4e3df"
# Okabe and Ito without yellow and black, safe for colour-blind readers; then again with other markers.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#6A3D9A")
_MARKS = ("o", "^", "s", "D", "v", "P")


@dataclass(frozen=True, slots=True)
class MeasuredPair:
    """One measured and one predicted value, in milliseconds."""

    key: str
    measured: float
    predicted: float


@dataclass(frozen=True, slots=True)
class ScatterPanel:
    """One quantity: its title and its points."""

    title: str
    pairs: Sequence[MeasuredPair]


def panels_of(scores: Scores) -> list[ScatterPanel]:
    """Return a panel of TTFT and one of TPOT."""
    overall, points = scores.scores[-1], scores.points
    return [
        _panel("TTFT", overall.ttft, [(row.point.key, row.point.ttft_s, row.ttft_s) for row in points]),
        _panel("TPOT", overall.tpot, [(row.point.key, row.point.tpot_s, row.tpot_s) for row in points]),
    ]


def _panel(name: str, errors: Errors | None, rows: Sequence[tuple[str, float | None, float]]) -> ScatterPanel:
    pairs = [MeasuredPair(key, actual * 1e3, predicted * 1e3) for key, actual, predicted in rows if actual]
    if errors is None:
        return ScatterPanel(f"{name}: not measured", pairs)
    accuracy = f"median error {errors.median:.0f} %, P90 {errors.p90:.0f} % ({len(pairs):,} rows)"
    return ScatterPanel(f"{name}: {accuracy}", pairs)


def draw(path: Path, panels: Sequence[ScatterPanel], title: str) -> None:
    """Write the picture. Raises `InputError` where matplotlib is missing or the file cannot be written."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - half a second
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError:
        raise InputError("--plot", f"needs matplotlib: {installation()}") from None
    if path.suffix.lower() not in FORMATS:
        raise InputError("--plot", f"{path}: must end in one of {', '.join(FORMATS)}")
    keys = _legend(panels)
    rows = math.ceil(len(keys) / 3)
    height = 6.0 + 0.22 * rows
    figure: Any = Figure(figsize=(12, height), facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, panel in zip(axes, panels, strict=True):
        _draw_panel(axis, panel, keys)
    figure.suptitle(title, color=_INK, fontsize=13, x=0.06, ha="left")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="lower left",
        bbox_to_anchor=(0.05, 0.01),
        ncols=3,
        frameon=False,
        fontsize=8.5,
        labelcolor=_INK,
        handletextpad=0.3,
        columnspacing=1.5,
    )
    bottom = (0.75 + 0.22 * rows) / height
    figure.subplots_adjust(left=0.065, right=0.985, top=1 - 0.8 / height, bottom=bottom, wspace=0.16)
    try:
        figure.savefig(path, dpi=130)
    except (OSError, ValueError) as error:
        raise InputError("--plot", f"{path}: {getattr(error, 'strerror', None) or error}") from None


def _legend(panels: Sequence[ScatterPanel]) -> list[str]:
    """Return the combinations by name; beyond `MOST_KEYS`, those with the fewest points are one entry."""
    counts = Counter(pair.key for panel in panels for pair in panel.pairs)
    if len(counts) <= MOST_KEYS:
        return sorted(counts)
    return [*sorted(key for key, _ in counts.most_common(MOST_KEYS - 1)), OTHERS]


def _draw_panel(axis: Any, panel: ScatterPanel, keys: Sequence[str]) -> None:
    for number, key in enumerate(keys):
        pairs = [pair for pair in panel.pairs if pair.key == key or (key == OTHERS and pair.key not in keys)]
        axis.scatter(
            [pair.measured for pair in pairs],
            [pair.predicted for pair in pairs],
            label=key,
            color=_MUTED if key == OTHERS else _COLOURS[number % len(_COLOURS)],
            marker=_MARKS[number // len(_COLOURS) % len(_MARKS)],
            s=20,
            alpha=0.75,
            linewidths=0.4,
            edgecolors="white",
        )
    low, high = _range(panel.pairs)
    edges, low_side, high_side = ([low * by, high * by] for by in (1, 1 - BAND, 1 + BAND))
    axis.fill_between(edges, low_side, high_side, color=_MUTED, alpha=0.12, linewidth=0, zorder=0)
    axis.plot(edges, edges, color=_MUTED, linewidth=1, zorder=1)
    meaning = {"s": f"line: equal; band: ±{BAND:.0%}", "ha": "right", "fontsize": 8.5, "color": _MUTED}
    axis.text(0.985, 0.02, transform=axis.transAxes, **meaning)
    axis.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high), aspect="equal", anchor="W")
    axis.set_title(panel.title, fontsize=11, color=_INK, loc="left")
    axis.set_xlabel("measured, ms", color=_MUTED)
    axis.set_ylabel("predicted, ms", color=_MUTED)
    axis.grid(visible=True, which="major", color=_GRID, linewidth=0.7)
    axis.set_axisbelow(True)
    axis.tick_params(which="both", colors=_MUTED, labelsize=9)
    for name in ("xaxis", "yaxis"):
        getattr(axis, name).set_major_formatter(lambda value, _: f"{value:,g}")
        getattr(axis, name).set_minor_formatter("")
    for side in axis.spines.values():
        side.set_color(_GRID)


def _range(pairs: Sequence[MeasuredPair]) -> tuple[float, float]:
    """Return the limits of both axes: all points and a margin."""
    values = [value for pair in pairs for value in (pair.measured, pair.predicted)]
    if not values:
        return 1.0, 10.0
    return min(values) / 1.3, max(values) * 1.3
