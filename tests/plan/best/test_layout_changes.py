"""Which changes of layouts are carried out: those that every replica lives through without a break."""

from dataclasses import replace

import pytest

from tangram.fleet import (
    Claim,
    FactsKey,
    MIGLayout,
    MIGPolicy,
    MIGSlice,
    NodePartition,
    PartitionedGPU,
    PartitionView,
    Pool,
    PoolPolicy,
    ShapeKey,
)
from tangram.packing import GPULayout, Instance, Move, Placed, Site
from tangram.plan.fleet_input.observed.snapshot_input import snapshot_input
from tangram.plan.recommend import plan_fleet, recommend
from tangram.plan.result.layout_changes import layout_changes
from tests.support.fleet import (
    FACTS_1B,
    FACTS_8B,
    IMAGE,
    claims,
    intent,
    node,
    shape,
    snapshot,
    workload,
)

UUID = "GPU-00000000-0000-0000-0000-000000000000"
SMALL, MEDIUM = "image:///m/small", "image:///m/medium"
FACTS = {
    SMALL: FACTS_1B,
    MEDIUM: replace(FACTS_8B, layers=54, parameters=13_200_000_000, weight_bytes=26_400_000_000),
}
SLICES = MIGLayout(True, (MIGSlice(0, "1g.10gb"), MIGSlice(4, "1g.10gb")))
MODELS = (intent("a", SMALL), intent("b", SMALL), intent("c", MEDIUM))


def crowded(policy=PoolPolicy.FULL, **partition):
    """One GPU with models `a` on 1g.10gb@0 and `b` on 1g.10gb@4; `c` needs four memory slices on end."""
    gpu = PartitionedGPU(UUID, SLICES, "H100-80GB-SXM", held=((0, "ns/a-1"), (4, "ns/b-1")))
    return snapshot(
        replace(node("a", mig_1g_10gb=2), gpus=1, labels=(("pool", "x"),)),
        claims=tuple(
            Claim("a", "nvidia.com/mig-1g.10gb", 1, f"uid-{name}", pod=f"ns/{name}-1") for name in "ab"
        ),
        facts=tuple((FactsKey("ns", uri, IMAGE), facts) for uri, facts in FACTS.items()),
        desired=tuple((model.uid, 1) for model in MODELS),
        pools=(Pool("x", (("pool", "x"),), policy=policy, backend="nvml"),),
        partition=PartitionView((NodePartition("a", "nvml", "", True, True, (gpu,)),), **partition),
    )


def test_a_replica_makes_room_on_its_own_gpu():
    (changes,) = recommend(crowded(), MODELS).changes

    assert changes.moves == (("ns/b", ShapeKey("H100-80GB-SXM", "1g.10gb")),)
    (change,) = changes.changes
    assert change.before == SLICES
    assert str(change.after) == "1g.10gb@0 1g.10gb@1 3g.40gb@4"


def test_a_replica_that_moves_is_named_with_its_namespace_the_default_one_too():
    """The executor knows LLMDeployments as NAMESPACE/NAME; a name that it does not know counts as deleted."""
    models = tuple(replace(model, namespace="default") for model in MODELS)
    facts = tuple((replace(key, namespace="default"), found) for key, found in crowded().facts)
    (changes,) = recommend(replace(crowded(), facts=facts), models).changes

    assert changes.disturbed == ("default/b",)


@pytest.mark.parametrize("policy", [PoolPolicy.IDLE_ONLY, PoolPolicy.IGNORE])
def test_without_the_policy_for_it_no_replica_moves(policy):
    assert recommend(crowded(policy), MODELS).changes == ()


def test_a_move_to_which_no_steps_lead_is_only_recommended():
    fleet = crowded()
    planned = plan_fleet(snapshot_input(fleet, MODELS))
    steps = [step for step in planned.document["steps"] if step.get("owner") != "ns/b"]

    changes, notes = layout_changes(planned.fleet, planned.packing, fleet, steps)

    assert changes == ()
    assert notes == (f"GPU {UUID} is not cut: no steps move replicas of ns/b",)


