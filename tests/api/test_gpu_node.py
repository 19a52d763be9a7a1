from pathlib import Path
from typing import Any

import pytest
import yaml

from tangram.api import GPUNode, InvalidGPUNode, parse_gpu_node
from tangram.api.gpu_node import LAST_START, GPUNodeSpec, GPUNodeStatus, WantedInstance
from tangram.catalog import gpu, skus
from tests.support.gpu_nodes import GPU_A, STATUS, WHEN

ROOT = Path(__file__).parents[2]
CASES = yaml.safe_load((Path(__file__).parent / "gpu_node_cases.yaml").read_text())
BY_INDEX = {  # as far as NVIDIA's MIG manager can know
    "backend": "MIGManager",
    "migConfig": "tangram-0123456789abcdef",
    "gpus": [
        {
            "id": "index-0",
            "index": 0,
            "migMode": "Enabled",
            "instances": [
                {"profile": "1g.10gb", "usage": "Unknown"},
                {"profile": "1g.10gb", "usage": "Unknown"},
            ],
        }
    ],
}


def named(verdict: str) -> list[Any]:
    return [
        pytest.param(case, id=case["name"])
        for case in CASES
        if case["verdict"] == verdict and case.get("only") != "apiserver"
    ]


def stored(spec: Any, status: Any = None) -> dict[str, Any]:
    parts = {"spec": spec, "status": status}
    return {"metadata": {"name": "a"}} | {key: value for key, value in parts.items() if value is not None}


@pytest.mark.parametrize("case", named("accepted"))
def test_a_gpu_node_that_the_api_server_accepts_is_understood(case):
    found = parse_gpu_node(stored(case["spec"]))

    assert isinstance(found, GPUNode)
    read = found.spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
    assert read == case["spec"]


@pytest.mark.parametrize("case", named("refused"))
def test_a_gpu_node_that_the_api_server_refuses_is_refused_here_too_with_the_same_words(case):
    found = parse_gpu_node(stored(case["spec"]))

    assert isinstance(found, InvalidGPUNode)
    assert found.name == "a"
    assert case["message"] in found.message
    assert found.message.startswith("spec")


@pytest.mark.parametrize("status", [STATUS, BY_INDEX, {}], ids=["nvml", "mig-manager", "nothing-yet"])
def test_a_status_is_read_as_it_was_written(status):
    found = parse_gpu_node(stored({}, status))

    assert isinstance(found, GPUNode), found.message
    assert found.status.model_dump(mode="json", by_alias=True, exclude_unset=True) == status


@pytest.mark.parametrize(
    ("field", "value", "path"),
    [
        ("gpus", [{"id": "gpu", "index": 0, "migMode": "Enabled"}], "status.gpus.0.id"),
        ("gpus", [{"id": GPU_A, "index": -1, "migMode": "Enabled"}], "status.gpus.0.index"),
        ("gpus", [{"id": GPU_A, "index": 0, "migMode": "On"}], "status.gpus.0.migMode"),
        ("gpus", [{"id": GPU_A, "index": 0, "migMode": "Enabled"}] * 65, "status.gpus"),
        (
            "quarantine",
            [{"uuid": "index-0", "reason": "A", "message": "", "since": WHEN}],
            "quarantine.0.uuid",
        ),
        ("backend", "DRA", "status.backend"),
        ("conditions", [{"type": "Applied"}], "status.conditions.0"),
    ],
)
def test_a_status_that_was_edited_into_something_else_is_named_by_its_path(field, value, path):
    found = parse_gpu_node(stored({}, STATUS | {field: value}))

    assert isinstance(found, InvalidGPUNode)
    assert path in found.message


def test_a_field_of_a_newer_version_of_a_gpu_node_is_ignored():
    assert isinstance(parse_gpu_node(stored({"wave": 1}, {"wave": 1})), GPUNode)


def test_a_gpu_node_that_names_nothing_decides_nothing():
    found = parse_gpu_node(stored({}))

    assert found == GPUNode("a", GPUNodeSpec(), GPUNodeStatus())
    assert found.spec.gpus == ()


@pytest.mark.parametrize("sku", [name for name in skus() if gpu(name).profiles])
def test_every_profile_and_start_of_the_catalog_may_be_wanted(sku):
    for profile in gpu(sku).profiles:
        for start in profile.starts:
            assert WantedInstance(profile=profile.name, start=start).start <= LAST_START


def test_the_example_is_a_valid_gpu_node():
    example = yaml.safe_load((ROOT / "examples" / "gpunode.yaml").read_text())

    assert isinstance(parse_gpu_node(example), GPUNode)
