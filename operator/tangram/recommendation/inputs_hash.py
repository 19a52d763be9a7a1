"""Which Tangram plans: its version and the facts that it ships. Another one may plan equal inputs otherwise.

The solver's version is Tangram's: each release requires one.
"""

import hashlib
import importlib.resources
from functools import cache

import tangram

_FACTS = ("tangram.catalog", "tangram.capacity")  # packages whose YAML files plans are made with


@cache
def planner_version() -> str:
    """Return what equal plans have in common besides their inputs."""
    digest = hashlib.sha256()
    for package in _FACTS:
        for file in sorted(importlib.resources.files(package).iterdir(), key=lambda each: each.name):
            if file.name.endswith(".yaml"):
                digest.update(file.read_bytes())
    return f"{tangram.__version__} {digest.hexdigest()}"
