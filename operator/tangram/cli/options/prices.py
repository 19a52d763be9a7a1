"""`--prices FILE`: prices of the user instead of the catalog's list prices."""

from pathlib import Path

import click

from tangram.catalog import InputError
from tangram.catalog.price_file import parse_prices
from tangram.catalog.prices import Prices

LARGEST_FILE = 1 << 20
DEFAULT_PRICE_NOTE = (
    "$/h: default list price, the geometric mean of the public range; override with --prices FILE"
    " (lines `SKU: usd_per_gpu_hour`)"
)


def read_prices(path: str | None) -> Prices:
    """Read a price file; None: default list prices. Raises `InputError` for files that cannot be read."""
    if path is None:
        return Prices()
    try:
        data = Path(path).read_bytes() if Path(path).is_file() else None
    except (OSError, ValueError) as error:  # ValueError: a name with a NUL
        raise InputError("--prices", f"cannot read {path!r}: {error}") from error
    if data is None:
        raise InputError("--prices", f"{path!r} is not a file")
    if len(data) > LARGEST_FILE:
        raise InputError("--prices", f"{path!r} is larger than 1 MiB: not a price file")
    try:
        return parse_prices(data.decode("utf-8"), path)
    except UnicodeDecodeError as error:
        raise InputError("--prices", f"{path!r} is not UTF-8 text") from error


prices_option = click.option(
    "--prices",
    metavar="FILE",
    callback=lambda _context, _option, path: read_prices(path),
    help="YAML file with your prices, one line each: `SKU: usd_per_gpu_hour`.",
)