def test_whoever_has_to_leave_holds_no_slice_of_the_layout_that_is_being_made():
    """The 3g.40gb that is made at 4 is not the slice of the replica that leaves 1g.10gb@4."""
    target = MIGLayout(True, (MIGSlice(0, "1g.10gb"), MIGSlice(3, "1g.10gb"), MIGSlice(4, "3g.40gb")))
    problem = plan_fleet(snapshot_input(crowded(targets=((UUID, target),)), MODELS)).fleet.problem
    (gpu,) = problem.gpus

    assert [(i.start, i.profile, i.owner) for i in gpu.instances if i.owner == "ns/a"] == [
        (0, "1g.10gb", "ns/a")
    ]
    assert [i.owner for i in gpu.instances if i.start == 4] == [None]


def gang_on(*gpus):
    """What a replica on several whole GPUs leaves on each of them."""
    return Instance("gpu", 0, "ns/a", gang=gpus[0])


def moved_gang(policies, recut=(1,)):
    """A replica leaves GPUs 0 and 1 for 2 and 3, each in a pool of its own, and some of them are cut."""
    fleet = crowded()
    planned = plan_fleet(snapshot_input(fleet, MODELS))
    ids = tuple(f"GPU-{number}" for number in range(4))
    (gpu,) = planned.fleet.problem.gpus
    states = tuple(
        replace(gpu, id=i, pool=f"p{n}", mig_enabled=False, instances=(gang_on(*ids[:2]),) if n < 2 else ())
        for n, i in enumerate(ids)
    )
    slices = (Placed(0, "3g.40gb", "ns/c"),)
    gang = (Placed(0, "gpu", "ns/a", gang=ids[2]),)
    layouts = tuple(
        GPULayout(i, instances, in_use=True, recut=n in recut)
        for n, (i, instances) in enumerate(zip(ids, ((), slices, gang, gang), strict=True))
    )
    move = Move("ns/a", Site(ids[0], "gpu", 0, ids[0]), Site(ids[2], "gpu", 0, ids[2]), 0.0)
    packing = replace(planned.packing, layouts=layouts, moves=(move,))
    problem = replace(planned.fleet, problem=replace(planned.fleet.problem, gpus=states))
    part = NodePartition("a", "nvml", "", True, True, tuple(PartitionedGPU(i, MIGLayout()) for i in ids))
    pools = tuple(Pool(f"p{n}", (), policy=policy, backend="nvml") for n, policy in enumerate(policies))
    seen = replace(fleet, partition=PartitionView((part,)), pools=pools)
    steps = [{"kind": "start-replica", "owner": "ns/a", "gpus": list(ids[2:])}]
    return layout_changes(problem, packing, seen, steps)[0]


FULL = PoolPolicy.FULL


def test_a_replica_of_several_gpus_is_moved_for_each_of_them():
    (changes,) = moved_gang((FULL, FULL, FULL, FULL))

    assert [change.gpu for change in changes.changes] == ["GPU-1"]
    assert changes.disturbed == ("ns/a",)
    assert changes.pool == "p1"


@pytest.mark.parametrize(
    ("first", "second", "asked"),
    [
        (PoolPolicy.RECOMMEND, FULL, "p0"),
        (FULL, PoolPolicy.RECOMMEND, "p1"),
        (PoolPolicy.IDLE_ONLY, FULL, "p1"),
    ],
)
def test_the_pool_that_waits_for_a_person_is_asked_for_all(first, second, asked):
    (changes,) = moved_gang((first, second, FULL, FULL), recut=(0, 1))

    assert changes.pool == asked


# ---- mig-manager changes MIG modes on empty nodes alone ------------------------------------------------

SEVEN = MIGLayout(True, tuple(MIGSlice(start, "1g.10gb") for start in range(7)))


