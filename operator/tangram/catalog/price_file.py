"""Read a user's price file: one line per SKU, in USD per GPU and hour.

H100-80GB-SXM: 2.49   # USD per GPU and hour
GB200-186GB: 9
"""

import math

import yaml

from tangram.catalog.lookup import skus, unknown_gpu
from tangram.catalog.prices import HIGHEST_USD_PER_HOUR, Prices
from tangram.catalog.reading import yaml_text
from tangram.catalog.reading.errors import InputError

_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


def parse_prices(text: str, where: str) -> Prices:
    """Read a price file. Raises `InputError` with `where` (the file's name) and the line that is wrong."""
    try:
        root = yaml_text.compose(text)
    except yaml_text.ERRORS as error:
        line, problem = yaml_text.line_and_problem(error)
        raise InputError(f"{where}{line}", f"not YAML: {problem}") from error
    if root is None:
        return Prices()
    if not isinstance(root, yaml.MappingNode):
        raise InputError(where, "must hold lines of the form `SKU: usd_per_gpu_hour`")
    prices: dict[str, float] = {}
    for key, value in root.value:
        line = f"{where}:{key.start_mark.line + 1}"
        sku = _sku(key, line)
        if sku in prices:
            raise InputError(line, f"{sku} has a price already")
        prices[sku] = _price(sku, value, line)
    return Prices(prices)


def _sku(node: yaml.Node, line: str) -> str:
    if not isinstance(node, yaml.ScalarNode):
        raise InputError(line, "must be of the form `SKU: usd_per_gpu_hour`")
    if node.value not in skus():
        raise unknown_gpu(node.value, line)
    return str(node.value)


def _price(sku: str, node: yaml.Node, line: str) -> float:
    shown = repr(node.value) if isinstance(node, yaml.ScalarNode) else "a list or mapping"
    problem = f"{sku}: {shown} is not a price in USD per GPU-hour (a number above 0)"
    if not isinstance(node, yaml.ScalarNode) or node.tag not in _NUMBERS:
        raise InputError(line, problem)
    try:
        price = float(node.value.replace("_", ""))
    except ValueError:  # .nan, .inf, 0x10, 1:30
        raise InputError(line, problem) from None
    if not math.isfinite(price) or not 0 < price <= HIGHEST_USD_PER_HOUR:
        raise InputError(line, problem)
    return price
