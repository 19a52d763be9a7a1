"""Draw a plan as SVG or PNG: a row per node, a bar of slices per GPU, a colour per owner."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from tangram.catalog import InputError
from tangram.cli.installation import installation
from tangram.cli.plan.gpu_strips import GPUStrip, StripBlock, owners, strips

FORMATS = (".svg", ".png")
_PER_ROW = 8
_BAR, _GAP, _LINE, _TOP, _LEFT = 220, 14, 62, 58, 16
_INK, _MUTED, _EDGE, _FREE, _UNCUT = "#1a1a19", "#5f5e5b", "#8a8984", "#efeeea", "#ffffff"
# Okabe and Ito, safe for colour-blind readers, lightened for text on them.
_COLOURS = ("#7fb8dc", "#eeae80", "#7fcdb4", "#e4b9d0", "#a9d8f2", "#f2cd80", "#b49dd0", "#c9c7bf")
_LETTER = 6.1  # px of a letter of 10 px
_TALLEST_PNG = 20_000  # px


@dataclass(frozen=True, slots=True)
class PictureBox:
    """A rectangle with a text inside."""

    x: float
    y: float
    width: float
    height: float
    fill: str
    text: str = ""
    title: str = ""  # shown on hover
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class PictureText:
    """A line of text."""

    x: float
    y: float
    text: str
    size: float = 11
    colour: str = _INK


@dataclass(frozen=True, slots=True)
class Picture:
    """The boxes and texts of a picture, in pixels from the top left."""

    width: float
    height: float
    boxes: tuple[PictureBox, ...]
    words: tuple[PictureText, ...]


def check_picture(path: Path) -> None:
    """Raise `InputError` for a format that cannot be drawn."""
    if path.suffix.lower() not in FORMATS:
        raise InputError("--picture", f"{str(path)!r} must end in {' or '.join(FORMATS)}")
    if path.suffix.lower() == ".png":
        try:
            import_module("matplotlib")
        except ImportError:
            problem = f"a PNG needs matplotlib: {installation()}; an .svg needs no package"
            raise InputError("--picture", problem) from None


def draw(path: Path, plan: Mapping[str, Any]) -> None:
    """Write the picture in a format that `check_picture` accepts. Raises `InputError` if that fails."""
    drawing = scene(plan)
    try:
        if path.suffix.lower() == ".svg":
            path.write_text(svg(drawing), encoding="utf-8")
        else:
            _png(path, drawing)
    except OSError as error:
        raise InputError("--picture", f"cannot write {str(path)!r}: {error.strerror or error}") from error


def scene(plan: Mapping[str, Any]) -> Picture:
    """Lay out a plan document."""
    colours = {owner: _COLOURS[i % len(_COLOURS)] for i, owner in enumerate(owners(plan))}
    rows: dict[str, list[GPUStrip]] = {}
    for strip in strips(plan):
        rows.setdefault(strip.node, []).append(strip)
    chunks = [(n, g[i : i + _PER_ROW]) for n, g in rows.items() for i in range(0, len(g), _PER_ROW)]
    columns = max((len(gpus) for _, gpus in chunks), default=1)
    boxes: list[PictureBox] = []
    words = [PictureText(_LEFT, 26, _title(plan), 15), PictureText(_LEFT, 44, _subtitle(plan), 11, _MUTED)]
    for number, (node, gpus) in enumerate(chunks):
        y = _TOP + number * _LINE
        words.append(PictureText(_LEFT, y + 12, f"{node}  ({gpus[0].sku})", 11, _MUTED))
        for column, strip in enumerate(gpus):
            x = _LEFT + column * (_BAR + _GAP)
            boxes += [_box(block, strip, x, y + 18, colours) for block in strip.blocks]
            words.append(PictureText(x, y + 54, strip.id + ("?" if strip.inferred else ""), 8, _MUTED))
    width = 2 * _LEFT + columns * (_BAR + _GAP) - _GAP
    return Picture(max(width, 560), _TOP + len(chunks) * _LINE + 8, tuple(boxes), tuple(words))


def _title(plan: Mapping[str, Any]) -> str:
    return f"{plan['gpusInUse']} of {len(plan['gpus'])} GPUs in use, {plan['costPerHour']:.2f} $/h"


def _subtitle(plan: Mapping[str, Any]) -> str:
    moves = f", {len(plan['moves'])} moves (dashed)" if plan["moves"] else ""
    return f"{plan['status']}, gap {plan['gap']:.2%}{moves}; grey is free, white has no GPU instance"


def _box(block: StripBlock, strip: GPUStrip, x: float, y: float, colours: Mapping[str, str]) -> PictureBox:
    unit = _BAR / strip.units
    fill = _UNCUT if not block.profile else _FREE if block.owner is None else colours[block.owner]
    width = block.size * unit
    title = f"{block.profile}@{block.start} {block.owner or 'free'}" if block.profile else "no GPU instance"
    text = _fitting(block, width)
    return PictureBox(x + block.start * unit, y, width, 26, fill, text, f"{strip.id}: {title}", block.moved)


def _fitting(block: StripBlock, width: float) -> str:
    letters = int((width - 4) / _LETTER)
    for text in (f"{block.owner} {block.profile}", block.owner or block.profile):
        if block.owner is not None and len(text) <= letters:
            return text
    return (block.owner or block.profile)[:letters]


def svg(drawing: Picture) -> str:
    """Return the scene as SVG; equal scenes give equal bytes."""
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{drawing.width:g}" height="{drawing.height:g}"'
        f' viewBox="0 0 {drawing.width:g} {drawing.height:g}" font-family="sans-serif">',
        f'<rect width="{drawing.width:g}" height="{drawing.height:g}" fill="#ffffff"/>',
    ]
    lines += [_svg_box(box) for box in drawing.boxes]
    lines += [_svg_text(w.x, w.y, w.text, w.size, w.colour) for w in drawing.words]
    return "\n".join([*lines, "</svg>"]) + "\n"


def _svg_box(box: PictureBox) -> str:
    dash = ' stroke-width="1.6" stroke-dasharray="4 2"' if box.dashed else ""
    rect = (
        f'<rect x="{box.x:g}" y="{box.y:g}" width="{box.width:g}" height="{box.height:g}"'
        f' fill={quoteattr(box.fill)} stroke="{_INK if box.dashed else _EDGE}"{dash}>'
        f"<title>{escape(box.title)}</title></rect>"
    )
    return rect + (_svg_text(box.x + 3, box.y + 17, box.text, 10, _INK) if box.text else "")


def _svg_text(x: float, y: float, text: str, size: float, colour: str) -> str:
    return f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" fill="{colour}">{escape(text)}</text>'


def _png(path: Path, drawing: Picture) -> None:
    if drawing.height > _TALLEST_PNG:
        raise InputError("--picture", f"{len(drawing.boxes)} slices are too many for a PNG; write an .svg")
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - takes a second
    from matplotlib.figure import Figure  # noqa: PLC0415
    from matplotlib.patches import Rectangle  # noqa: PLC0415

    points = 100.0  # pixels an inch
    figure = Figure(figsize=(drawing.width / points, drawing.height / points), dpi=points)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, drawing.width)
    axes.set_ylim(drawing.height, 0)
    axes.set_axis_off()
    for box in drawing.boxes:
        edge = Rectangle((box.x, box.y), box.width, box.height, facecolor=box.fill, linewidth=0.8)
        edge.set_edgecolor(_INK if box.dashed else _EDGE)
        edge.set_linestyle("--" if box.dashed else "-")
        axes.add_patch(edge)
        axes.text(box.x + 3, box.y + 17, box.text, fontsize=7, color=_INK, parse_math=False)
    for word in drawing.words:
        axes.text(word.x, word.y, word.text, fontsize=word.size * 0.72, color=word.colour, parse_math=False)
    figure.savefig(path, format="png", metadata={"Software": None})
