"""Replicas of several GPUs: which gang, where it fits, what it costs, and why not another one."""

import json
from collections import Counter
from dataclasses import replace

import pytest

from tangram.api import parse_report
from tangram.api.llm_deployment.back_offs import back_off_block, back_offs_from_status
from tangram.eligibility.runtime_request import runtimes_of, with_runtime
from tangram.fleet import (
    ApplyDeployment,
    BackOff,
    Claim,
    FactsKey,
    Objective,
    PartitionView,
    PodNeeds,
    QuotaLimit,
    RemoveDeployment,
    ReplicaMove,
    Shape,
    Spread,
)
from tangram.plan import plan
from tangram.plan.fleet_input.documents.snapshot_file import read_snapshot, snapshot_document
from tangram.plan.fleet_input.observed.snapshot_input import snapshot_input
from tangram.plan.recommend import recommend
from tangram_engine.inspect import _compressed
from tests.catalog.real_checkpoints import real_checkpoints
from tests.support.fleet import (
    FACTS_8B,
    FACTS_70B,
    IMAGE,
    NOW,
    Cluster,
    claims,
    intent,
    node,
    snapshot,
    workload,
)
from tests.support.runtimes import shipped

H100, L4 = "H100-80GB-SXM", "L4"
URI, VLLM = "pvc://weights/m", shipped("vllm")
LLAMA_405B, LLAMA_70B, QWEN_32B = (
    "meta-llama/Meta-Llama-3.1-405B",
    "meta-llama/Meta-Llama-3.1-70B",
    "Qwen/Qwen3-32B",
)
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3"}


def facts(repo, **changes):
    checkpoint = real_checkpoints()[repo]
    report = {
        "schema": 1,
        "error": {"reason": "UnknownArchitecture", "message": "config.json: not implemented"},
        "other": {
            "digest": "d",
            "weightBytes": 2 * checkpoint.parameters,
            "config": _compressed({**checkpoint.config, **changes}),
        },
    }
    return parse_report(json.dumps(report), NOW)


def fleet(repo, *nodes, runtime=VLLM, changes=None, **more):
    base = snapshot(*nodes, runtimes=(runtime,), **more)
    return replace(base, facts=((FactsKey("ns", URI, IMAGE), facts(repo, **(changes or {}))),))


def asked(observed, name="m", **spec):
    return with_runtime(intent(name, URI, **spec), runtimes_of(observed))


def decided(observed, **spec):
    result = plan(observed, (asked(observed, **spec),), NOW)
    return result.decisions[0], [a for a in result.actions if isinstance(a, ApplyDeployment)]


def gang(sku=H100, tensor=1, stages=1, precision="bf16"):
    return Shape(sku, "gpu", tensor, precision, "vllm", stages)


def without_tensor_parallelism():
    return replace(VLLM, serves=replace(VLLM.serves, max_tensor_parallel=1))


# --- real models


@pytest.mark.parametrize(
    ("repo", "changes", "nodes", "runtime", "shape"),
    [
        (LLAMA_405B, {"quantization_config": FP8}, [node("a", gpu=8)], VLLM, gang(H100, 8, precision="fp8")),
        (LLAMA_70B, {}, [node("a", gpu=2)], VLLM, gang(H100, 2)),
        (LLAMA_70B, {}, [node("a", gpu=8)], VLLM, gang(H100, 2)),
        (QWEN_32B, {}, [node("a", L4, gpu=4)], VLLM, gang(L4, 4)),
        (QWEN_32B, {}, [node("a", L4, gpu=8)], without_tensor_parallelism(), gang(L4, 1, 4)),
    ],
    ids=["405B fp8 on 8 H100", "70B on 2 H100", "70B on a node of 8", "32B on 4 L4", "32B on 4 L4 by stages"],
)
def test_a_model_runs_on_the_smallest_gang_that_holds_it(repo, changes, nodes, runtime, shape):
    decision, (applied,) = decided(fleet(repo, *nodes, runtime=runtime, changes=changes), max_model_len=8192)

    assert (decision.shape, decision.placed) == (shape, 1)
    assert (applied.shape, applied.replicas) == (shape, 1)
    assert applied.launch.weight_bytes > 0
    assert decision.placed_message.startswith(f"1 on {shape.described} at ")
    smaller = [other for other in decision.alternatives if other.shape.gpus < shape.gpus]
    assert {other.rejected_because for other in smaller} == {"DoesNotFit"}


