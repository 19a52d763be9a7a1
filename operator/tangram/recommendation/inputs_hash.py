"""Hash of a plan's inputs and of the Tangram that plans: the name of a FleetPlan.

The version stands for the solver's, too: each release requires one version of OR-tools.
"""

import hashlib
import importlib.resources
import json
from functools import cache

import tangram
from tangram.packing.problem.codec import to_json
from tangram.recommendation.documents.fleet_input import FleetInput

_DIGITS = 12
_FACTS = ("tangram.catalog", "tangram.capacity")  # packages whose YAML files a plan depends on


def inputs_hash(inputs: FleetInput) -> str:
    """Return 12 hexadecimal digits, the same for equal inputs to the same Tangram."""
    hashed = {"inputs": to_json(inputs), "planner": planner_version()}
    text = json.dumps(hashed, sort_keys=True, separators=(",", ":"), default=sorted)
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


@cache
def planner_version() -> str:
    """Return Tangram's version and a digest of the facts that it ships."""
    digest = hashlib.sha256()
    for package in _FACTS:
        for file in sorted(importlib.resources.files(package).iterdir(), key=lambda file: file.name):
            if file.name.endswith(".yaml"):
                digest.update(file.read_bytes())
    return f"{tangram.__version__} {digest.hexdigest()}"