def two_gpus_of_mig_manager(layouts, offer, **fields):
    gpus = tuple(
        PartitionedGPU(f"a/index-{i}", layout, "H100-80GB-SXM", held=((0, ""),) if layout.mig_enabled else ())
        for i, layout in enumerate(layouts)
    )
    return snapshot(
        replace(node("a", **offer), gpus=2, labels=(("pool", "x"),)),
        pools=(Pool("x", (("pool", "x"),), policy=PoolPolicy.IDLE_ONLY, backend="mig-manager"),),
        partition=PartitionView((NodePartition("a", "mig-manager", "", True, True, gpus),)),
        **fields,
    )


def test_no_plan_changes_a_mig_mode_beside_a_replica_that_stays():
    first, second = intent("first"), intent("second", "image:///m/8b", mig=MIGPolicy.REQUIRED)
    seen = two_gpus_of_mig_manager(
        (SEVEN, MIGLayout()),
        {"gpu": 1, "mig_1g_10gb": 7},
        desired=((first.uid, 1), (second.uid, 1)),
        workloads=(workload(first, shape("1g.10gb")),),
        claims=claims(first, shape("1g.10gb"), "a"),
    )

    changes = [c for one_set in recommend(seen, (first, second)).changes for c in one_set.changes]

    assert not [c for c in changes if c.before.mig_enabled != c.after.mig_enabled]


def test_mig_modes_of_one_node_change_in_one_plan():
    many = [intent(f"m{i}", "image:///m/8b", mig=MIGPolicy.REQUIRED) for i in range(5)]
    seen = two_gpus_of_mig_manager(
        (MIGLayout(), MIGLayout()), {"gpu": 2}, desired=tuple((m.uid, 1) for m in many)
    )

    (changes,) = recommend(seen, many).changes

    assert len(changes.changes) == 2


# ---- moves for which no GPU is cut ------------------------------------------------------------------------

FIRST, SECOND, THIRD = (f"GPU-{number:08d}-0000-0000-0000-000000000000" for number in (1, 2, 3))
TINY = ShapeKey("H100-80GB-SXM", "1g.10gb")


def slices(*starts):
    return MIGLayout(True, tuple(MIGSlice(start, "1g.10gb") for start in starts))


def running(gpus, policy=PoolPolicy.RECOMMEND):
    """A node and its models. `gpus`: (id, layout, {start, or None for the whole GPU: model})."""
    held = [(gpu, layout, start, name) for gpu, layout, users in gpus for start, name in users.items()]
    models = tuple(intent(name) for name in sorted({name for *_, name in held}))
    at = {name: shape("1g.10gb" if layout.mig_enabled else "gpu") for _, layout, _, name in held}
    offers = {
        "gpu": sum(not layout.mig_enabled for _, layout, _ in gpus),
        "mig_1g_10gb": sum(len(layout.slices) for _, layout, _ in gpus),
    }
    known = tuple(
        PartitionedGPU(
            gpu,
            layout,
            "H100-80GB-SXM",
            held=tuple((start, f"ns/{name}-{start}") for start, name in users.items()),
        )
        for gpu, layout, users in gpus
    )
    fleet = snapshot(
        replace(node("a", **offers), gpus=len(gpus), labels=(("pool", "x"),)),
        claims=tuple(
            Claim("a", at[name].resource, 1, f"uid-{name}", pod=f"ns/{name}-{start}")
            for _, _, start, name in held
        ),
        workloads=tuple(
            workload(model, at[model.name], sum(model.name == name for *_, name in held))
            for model in models
            if model.name in at
        ),
        desired=tuple((m.uid, max(1, sum(m.name == name for *_, name in held))) for m in models),
        pools=(Pool("x", (("pool", "x"),), policy=policy, backend="nvml"),),
        partition=PartitionView((NodePartition("a", "nvml", "", True, True, known),)),
    )
    models = tuple(
        replace(m, max_replicas=replicas, min_replicas=replicas)
        for m, (_, replicas) in zip(models, fleet.desired, strict=True)
    )
    return fleet, models


