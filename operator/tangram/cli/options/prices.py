"""`--prices FILE`: prices of the user instead of the catalog's list prices."""

import os
from pathlib import Path

import click

from tangram.catalog import InputError
from tangram.catalog.price_file import parse_prices
from tangram.catalog.prices import Prices
from tangram.cli.input_documents import file_text

LARGEST_FILE = 1 << 20
DEFAULT_PRICE_NOTE = (
    "$/h: default list price, the geometric mean of the public range; override with --prices FILE"
    " (lines `SKU: usd_per_gpu_hour`)"
)


def read_prices(path: str | None) -> Prices:
    """Read a price file; None: default list prices. Raises `InputError` for files that cannot be read."""
    if path is None:
        return Prices()
    if not os.path.isfile(path):  # noqa: PTH113 - Path.is_file raises for a name that is too long
        raise InputError("--prices", f"{path!r} is not a file")
    return parse_prices(file_text(Path(path), "--prices", LARGEST_FILE), path)


prices_option = click.option(
    "--prices",
    metavar="FILE",
    callback=lambda _context, _option, path: read_prices(path),
    help="YAML file with your prices, one line each: `SKU: usd_per_gpu_hour`.",
)