@pytest.mark.parametrize("gpus", [1, 2], ids=["no gang fits", "a gang of two"])
def test_a_model_of_the_bundled_engine_that_fits_on_no_gpu_is_served_by_a_gang(gpus):
    """In both horizons. Where no runtime serves it, the reason is that of the bundled engine."""
    observed = fleet(LLAMA_70B, node("a", gpu=gpus))
    observed = replace(observed, facts=((FactsKey("ns", URI, IMAGE), FACTS_70B),))
    owner = asked(observed, max_model_len=8192)

    decision = plan(observed, (owner,), NOW).decisions[0]

    if gpus == 1:
        assert decision.placed_message.startswith("no GPU or slice has enough memory; the closest is H100")
        return
    assert decision.shape == gang(H100, 2)
    why = "runtime vllm: tangram serves on no shape; vllm is the cheapest"
    assert decision.runtime_reason.startswith(why)
    (planned,) = snapshot_input(observed, (owner,)).deployments
    assert planned.runtime_name == "vllm"


@pytest.mark.parametrize("is_too_large", [True, False], ids=["a larger model", "a faster objective"])
def test_replicas_of_the_bundled_engine_make_room_for_a_gang_where_it_cannot_serve(is_too_large):
    """In both horizons. A prediction of latencies alone ends no replica of another runtime."""
    observed = fleet(LLAMA_70B, node("a", gpu=4))
    known = FACTS_70B if is_too_large else FACTS_8B
    observed = replace(observed, facts=((FactsKey("ns", URI, IMAGE), known),))
    objectives = {} if is_too_large else {"tpot": Objective(90, 5)}
    owner, at = asked(observed, max_model_len=8192, **objectives), Shape(H100, "gpu")
    observed = replace(observed, workloads=(workload(owner, at),), claims=claims(owner, at, "a"))

    decision = plan(observed, (owner,), NOW).decisions[0]

    (planned,) = snapshot_input(observed, (owner,)).deployments
    if is_too_large:
        assert (decision.shape, planned.runtime_name) == (gang(H100, 2), "vllm")
        assert decision.runtime_reason.startswith("runtime vllm: tangram serves on no shape")
    else:
        assert (decision.shape, planned.runtime_name) == (at, "tangram")
        assert decision.runtime_reason.startswith("runtime tangram: its replicas run")


def test_a_model_that_needs_more_gpus_than_a_node_has_is_refused_with_a_sentence():
    decision, applied = decided(fleet(LLAMA_405B, node("a", gpu=8)), max_model_len=8192)

    assert not applied
    assert decision.placed_reason == "Infeasible"
    assert decision.placed_message.startswith(
        "no GPU, no slice and no 8 GPUs of a node have enough memory; the closest is H100-80GB-SXM TP8 vllm, "
    )


def test_a_gang_larger_than_every_node_is_refused_with_the_largest():
    decision, _ = decided(fleet(LLAMA_405B, node("a", gpu=4), changes={"quantization_config": FP8}))

    assert decision.placed_reason == "Infeasible"
    (eight,) = (other for other in decision.alternatives if other.shape.gpus == 8)
    assert (eight.rejected_because, eight.message) == (
        "NotAllowed",
        "no node has 8 H100-80GB-SXM, the largest has 4",
    )


@pytest.mark.parametrize(("cores", "serves"), [(32, True), (31, False)])
def test_a_gang_needs_the_cpu_of_all_its_gpus_on_a_node_that_holds_it(cores, serves):
    large, single = node("a", L4, gpu=4), replace(node("b", L4, gpu=1), host_cpu=192.0)
    nodes = (replace(large, host_cpu=float(cores)), single)
    observed = fleet(QWEN_32B, *nodes, pod_needs=PodNeeds(cpu_per_gpu=8.0))

    decision, applied = decided(observed, max_model_len=8192, tensor_parallel=(4,))

    assert len(applied) == serves
    if not serves:
        assert "and no node with 4 L4 has both: the largest has 31 cores" in decision.placed_message


def test_no_gang_has_a_slice():
    observed = fleet(LLAMA_70B, node("a", mig_3g_40gb=8))

    decision, applied = decided(observed, max_model_len=8192)

    assert (decision.placed_reason, applied) == ("Infeasible", [])
    assert all(other.shape.gpus == 1 for other in decision.alternatives)


# --- TP 2 or two replicas


