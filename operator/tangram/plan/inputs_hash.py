"""Hash of a plan's inputs and of the Tangram that plans: the name of a FleetPlan.

The version stands for the solver's, too: each release requires one version of OR-tools.
"""

import hashlib
import importlib.resources
import json
from dataclasses import replace
from functools import cache

import tangram
from tangram.fleet import Intent, Traffic
from tangram.packing.problem.codec import to_json
from tangram.plan.fleet_input.documents.fleet_input import FleetInput

_DIGITS = 12
_FACTS = ("tangram.catalog", "tangram.capacity")  # packages whose YAML files a plan depends on


def inputs_hash(inputs: FleetInput) -> str:
    """Return 12 hexadecimal digits, the same for equal inputs to the same Tangram."""
    deployments = tuple(replace(each, intent=_planned_part(each.intent)) for each in inputs.deployments)
    hashed = {"inputs": to_json(replace(inputs, deployments=deployments)), "planner": planner_version()}
    text = json.dumps(hashed, sort_keys=True, separators=(",", ":"), default=sorted)
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def _planned_part(intent: Intent) -> Intent:
    """Return an intent without what no plan depends on: identity in the cluster, settings of pods.

    Objectives and traffic are in the sizing request.
    """
    return replace(
        intent,
        uid="",
        generation=0,
        created_at=0.0,
        revision=None,
        model_uri="",
        served_name="",
        ttft=None,
        tpot=None,
        traffic=Traffic(),
        max_request_s=0,
        api_keys=None,
        pod_labels=(),
        pod_annotations=(),
        priority_class_name="",
        refusal=None,
        refused_edit=None,
        keeps_name=False,
        next_model_uri=None,
        model_secret="",
        next_model_secret="",
        warnings=(),
        replicas_set_by=None,
        min_available=None,
    )


@cache
def planner_version() -> str:
    """Return Tangram's version and a digest of the facts that it ships."""
    digest = hashlib.sha256()
    for package in _FACTS:
        for file in sorted(importlib.resources.files(package).iterdir(), key=lambda file: file.name):
            if file.name.endswith(".yaml"):
                digest.update(file.read_bytes())
    return f"{tangram.__version__} {digest.hexdigest()}"
