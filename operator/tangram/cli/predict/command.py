"""`tangram predict`: score predicted TTFT and TPOT against measured ones."""

from dataclasses import asdict
from pathlib import Path

import click

from tangram.cli.output import document, output_option
from tangram.cli.predict.output import measured_row, show_rows, show_scores
from tangram.cli.predict.scatter_plot import draw, panels_of
from tangram.cli.predict.scoring import scores_of_file


@click.command()
@click.argument("points", type=click.Path(path_type=Path))
@click.option(
    "--correct",
    "correct_by",
    metavar="N",
    default=0,
    help="Use the first N rows of each combination (model, GPU, engine, precision) to correct the other rows;"
    " they are not scored.",
)
@click.option(
    "--plot", type=click.Path(path_type=Path), metavar="PNG", help="Draw predicted against measured values."
)
@click.option("--rows", is_flag=True, help="Show every row and its prediction instead of the scores.")
@output_option
def predict(points: Path, correct_by: int, plot: Path | None, rows: bool, fmt: str) -> None:
    """Score predicted TTFT and TPOT against measured ones.

    POINTS is a CSV file, gzip or not, with the columns model, gpu, tp, backend, weights_precision, isl, osl,
    concurrency, ttft_ms and tpot_ms, and optionally backend_version. A row holds the means of a closed loop
    at that concurrency. The model is a catalog name or the path of a config.json, relative to POINTS or to
    the working directory. Errors are relative, absolute values, in percent.
    """
    scores = scores_of_file(points, correct_by)
    if plot is not None:
        draw(plot, panels_of(scores), f"Predicted against measured: {points.name}")
    if not rows and fmt == "table":
        show_scores(scores, correct_by)
        return
    printed = [measured_row(row) for row in scores.points] if rows else [asdict(s) for s in scores.scores]
    if fmt == "table":
        show_rows(printed)
    else:
        document(printed, fmt)
