"""Whatever a person writes is answered, never raised; whatever is planned fits an object."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tangram.api import GPUNode, InvalidGPUNode, parse, parse_gpu_node, parse_pool
from tangram.api.fleet_plan import FleetPlanSpec, FleetPlanStatus
from tangram.api.gpu_node import GPUNodeSpec, GPUNodeStatus
from tangram.api.llm_deployment.spec import LLMDeploymentSpec
from tangram.api.pool import GPUPoolSpec
from tangram.fleet import Intent, InvalidIntent, InvalidPool, Pool
from tangram.plan.result.fleet_plan_spec import fleet_plan_spec, status_figures
from tests.support.plan_documents import large_plan

META = {"uid": "u", "namespace": "d", "name": "a", "creationTimestamp": "2026-11-21T10:00:00Z"}
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20), st.just(10**400)
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=5,
)


def near(model: type) -> st.SearchStrategy[Any]:
    """Objects with the keys of a model, at any of which anything may stand."""
    keys = {}
    for name, field in model.model_fields.items():
        inner = field.annotation if hasattr(field.annotation, "model_fields") else None
        keys[field.alias or name] = st.one_of(ANYTHING, near(inner)) if inner else ANYTHING
    return st.fixed_dictionaries({}, optional=keys)


@given(spec=st.one_of(ANYTHING, near(LLMDeploymentSpec)))
def test_whatever_is_written_in_an_llmdeployment_is_answered(spec):
    found = parse({"metadata": META, "spec": spec})

    assert isinstance(found, Intent | InvalidIntent)
    if isinstance(found, InvalidIntent):
        assert found.message.startswith("spec")


@given(spec=st.one_of(ANYTHING, near(GPUPoolSpec)))
def test_whatever_is_written_in_a_pool_is_answered(spec):
    found = parse_pool({"metadata": {"name": "a"}, "spec": spec})

    assert isinstance(found, Pool | InvalidPool)
    if isinstance(found, InvalidPool):
        assert found.message.startswith("spec")


@given(spec=st.one_of(ANYTHING, near(GPUNodeSpec)), status=st.one_of(ANYTHING, near(GPUNodeStatus)))
def test_whatever_is_written_in_a_gpu_node_is_answered(spec, status):
    found = parse_gpu_node({"metadata": {"name": "a"}, "spec": spec, "status": status})

    assert isinstance(found, GPUNode | InvalidGPUNode)
    if isinstance(found, InvalidGPUNode):
        assert found.message.startswith(("spec", "status"))


@settings(max_examples=25)
@given(
    gpus=st.integers(0, 40),
    deployments=st.integers(1, 10),
    seed=st.integers(0, 99),
    name=st.text(min_size=1, max_size=400),
    money=st.floats(0, 1e9),
    current=st.floats(0, 1e9),
    gap=st.floats(0, 1),
)
def test_whatever_is_planned_fits_a_fleet_plan(gpus, deployments, seed, name, money, current, gap):
    plan = large_plan(gpus, deployments, seed)
    plan |= {"costPerHour": money, "objective": money, "bound": money * (1 - gap), "gap": gap}
    for each in (*plan["moves"], *plan["steps"]):
        each["owner"] = name
    for gpu in plan["gpus"]:
        gpu["id"] = name + gpu["id"]

    spec = fleet_plan_spec(plan, inputs_hash="0" * 12)
    status = status_figures(plan, current_cost_per_hour=current, solve_s=money)

    for model, part in ((FleetPlanSpec, spec), (FleetPlanStatus, status)):
        read = model.model_validate(part).model_dump(mode="json", by_alias=True, exclude_unset=True)
        assert read == json.loads(json.dumps(part))