@pytest.mark.parametrize(
    ("objective", "shape", "replicas", "other", "sentence"),
    [
        (None, gang(), 1, gang(H100, 2), "costs 3.07 $/h more by its share of GPUs; predicted 1"),
        (20, gang(H100, 2), 1, gang(), "predicted 26.61 ms per token when idle, objective 20 ms"),
    ],
    ids=["one GPU meets what is asked", "one GPU is too slow"],
)
def test_tensor_parallelism_is_a_choice_in_dollars_with_both_predictions(
    objective, shape, replicas, other, sentence
):
    spec = {"tpot": Objective(90, objective)} if objective else {}
    decision, _ = decided(fleet(QWEN_32B, node("a", gpu=2)), max_model_len=8192, **spec)

    assert (decision.shape, decision.placed) == (shape, replicas)
    assert decision.predicted_tpot_ms == pytest.approx(15 if objective else 27, abs=1)
    against = next(each for each in decision.alternatives if each.shape == other)
    assert against.message.startswith(sentence)


def test_stages_win_where_links_are_slow_and_nothing_asks_for_fast_tokens():
    """On two H100 NVL, which a pod may get without their bridge."""
    slow, fast = (
        decided(fleet(QWEN_32B, node("a", "H100-94GB-NVL", gpu=2)), tensor_parallel=(2,), **spec)[0]
        for spec in ({}, {"tpot": Objective(90, 18)})
    )

    assert (slow.shape.split, fast.shape.split) == ((1, 2), (2, 1))


# --- room


def test_free_gpus_of_two_nodes_are_no_gang():
    nodes = (node("a", L4, gpu=4), node("b", L4, gpu=4))
    taken = tuple(Claim(name, "nvidia.com/gpu", 1, None) for name in ("a", "b"))

    decision, applied = decided(fleet(QWEN_32B, *nodes, claims=taken), max_model_len=8192)

    assert (decision.placed_reason, applied) == ("InsufficientCapacity", [])
    assert decision.placed_message == "0 of 1 replicas placed; 1 more needs 4 free gpus of one node of L4"


def test_gangs_and_single_gpus_share_nodes_without_overlap():
    """Nine GPUs are free: the gang of four leaves no room for five single replicas on the node of four."""
    observed = fleet(QWEN_32B, node("a", L4, gpu=4), node("b", L4, gpu=5))
    observed = replace(observed, facts=(*observed.facts, *snapshot().facts))
    large = asked(observed, max_model_len=8192, max_replicas=2, min_replicas=2)
    small = intent("small", min_replicas=1, max_replicas=1, allowed_skus=(L4,), created_at=NOW)

    result = plan(observed, (large, small), NOW)

    placed = {d.owner_uid: (d.shape, d.placed) for d in result.decisions}
    assert placed == {large.uid: (gang(L4, 4), 2), small.uid: (Shape(L4, "gpu"), 1)}


@pytest.mark.parametrize(
    ("nodes", "shape"),
    [((4, 1), gang()), ((4, 2), gang(H100, 2))],
    ids=["the second node holds no gang", "one gang on each node"],
)
def test_gangs_keep_to_the_spread_over_nodes(nodes, shape):
    """Half of two replicas may be on one node; two single GPUs spread where two gangs do not."""
    observed = fleet(QWEN_32B, *(node(f"n{gpus}", gpu=gpus) for gpus in nodes))
    asks = {"min_replicas": 2, "max_model_len": 8192, "spread": Spread(node=0.5)}
    if shape.gpus > 1:
        asks |= {"tpot": Objective(90, 20)}

    decision, _ = decided(observed, **asks)

    assert (decision.shape, decision.placed) == (shape, 2)


def test_a_quota_counts_the_gpus_of_a_replica():
    quota = QuotaLimit("ns", "gpus", "requests.nvidia.com/gpu", 3.0, 0.0)
    observed = fleet(LLAMA_70B, node("a", gpu=8), quotas=(quota,))

    decision, (applied,) = decided(observed, min_replicas=2, max_model_len=8192)

    assert (decision.placed_reason, decision.placed, applied.replicas) == ("QuotaExceeded", 1, 1)


def test_a_budget_counts_the_gpus_of_a_replica():
    observed = fleet(LLAMA_70B, node("a", gpu=8))

    decision, (applied,) = decided(observed, min_replicas=2, budget_per_hour=7.0, max_model_len=8192)

    assert (decision.placed_reason, decision.placed, applied.replicas) == ("OverBudget", 1, 1)
    assert decision.cost_per_hour == pytest.approx(6.15, abs=0.01)


# --- over time


def test_gangs_scale_roll_out_and_move_with_all_of_their_gpus():
    observed = fleet(LLAMA_70B, node("a", gpu=4), node("b", gpu=3))
    owner = asked(observed, min_replicas=1, max_replicas=3, max_model_len=8192)
    cluster = Cluster(observed, (owner,))

    def settled(replicas):
        cluster.observed = replace(cluster.observed, desired=((owner.uid, replicas),))
        for _ in range(6):
            result = plan(cluster.observed, (owner,), NOW)
            cluster.perform(result)
            cluster.settle()
        (at,) = cluster.observed.workloads
        used = sum(claim.count for claim in cluster.observed.claims)
        return at.shape, at.available, used, result.decisions[0].placed

    assert settled(1) == (gang(H100, 2), 1, 2, 1)
    assert settled(3) == (gang(H100, 2), 3, 6, 3)
    assert settled(1) == (gang(H100, 2), 1, 2, 1)


