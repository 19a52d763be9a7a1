from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from tangram.api import model_source, parse
from tangram.api.llm_deployment.revision import revision
from tangram.fleet import Intent, InvalidIntent, MIGPolicy, Objective, Spread, Traffic
from tangram.fleet.lengths import around

CASES = yaml.safe_load((Path(__file__).parent / "cases.yaml").read_text())
META = {"uid": "u1", "namespace": "default", "generation": 3, "creationTimestamp": "2026-11-21T10:00:00Z"}


def stored(obj: dict[str, Any]) -> dict[str, Any]:
    return deepcopy(obj) | {"metadata": META | obj["metadata"]}


def named(verdict: str) -> list[Any]:
    return [
        pytest.param(case, id=case["name"])
        for case in CASES
        if case["verdict"] == verdict and case.get("only") != "apiserver"
    ]


@pytest.mark.parametrize("case", named("accepted"))
def test_what_the_api_server_accepts_is_understood(case):
    assert isinstance(parse(stored(case["object"])), Intent)


@pytest.mark.parametrize("case", named("refused"))
def test_what_the_api_server_refuses_is_refused_here_too_with_the_same_words(case):
    result = parse(stored(case["object"]))

    assert isinstance(result, InvalidIntent)
    assert case["message"] in result.message
    assert len(result.message) <= 1000


def test_defaults_are_filled_in():
    intent = parse(stored({"metadata": {"name": "llama"}, "spec": {"model": {"uri": "image:///models/x"}}}))

    assert intent == Intent(
        uid="u1",
        namespace="default",
        name="llama",
        generation=3,
        created_at=1795255200.0,
        model_uri="image:///models/x",
        served_name="llama",
        max_model_len=None,
        max_running_requests=64,
        ttft=None,
        tpot=None,
        allowed_skus=(),
        denied_skus=(),
        mig=MIGPolicy.ALLOWED,
        min_replicas=1,
        max_replicas=1,
        paused=False,
        traffic=Traffic(None, None, None),
        priority=0,
        pools=(),
        tensor_parallel=(),
        precision="AsStored",
        kv_precision="bf16",
        spread=Spread(1.0, 1.0),
        budget_per_hour=None,
        max_request_s=600,
        revision=revision({"metadata": {"generation": 3}, "spec": {"model": {"uri": "image:///models/x"}}}),
    )


def test_every_field_reaches_the_intent():
    case = next(case for case in CASES if case["name"] == "everything set")

    intent = parse(stored(case["object"]))

    assert isinstance(intent, Intent)
    assert (intent.max_model_len, intent.max_running_requests, intent.max_request_s) == (4096, 32, 900)
    assert (intent.ttft, intent.tpot) == (Objective(95, 500), Objective(90, 50))
    assert (intent.allowed_skus, intent.denied_skus) == (("A10", "H100-80GB-SXM"), ("T4",))
    assert (intent.mig, intent.min_replicas, intent.max_replicas) == (MIGPolicy.REQUIRED, 2, 8)
    assert intent.paused


def test_every_field_of_the_joint_plan_reaches_the_intent():
    name = "traffic, a priority class, pools, spread, budget and precisions"
    case = next(case for case in CASES if case["name"] == name)

    intent = parse(stored(case["object"]))

    assert isinstance(intent, Intent)
    assert intent.traffic == Traffic(0.5, around(1024), around(256))
    assert (intent.budget_per_hour, intent.spread) == (12.5, Spread(0.5, 0.75))
    assert (intent.pools, intent.tensor_parallel) == (("on-demand.eu", "spot"), (1, 2))
    assert (intent.precision, intent.kv_precision) == ("fp8_block", "fp8")


@pytest.mark.parametrize(
    ("written", "hint"),
    [("awq", "write int4"), ("bfloat16", "write bf16"), ("asstored", "must be one of AsStored, Any, bf16")],
)
def test_a_weight_format_by_another_name_is_answered_with_ours(written, hint):
    spec = {"model": {"uri": "image:///m"}, "engine": {"precision": written}}

    result = parse(stored({"metadata": {"name": "a"}, "spec": spec}))

    assert isinstance(result, InvalidIntent)
    assert f"spec.engine.precision: is '{written}'; {hint}" in result.message


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(
    "path",
    [("traffic", "requestsPerSecond"), ("placement", "budgetPerHour"), ("placement", "spread", "node")],
)
def test_what_is_no_number_is_refused(path, number):
    spec: Any = number
    for key in reversed(path):
        spec = {key: spec}

    result = parse(stored({"metadata": {"name": "a"}, "spec": {"model": {"uri": "image:///m"}} | spec}))

    assert isinstance(result, InvalidIntent)
    assert ".".join(("spec", *path)) in result.message


def test_a_field_of_a_newer_version_is_ignored():
    obj = {
        "metadata": {"name": "a"},
        "spec": {"model": {"uri": "image:///m", "adapters": ["7"]}, "fallback": "b"},
    }

    assert isinstance(parse(stored(obj)), Intent)


@pytest.mark.parametrize(
    ("uri", "claim", "path"),
    [("image:///models/a", None, "/models/a"), ("pvc://weights/llama/8b", "weights", "/mnt/model/llama/8b")],
)
def test_a_uri_tells_where_the_engine_finds_the_checkpoint(uri, claim, path):
    source = model_source(uri)

    assert (source.claim, source.path) == (claim, path)


@pytest.mark.parametrize(
    ("scaling", "replicas", "bounds", "available"),
    [
        ({"minReplicas": 2, "maxReplicas": 8}, None, (2, 8), None),
        ({"minReplicas": 2, "maxReplicas": 8}, 5, (5, 5), 2),
        ({"minReplicas": 2, "maxReplicas": 8}, 1, (1, 1), 1),
        ({"minReplicas": 2, "maxReplicas": 8}, 20, (20, 20), 2),
        ({}, 0, (0, 0), 0),
    ],
)
def test_a_number_that_is_set_replaces_the_bounds(scaling, replicas, bounds, available):
    spec = {"model": {"uri": "image:///models/x"}, "scaling": scaling}
    spec |= {} if replicas is None else {"replicas": replicas}

    intent = parse(stored({"metadata": {"name": "llama"}, "spec": spec}))

    assert isinstance(intent, Intent)
    assert (intent.min_replicas, intent.max_replicas) == bounds
    assert (intent.replicas, intent.min_available) == (replicas, available)
    assert intent.is_off == (replicas == 0)


@pytest.mark.parametrize("replicas", [-1, 1001, 2.5, float("nan"), "3", True, 10**30])
def test_a_number_of_replicas_that_cannot_be_is_refused_with_its_path(replicas):
    spec = {"model": {"uri": "image:///models/x"}, "replicas": replicas}

    refused = parse(stored({"metadata": {"name": "llama"}, "spec": spec}))

    assert isinstance(refused, InvalidIntent)
    assert "spec.replicas" in refused.message