def test_a_move_that_saves_a_whole_gpu_is_a_plan_of_changes():
    gpus = ((FIRST, MIGLayout(), {None: "alpha"}), (SECOND, slices(0, 4), {0: "beta"}))
    (changes,) = recommend(*running(gpus)).changes

    (left,) = changes.changes
    assert (left.gpu, left.keeps_layout) == (FIRST, True)
    assert changes.moves == (("ns/alpha", TINY),)
    assert changes.cost == (pytest.approx(2 * changes.cost[1]), pytest.approx(changes.cost[1]))
    assert (changes.serves, changes.pool) == ((), "x")


def test_several_models_that_leave_their_gpus_for_one_are_one_plan_or_several():
    gpus = (
        (FIRST, MIGLayout(), {None: "alpha"}),
        (SECOND, MIGLayout(), {None: "gamma"}),
        (THIRD, slices(0, 4, 5), {0: "beta"}),
    )
    found = recommend(*running(gpus)).changes

    assert sorted(owner for one in found for owner in one.disturbed) == ["ns/alpha", "ns/gamma"]
    assert {c.gpu for one in found for c in one.changes} == {FIRST, SECOND}


@pytest.mark.parametrize("policy", [PoolPolicy.FULL, PoolPolicy.IDLE_ONLY, PoolPolicy.IGNORE])
def test_where_no_person_is_asked_moves_alone_are_only_recommended(policy):
    gpus = ((FIRST, MIGLayout(), {None: "alpha"}), (SECOND, slices(0, 4), {0: "beta"}))

    assert recommend(*running(gpus, policy)).changes == ()


def test_a_replica_does_not_move_to_another_slice_of_its_profile():
    """Its pod asks for a 1g.10gb of the node, and a device plugin picks any."""
    gpus = ((FIRST, slices(*range(7)), {2: "alpha"}), (SECOND, slices(*range(7)), {0: "beta", 1: "gamma"}))
    seen, models = running(gpus)
    planned = plan_fleet(snapshot_input(seen, models))

    assert planned.packing.moves
    changes, notes = layout_changes(planned.fleet, planned.packing, seen, planned.document["steps"])
    assert changes == ()
    assert notes == ("replicas of ns/alpha do not move: they could start on any free slice",)


def test_an_idle_gpu_on_which_a_replica_could_start_is_part_of_its_move():
    gpus = (
        (FIRST, MIGLayout(), {None: "alpha"}),
        (SECOND, slices(0, 4), {0: "beta"}),
        (THIRD, slices(0, 1), {}),
    )
    (changes,) = recommend(*running(gpus)).changes

    assert [(c.gpu, str(c.before), str(c.after)) for c in changes.changes] == [
        (FIRST, "gpu", "gpu"),
        (THIRD, "1g.10gb@0 1g.10gb@1", "empty"),
    ]


@pytest.mark.parametrize("uncuttable", [{"backend": "mig-manager"}, {"cuttable": False}])
def test_a_replica_that_could_start_where_it_saves_nothing_is_not_moved(uncuttable):
    gpus = (
        (FIRST, MIGLayout(), {None: "alpha"}),
        (SECOND, slices(0, 4), {0: "beta"}),
        (THIRD, slices(0, 1), {}),
    )
    seen, models = running(gpus)
    planned = plan_fleet(snapshot_input(seen, models))
    states = tuple(replace(gpu, **uncuttable) for gpu in planned.fleet.problem.gpus)
    fleet = replace(planned.fleet, problem=replace(planned.fleet.problem, gpus=states))

    assert planned.packing.moves
    changes, notes = layout_changes(fleet, planned.packing, seen, planned.document["steps"])
    assert changes == ()
    assert notes == (f"replicas of ns/alpha do not move: they could start on GPU {THIRD} as well",)


def test_who_gets_replicas_by_a_cut_is_named_with_what_the_gpus_cost():
    (changes,) = recommend(crowded(), MODELS).changes

    assert changes.serves == ("ns/c",)
    assert changes.cost == (pytest.approx(changes.cost[1]), pytest.approx(changes.cost[0]))