def test_a_rollout_waits_for_a_whole_gang():
    observed = fleet(LLAMA_70B, node("a", gpu=3))
    owner, at = asked(observed, max_model_len=8192), gang(H100, 2)
    rolling = workload(owner, at, updated=0)
    observed = replace(observed, workloads=(rolling,), claims=claims(owner, at, "a"))

    decision = plan(observed, (owner,), NOW).decisions[0]

    assert decision.rollout_waits == "the rollout waits for 2 free gpus of one node of H100-80GB-SXM"
    assert decision.placed == 1


def test_pods_of_another_number_of_gpus_are_no_replicas_of_a_gang():
    """It moves from single GPUs to gangs: each counts its own pods."""
    observed = fleet(QWEN_32B, node("a", gpu=4))
    owner = asked(observed, max_model_len=8192, tpot=Objective(90, 20))
    single, pair = gang(), gang(H100, 2)
    observed = replace(
        observed,
        workloads=(workload(owner, single), workload(owner, pair, available=0)),
        claims=(*claims(owner, single, "a"), *claims(owner, pair, "a")),
    )

    result = plan(observed, (owner,), NOW)

    assert dict(result.decisions[0].running) == {single: 1, pair: 1}
    assert not [action for action in result.actions if isinstance(action, RemoveDeployment)]


def test_missing_pods_of_gangs_keep_their_gpus_from_others():
    observed = fleet(LLAMA_70B, node("a", gpu=4))
    owner, other = asked(observed, max_model_len=8192, created_at=NOW - 9000), asked(observed, "n")
    at = gang(H100, 2)
    observed = replace(observed, workloads=(workload(owner, at, replicas=1, available=0, total=0),))

    result = plan(observed, (owner, replace(other, max_model_len=8192)), NOW)

    applied = {a.owner_uid: a.replicas for a in result.actions if isinstance(a, ApplyDeployment)}
    assert applied == {owner.uid: 1, other.uid: 1}
    assert {d.owner_uid: d.placed for d in result.decisions} == {owner.uid: 1, other.uid: 1}


# --- the plan of the fleet


@pytest.mark.parametrize("scheduled", [True, False])
def test_the_fleet_plan_keeps_gangs_that_run_or_are_about_to(scheduled):
    observed = fleet(LLAMA_70B, node("a", gpu=1), node("b", gpu=4))
    owner, at = asked(observed, min_replicas=2, max_model_len=8192), gang(H100, 2)
    held = claims(owner, at, "b", 2 if scheduled else 1)
    observed = replace(observed, workloads=(workload(owner, at, 2),), claims=held)

    found = recommend(observed, (owner,))

    gangs = Counter(i["gang"] for gpu in found.document["gpus"] for i in gpu["instances"])
    assert sorted(gangs.values()) == [2, 2]
    assert found.document["moves"] == []


def test_the_fleet_plan_names_stages():
    observed = fleet(QWEN_32B, node("a", L4, gpu=8), runtime=without_tensor_parallelism())

    (deployment,) = recommend(observed, (asked(observed, max_model_len=8192),)).document["deployments"]

    (chosen,) = deployment["chosen"]
    assert (chosen["tensorParallel"], chosen["pipelineParallel"]) == (1, 4)


def test_a_snapshot_with_stages_their_back_off_and_a_move_is_read_back():
    at = gang(L4, 1, 4)
    observed = fleet(QWEN_32B, node("a", L4, gpu=8))
    owner = asked(observed)
    back_off = BackOff(owner.uid, 1, at, "Unschedulable", "no room", 0, NOW, NOW + 300, 1)
    observed = replace(
        observed,
        workloads=(workload(owner, at),),
        claims=claims(owner, at, "a"),
        back_offs=(back_off,),
        partition=PartitionView(moves=(ReplicaMove(owner.uid, gang(L4, 2).key),)),
    )

    document = json.loads(json.dumps(snapshot_document(observed, (owner,))))

    assert read_snapshot(document, "snapshot") == (observed, (owner,))
    status = {"metadata": {"uid": owner.uid}, "status": {"backOffs": [back_off_block(back_off)]}}
    assert back_offs_from_status(status) == (back_off,)
