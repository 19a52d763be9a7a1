from pathlib import Path
from typing import Any

import pytest
import yaml

from tangram.api import parse_pool
from tangram.fleet import InvalidPool, Pool, PoolPolicy

CASES = yaml.safe_load((Path(__file__).parent / "pool_cases.yaml").read_text())


def named(verdict: str) -> list[Any]:
    return [
        pytest.param(case, id=case["name"])
        for case in CASES
        if case["verdict"] == verdict and case.get("only") != "apiserver"
    ]


def stored(spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "a", "uid": "u"}} | ({} if spec is None else {"spec": spec})


@pytest.mark.parametrize("case", named("accepted"))
def test_a_pool_that_the_api_server_accepts_is_understood(case):
    assert isinstance(parse_pool(stored(case["spec"])), Pool)


@pytest.mark.parametrize("case", named("refused"))
def test_a_pool_that_the_api_server_refuses_is_refused_here_too_with_the_same_words(case):
    result = parse_pool(stored(case["spec"]))

    assert isinstance(result, InvalidPool)
    assert result.name == "a"
    assert case["message"] in result.message
    assert "spec" in result.message
    assert len(result.message) <= 1000


def test_defaults_of_a_pool_are_filled_in():
    assert parse_pool(stored({"nodeSelector": {"b": "2", "a": "1"}})) == Pool(
        name="a",
        selector=(("a", "1"), ("b", "2")),
        price_per_gpu_hour=None,
        policy=PoolPolicy.IDLE_ONLY,
        backend=None,
        disruption_budget=None,
        max_nodes=None,
        sku=None,
        gpus_per_node=8,
        zone="",
        mig_enabled=False,
    )


def test_every_field_of_a_pool_reaches_it():
    case = next(case for case in CASES if case["name"] == "everything set")

    assert parse_pool(stored(case["spec"])) == Pool(
        name="a",
        selector=(("cloud.google.com/gke-nodepool", "h100"), ("zone", "")),
        price_per_gpu_hour=2.5,
        policy=PoolPolicy.FULL,
        backend="mig-manager",
        disruption_budget=3,
        max_nodes=4,
        sku="H100-80GB-SXM",
        gpus_per_node=4,
        zone="eu-1a",
        mig_enabled=True,
    )


def test_the_gpu_of_new_nodes_is_understood_in_any_usual_spelling():
    found = parse_pool(stored({"nodeSelector": {"a": "1"}, "sku": "h100-sxm5-80gb"}))

    assert isinstance(found, Pool)
    assert found.sku == "H100-80GB-SXM"


@pytest.mark.parametrize("price", [float("nan"), float("inf"), True])
def test_a_price_that_is_no_number_is_refused(price):
    assert isinstance(parse_pool(stored({"nodeSelector": {"a": "1"}, "pricePerGPUHour": price})), InvalidPool)


def test_a_field_of_a_newer_version_of_a_pool_is_ignored():
    assert isinstance(parse_pool(stored({"nodeSelector": {"a": "1"}, "taints": []})), Pool)
