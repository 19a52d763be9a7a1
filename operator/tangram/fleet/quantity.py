"""Kubernetes quantities: read them, and write them the way the API server stores them.

The API server rewrites quantities into a canonical form; a manifest in another form would look changed for
ever. Source: apimachinery/pkg/api/resource/quantity.go.
"""

import math
import re

_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
_DECIMAL = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_UNITS = {"": 1.0, **_BINARY, **_DECIMAL}
_QUANTITY = re.compile(
    r"^((?:\d{1,30}(?:\.\d{0,30})?|\.\d{1,30})(?:[eE][+-]?\d{1,2})?)(Ki|Mi|Gi|Ti|Pi|Ei|n|u|m|k|M|G|T|P|E)?$"
)


def parse_quantity(text: str | float) -> float:
    """Return the value of `text` (cores, bytes or a count). Raises ValueError for anything else."""
    match = _QUANTITY.match(str(text))
    if match is None:
        raise ValueError(f"not a quantity: {text!r} (examples: 4, 500m, 64Gi)")
    number, suffix = float(match[1]), match[2] or ""
    return number * _UNITS[suffix]


def cpu_quantity(cores: float) -> str:
    """Return `cores` rounded up to whole millicores, canonical: 1.5 -> 1500m, 2 -> 2."""
    milli = max(1, math.ceil(round(cores * 1000, 6)))
    return str(milli // 1000) if milli % 1000 == 0 else f"{milli}m"


def memory_quantity(size_bytes: float) -> str:
    """Return `size_bytes` rounded up to whole MiB, canonical: 2147483648 -> 2Gi."""
    amount, suffix = max(1, math.ceil(size_bytes / 2**20)), "Mi"
    for larger in ("Gi", "Ti", "Pi"):
        if amount % 1024:
            break
        amount, suffix = amount // 1024, larger
    return f"{amount}{suffix}"
