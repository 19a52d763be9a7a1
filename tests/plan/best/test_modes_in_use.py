"""Fleets of GPUs in use that another MIG mode would let serve more: what is planned, and what it takes."""

import random
from dataclasses import replace

import pytest

from tangram.fleet import (
    Claim,
    FactsKey,
    MIGLayout,
    MIGSlice,
    NodePartition,
    PartitionedGPU,
    PartitionView,
    Pool,
    PoolPolicy,
)
from tangram.plan.fleet_input.observed.snapshot_input import snapshot_input
from tangram.plan.place.best.packing_problem import fleet_problem
from tangram.plan.recommend import recommend
from tests.support.fleet import FACTS_1B, IMAGE, PRODUCTS, intent, node, shape, snapshot, workload

WHOLE, MODEL = "nvidia.com/gpu", "image:///m/small"
SLICES = (("A100-80GB-SXM", "1g.10gb", 7), ("A30", "1g.6gb", 4), ("H200-141GB-SXM", "1g.18gb", 7))
PRODUCTS_OF_BOARDS = PRODUCTS | {"H200-141GB-SXM": "NVIDIA-H200", "A30": "NVIDIA-A30"}


def full_of_whole_gpus(
    models=3, gpus=2, sku="H100-80GB-SXM", policy=PoolPolicy.RECOMMEND, backend="nvml", seed=0, **fields
):
    """A tiny model on each whole GPU of one node, and some more that find none."""
    rng = random.Random(seed)
    names = rng.sample("abcdefghijklmnopqrstuvwxyz", models)
    wanted = tuple(intent(name, MODEL) for name in names)
    ids = [f"GPU-{number}" if backend == "nvml" else f"n/index-{number}" for number in range(gpus)]
    rng.shuffle(ids)
    served = wanted[:gpus]
    held = {i: ((None, f"ns/{m.name}-1"),) for i, m in zip(ids, served, strict=True)}
    parts = tuple(
        PartitionedGPU(i, MIGLayout(), sku, held=held[i] if backend == "nvml" else ((None, ""),))
        for i in sorted(ids)
    )
    pools = (Pool("p", (("pool", "x"),), policy=policy, backend=backend),) if policy is not None else ()
    return snapshot(
        replace(
            node("n"),
            sku=sku,
            product=PRODUCTS_OF_BOARDS[sku],
            allocatable=((WHOLE, gpus),),
            gpus=gpus,
            labels=(("pool", "x"),),
        ),
        workloads=tuple(workload(m, shape(sku=sku)) for m in served),
        claims=tuple(Claim("n", WHOLE, 1, m.uid, pod=f"ns/{m.name}-1") for m in served),
        facts=((FactsKey("ns", MODEL, IMAGE), FACTS_1B),),
        desired=tuple(sorted((m.uid, 1) for m in wanted)),
        pools=pools,
        partition=PartitionView((NodePartition("n", backend, "", True, True, parts),)),
        **fields,
    ), wanted


def restarted(found):
    return [step["owner"] for step in found.document["steps"] if step["kind"] == "stop-replica"]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"seed": 1},
        {"seed": 2, "policy": PoolPolicy.FULL},
        {"policy": None},
        {"models": 9, "gpus": 4},
        {"models": 25, "gpus": 24},  # four are cut: their replicas make room for each other, but for one
        {"sku": "A100-80GB-SXM"},
        {"sku": "H200-141GB-SXM"},
        {"sku": "A30"},
        {"backend": "mig-manager"},
    ],
)
def test_whole_gpus_in_use_are_cut_for_a_model_that_finds_none_and_a_restart_is_named(fields):
    seen, wanted = full_of_whole_gpus(**fields)

    found = recommend(seen, wanted)

    assert (found.better, found.document["unmet"]) == (True, [])
    assert "stepsMissing" not in found.document
    expected = len(wanted) - 1 if fields.get("backend") == "mig-manager" else 1
    assert len(restarted(found)) == expected
    named = f"replicas of {', '.join(sorted(restarted(found)))} are restarted, with consent"
    assert any(note.startswith(named) for note in found.document["notes"])


@pytest.mark.parametrize("policy", [PoolPolicy.RECOMMEND, PoolPolicy.FULL])
def test_a_plan_of_changes_names_whom_it_restarts(policy):
    seen, wanted = full_of_whole_gpus(policy=policy)

    found = recommend(seen, wanted)

    (changes,) = found.changes
    assert changes.restarts == tuple(restarted(found))
    assert set(changes.restarts) < set(changes.disturbed)  # the other one moves directly
    assert changes.name != replace(changes, restarts=()).name  # consent to moves is none to restarts


def test_under_mig_manager_a_restart_is_recommended_and_not_carried_out():
    seen, wanted = full_of_whole_gpus(backend="mig-manager")

    found = recommend(seen, wanted)

    assert found.changes == ()
    assert any("would be restarted" in note for note in found.document["notes"])


def test_a_replica_that_a_free_slice_serves_makes_room_without_a_restart():
    """The third model is too large for the slice that is free beside two whole GPUs."""
    seen, (first, second, _) = full_of_whole_gpus()
    slices = MIGLayout(True, (MIGSlice(6, "1g.10gb"),))
    (part,) = seen.partition.nodes
    more = replace(part, gpus=(*part.gpus, PartitionedGPU("GPU-9", slices, "H100-80GB-SXM")))
    host = replace(seen.nodes[0], allocatable=((WHOLE, 2), ("nvidia.com/mig-1g.10gb", 1)), gpus=3)
    new = intent("z", MODEL, min_replicas=12)
    seen = replace(
        seen, nodes=(host,), partition=PartitionView((more,)), desired=((first.uid, 1), (second.uid, 1))
    )

    found = recommend(replace(seen, desired=(*seen.desired, (new.uid, 12))), (first, second, new))

    assert found.document["unmet"] == []
    assert restarted(found) == []
    assert "stepsMissing" not in found.document


def test_where_no_policy_moves_replicas_the_plan_is_the_best_that_may_be_recommended():
    seen, wanted = full_of_whole_gpus(policy=PoolPolicy.IDLE_ONLY)

    found = recommend(seen, wanted)

    assert (len(found.document["unmet"]), found.document["status"], found.better) == (1, "OPTIMAL", False)


@pytest.mark.parametrize("policy", [PoolPolicy.RECOMMEND, PoolPolicy.IDLE_ONLY, PoolPolicy.FULL, None])
@pytest.mark.parametrize(("sku", "profile", "most"), SLICES)
def test_an_empty_fleet_has_room_for_the_slices_of_its_whole_gpus(policy, sku, profile, most):
    seen, wanted = full_of_whole_gpus(policy=policy, sku=sku)

    bounds = fleet_problem(snapshot_input(seen, wanted)).bounds

    assert bounds.of(shape(profile, sku).key) == 2 * most


def test_an_empty_fleet_that_may_not_be_cut_has_room_for_its_whole_gpus_alone():
    seen, wanted = full_of_whole_gpus(policy=PoolPolicy.IGNORE)

    bounds = fleet_problem(snapshot_input(seen, wanted)).bounds

    assert (bounds.of(shape("1g.10gb").key), bounds.of(shape().key)) == (0, 2)
