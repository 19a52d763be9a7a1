"""The plan of an observed fleet: which GPUs, LLMDeployments and pools it has, and which notes."""

import json
import math
from dataclasses import replace

import pytest

from tangram.catalog import InputError
from tangram.fleet import (
    FactsKey,
    Fault,
    FieldManager,
    InvalidIntent,
    MIGPolicy,
    Pool,
    PoolPolicy,
    ShapeKey,
    Spread,
    Traffic,
)
from tangram.fleet.lengths import around
from tangram.plan import plan
from tangram.plan.fleet_input.documents.snapshot_file import read_snapshot, snapshot_document
from tangram.plan.fleet_input.observed.snapshot_input import snapshot_input
from tangram.plan.inputs_hash import inputs_hash, planner_version
from tangram.plan.place.best.pack import PlanTimeLimit
from tangram.plan.place.best.packing_problem import fleet_problem
from tangram.plan.recommend import recommend
from tests.support.fleet import FACTS_8B, IMAGE, claims, intent, node, shape, snapshot, tpot, workload

H100 = "H100-80GB-SXM"
SLICE, BIG, WHOLE = shape("1g.10gb"), shape("3g.40gb"), shape()


def owners(given):
    return [i.owner for gpu in given.gpus for i in gpu.instances if i.owner]


def on(*labels, name="n0", **offer):
    return replace(node(name, **offer), labels=tuple((key, "1") for key in labels))


def pool(name, **more):
    return Pool(name, selector=((name, "1"),), **more)


def running(who, at, on_node, count, **more):
    """A snapshot in which `who` runs `count` replicas."""
    return {"workloads": (workload(who, at, count),), "claims": claims(who, at, on_node, count), **more}


def test_layouts_follow_from_what_nodes_offer_and_who_holds_it():
    a = intent("a")
    seen = snapshot(node("n0", mig_1g_10gb=8, mig_3g_40gb=2), node("n1", gpu=2), **running(a, SLICE, "n0", 3))

    given = snapshot_input(replace(seen, claims=(*seen.claims, *claims(None, WHOLE, "n1"))), (a,))

    assert [gpu.id for gpu in given.gpus] == ["n0/0", "n0/1", "n1/0", "n1/1"]
    assert sorted(owners(given)) == ["(others)", "ns/a", "ns/a", "ns/a"]
    assert not next(i for gpu in given.gpus for i in gpu.instances if i.owner == "(others)").movable
    assert given.inferred == {gpu.id for gpu in given.gpus}


def test_replicas_whose_pods_are_still_to_come_have_their_place():
    a = intent("a", max_replicas=4)
    seen = snapshot(node("n0", mig_1g_10gb=7), **running(a, SLICE, "n0", 1))
    seen = replace(seen, workloads=(workload(a, SLICE, 3),))

    assert owners(snapshot_input(seen, (a,))) == ["ns/a"] * 3


@pytest.mark.parametrize(
    ("offered", "note"),
    [
        (node("n0", usable=False, gpu=1), "takes no pods of the engine"),
        (replace(node("n0", gpu=1), sku=None, product="Tesla-K80"), "the catalog does not know"),
        (node("n0", "GB200-186GB", gpu=1), "no price is known"),
        (replace(node("n0", mig_3g_40gb=3), gpus=1), "fit no layout"),
        (node("n0", mig_1g_5gb=1), "is no slice of H100"),
        (node("n0", gpu=5000), "more than a node can have"),
    ],
)
def test_a_node_that_cannot_be_planned_is_left_out_and_told(offered, note):
    given = snapshot_input(snapshot(offered, node("n1", gpu=1)), ())

    assert [gpu.node for gpu in given.gpus] == ["n1"]
    assert [text for text in given.notes if note in text]


def test_a_node_that_two_pools_claim_belongs_to_the_first_by_name_and_that_is_told():
    given = snapshot_input(snapshot(on("p", "q", gpu=1), pools=(pool("q"), pool("p"))), ())

    assert [gpu.pool for gpu in given.gpus] == ["p"]
    assert [text for text in given.notes if "p, q claim it; it belongs to p" in text]


def test_a_pool_that_nobody_knows_how_to_grow_is_planned_without_growth():
    given = snapshot_input(snapshot(pools=(pool("p", max_nodes=3),)), ())

    assert fleet_problem(given).problem.growable == ()
    assert [text for text in given.notes if "planned without growth" in text]


def test_nodes_that_are_away_count_as_nodes_of_their_pool():
    seen = snapshot(on("p", gpu=8), replace(on("p", name="n1", gpu=8), usable=False))

    problem = fleet_problem(snapshot_input(replace(seen, pools=(pool("p", max_nodes=3),)), ())).problem

    assert [each.max_nodes for each in problem.growable] == [1]


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({"model_uri": "pvc://nobody/inspected"}, "its checkpoint has not been inspected"),
        ({"traffic": Traffic(1.0, around(10**6))}, "traffic"),
    ],
)
def test_who_cannot_be_planned_keeps_what_it_has(changes, note):
    a = intent("a", **changes)
    given = snapshot_input(snapshot(node("n0", mig_1g_10gb=7), **running(a, SLICE, "n0", 1)), (a,))

    assert given.deployments == ()
    assert [text for text in given.notes if text.startswith("ns/a is not planned") and note in text]
    assert [i.movable for gpu in given.gpus for i in gpu.instances if i.owner == "ns/a"] == [False]


def test_one_that_is_refused_or_invalid_keeps_what_it_has():
    old, new = intent("a"), intent("b", served_name="a", created_at=2e9)
    given = snapshot_input(
        snapshot(), (new, old, InvalidIntent("u", "ns", "c", 1, 0.0, "spec.model: missing"))
    )

    assert [wanted.id for wanted in given.deployments] == ["ns/a"]
    assert [text.split(" is not")[0] for text in given.notes] == ["ns/c", "ns/b"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"tensor_parallel": (2, 4)}, "placement.tensorParallel asks for 2 or 4"),
        ({"precision": "nvfp4"}, "engine.precision asks for nvfp4"),
        ({"kv_precision": "fp8"}, "engine.kvCachePrecision asks for fp8"),
    ],
)
def test_what_the_engine_cannot_do_is_unmet_and_says_so(changes, says):
    found = recommend(snapshot(node("n0", gpu=1)), (intent("a", **changes),)).document

    assert found["deployments"][0]["chosen"] == []
    assert says in found["unmet"][0]["reason"]


def sized(seen, who):
    return fleet_problem(snapshot_input(seen, (who,))).assessed["ns/a"]


def test_another_shape_gets_the_number_that_carries_what_runs():
    a = intent("a", "image:///m/8b", min_replicas=1, max_replicas=50)
    seen = snapshot(node("n0", mig_3g_40gb=2), node("n1", gpu=4), **running(a, BIG, "n0", 1))

    found = sized(replace(seen, desired=((a.uid, 2),)), a)

    one = found.offer(ShapeKey(H100, "3g.40gb"))
    assert found.requirements.rps == pytest.approx(2 * one.rate)
    assert found.requirements.least == 1


def test_without_more_than_the_minimum_no_load_is_known():
    a = intent("a", min_replicas=2, max_replicas=9)
    found = sized(snapshot(node("n0", mig_1g_10gb=7), **running(a, SLICE, "n0", 2)), a)

    assert (found.requirements.rps, found.requirements.least) == (None, 2)


def test_of_a_shape_that_does_not_serve_any_more_the_number_stays():
    a = intent("a", min_replicas=1, max_replicas=9, mig=MIGPolicy.FORBIDDEN)
    found = sized(snapshot(node("n0", mig_1g_10gb=7), node("n1", gpu=4), **running(a, SLICE, "n0", 3)), a)

    assert (found.requirements.rps, found.requirements.least) == (None, 3)


def test_a_newcomer_brings_what_its_owner_expects():
    a = intent("a", min_replicas=1, max_replicas=9, traffic=Traffic(7.5))

    assert sized(snapshot(node("n0", gpu=1)), a).requirements.rps == 7.5


def test_replicas_of_one_llmdeployment_are_alike():
    wanted = [
        intent(f"m{i}", "image:///m/8b", max_replicas=40, traffic=Traffic(3.0 + 9 * i)) for i in range(4)
    ]
    seen = snapshot(node("n0", gpu=4), node("n1", mig_1g_10gb=8, mig_3g_40gb=2), node("n2", "L4", gpu=4))

    document = recommend(seen, wanted).document

    assert all(len(each["chosen"]) <= 1 for each in document["deployments"])


def test_replicas_stand_only_in_the_pools_that_are_named():
    a = intent("a", pools=("p",), min_replicas=3, max_replicas=3, mig=MIGPolicy.FORBIDDEN)
    b = intent("b", min_replicas=2, max_replicas=2, mig=MIGPolicy.FORBIDDEN)
    seen = snapshot(on("p", gpu=2), node("n1", gpu=2), pools=(pool("p"),))

    document = recommend(seen, (a, b)).document

    where = {(i["owner"], gpu["node"]) for gpu in document["gpus"] for i in gpu["instances"]}
    assert where == {("ns/a", "n0"), ("ns/b", "n1")}
    assert [(u["name"], u["reason"]) for u in document["unmet"]] == [
        ("ns/a", "what is in p has no room for all of it")
    ]


def test_room_that_only_a_mix_of_shapes_would_have_is_denied_for_one_shape_alone():
    wanted = intent("a", min_replicas=2, max_replicas=2, mig=MIGPolicy.FORBIDDEN)
    mixed = (node("n0", gpu=1), node("n1", "A100-80GB-SXM", gpu=1))

    reasons = [
        recommend(snapshot(*nodes), (wanted,)).document["unmet"][0]["reason"] for nodes in (mixed, mixed[:1])
    ]

    assert reasons == [
        "the whole fleet has no room for all of it on one shape",
        "the whole fleet has no room for all of it",
    ]


def test_a_pool_that_does_not_exist_has_no_room():
    document = recommend(snapshot(node("n0", gpu=2)), (intent("a", pools=("none",)),)).document

    assert [u["share"] for u in document["unmet"]] == [1]


def fragmented(**pool_fields):
    """Two replicas, each alone on a GPU that is cut in two."""
    a = intent("a", min_replicas=2, max_replicas=2, mig=MIGPolicy.REQUIRED)
    cut = {"mig_3g_40gb": 2}
    seen = snapshot(
        on("p", name="n0", **cut),
        on("p", name="n1", **cut),
        workloads=(workload(a, BIG, 2),),
        claims=(*claims(a, BIG, "n0"), *claims(a, BIG, "n1")),
        pools=(pool("p", **pool_fields),),
    )
    return seen, (a,)


@pytest.mark.parametrize(
    ("fields", "moves"),
    [
        ({"policy": PoolPolicy.FULL}, True),
        ({"policy": PoolPolicy.RECOMMEND}, True),
        ({"policy": PoolPolicy.FULL, "disruption_budget": 0}, False),
        ({"policy": PoolPolicy.IDLE_ONLY}, False),
        ({"policy": PoolPolicy.IGNORE}, False),
    ],
)
def test_live_replicas_move_where_their_pool_allows_it(fields, moves):
    found = recommend(*fragmented(**fields))

    assert bool(found.document["moves"]) == moves
    assert found.better == moves
    assert (found.current_cost_per_hour > found.document["costPerHour"]) == moves


def test_each_pool_has_a_budget_of_its_own():
    """That nobody may move in one pool says nothing about another."""
    seen, wanted = fragmented(policy=PoolPolicy.FULL)
    other = pool("other", policy=PoolPolicy.FULL, disruption_budget=0)

    assert recommend(replace(seen, pools=(*seen.pools, other)), wanted).document["moves"]


def test_advice_tells_who_moves_what_the_fleet_saves():
    found = recommend(*fragmented(policy=PoolPolicy.FULL))

    ((uid, advice),) = found.advice
    assert (uid, advice.plan) == ("uid-a", found.inputs_hash)
    assert advice.saves_per_hour == pytest.approx(3.0741, abs=1e-3)


def test_who_goes_short_is_told_why_and_what_would_help():
    a = intent("a", "image:///m/8b", min_replicas=3, max_replicas=3, mig=MIGPolicy.FORBIDDEN)

    found = recommend(snapshot(node("n0", gpu=2)), (a,))

    ((_, advice),) = found.advice
    assert advice.because == (f"gpus: {H100}",)
    assert [(each.dimension, each.text) for each in advice.relaxations] == [("gpus", f"add one {H100}")]


def test_who_only_another_layout_has_a_place_for_is_told_which_plan_has_it():
    a = intent("a", "image:///m/8b", mig=MIGPolicy.REQUIRED)  # too large for the slices that there are

    found = recommend(snapshot(on("p", mig_1g_10gb=7)), (a,))

    ((_, advice),) = found.advice
    assert found.better
    assert [(each.dimension, each.text) for each in advice.relaxations] == [
        ("layout", f"FleetPlan {found.inputs_hash} serves it whole: GPUs cut anew: 1")
    ]


def two_that_wait_for_each_other(*newcomers):
    """Each alone on a GPU that is cleared when it is cut anew, so that neither can go first."""
    a, b = intent("a", "image:///m/8b"), intent("b", "image:///m/8b")
    seen = snapshot(
        on("p", mig_1g_10gb=7, mig_3g_40gb=2),
        workloads=(workload(a, BIG, 1), workload(b, BIG, 1)),
        claims=(*claims(a, BIG, "n0"), *claims(b, BIG, "n0")),
    )
    return seen, (a, b, *newcomers)


def test_of_plans_that_serve_as_much_one_is_recommended_to_which_steps_lead():
    found = recommend(*two_that_wait_for_each_other())

    assert (found.document["moves"], found.better) == ([], False)
    assert "stepsMissing" not in found.document
    assert "no step leads to it" in found.document["notes"][-1]


def test_where_the_cheapest_layout_takes_a_detour_one_is_recommended_that_direct_moves_reach():
    found = recommend(*fragmented(policy=PoolPolicy.FULL))

    kinds = [step["kind"] for step in found.document["steps"]]
    assert kinds == ["start-replica", "wait-available", "drain-replica"]
    assert "stepsMissing" not in found.document
    assert "no step leads to it" in found.document["notes"][-1]


def test_who_would_go_short_without_it_is_worth_a_restart_that_the_plan_names():
    c = intent("c", "image:///m/8b")
    found = recommend(*two_that_wait_for_each_other(c))

    restarted = [step["owner"] for step in found.document["steps"] if step["kind"] == "stop-replica"]
    assert (found.document["unmet"], len(restarted)) == ([], 1)
    assert "stepsMissing" not in found.document
    assert found.document["notes"][-1].startswith(f"replicas of {restarted[0]} are restarted, with consent")


def test_what_is_thought_ends_with_its_time():
    wanted = [intent(f"m{i}", "image:///m/8b", min_replicas=3, max_replicas=3) for i in range(6)]
    ticks = iter(range(10**6))
    found = recommend(snapshot(node("n0", gpu=2)), wanted, PlanTimeLimit(5.0, lambda: next(ticks) / 10))

    assert found.document["unmet"]


def test_a_slice_that_exists_counts_as_room_where_nothing_may_be_cut():
    a = intent("a", min_replicas=9, max_replicas=9, mig=MIGPolicy.REQUIRED, spread=Spread())
    seen = snapshot(on("p", mig_1g_10gb=2, mig_3g_40gb=1), pools=(pool("p", policy=PoolPolicy.IGNORE),))

    document = recommend(seen, (a,)).document

    assert [shape["replicas"] for shape in document["deployments"][0]["chosen"]] == [2]


def test_the_hash_names_the_inputs():
    a = intent("a")
    seen = snapshot(node("n0", gpu=1))

    assert inputs_hash(snapshot_input(seen, (a,))) == inputs_hash(snapshot_input(seen, (a,)))
    assert inputs_hash(snapshot_input(seen, (a,))) != inputs_hash(
        snapshot_input(seen, (replace(a, priority=1),))
    )
    assert len(inputs_hash(snapshot_input(seen, (a,)))) == 12


@pytest.mark.parametrize(
    ("what", "changed"),
    [
        ("tangram.__version__", "0.1.0.dev1"),
        ("tangram.plan.inputs_hash._FACTS", ("tangram.catalog",)),
    ],
)
def test_another_version_and_other_facts_give_another_name(monkeypatch, what, changed):
    given = snapshot_input(snapshot(node("n0", gpu=1)), (intent("a"),))
    ours = inputs_hash(given)

    monkeypatch.setattr(what, changed)
    planner_version.cache_clear()
    theirs = inputs_hash(given)
    monkeypatch.undo()
    planner_version.cache_clear()

    assert theirs != ours
    assert inputs_hash(given) == ours


def damaged(path, value):
    document = json.loads(json.dumps(snapshot_document(snapshot(node("n0", gpu=1)), (intent("a"),))))
    *keys, last = path
    holder = document
    for key in keys:
        holder = holder[key]
    holder[last] = value
    return document


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (
            ("apiVersion",),
            "tangram.dev/v9",
            "apiVersion: is 'tangram.dev/v9', this reads tangram",
        ),
        (("spec",), None, "spec: is missing"),
        (("spec",), [], "spec: must be a mapping"),
        (("spec", "fleet", "nodes", 0, "sku"), "H1000", "fleet.nodes[0].sku: no GPU of the catalog"),
        (("spec", "fleet", "nodes", 0, "usable"), "yes", "fleet.nodes[0].usable: must be true or false"),
        (("spec", "fleet", "nodes", 0, "allocatable"), [["x", -1]], "allocatable[0][1]: is -1"),
        (("spec", "fleet", "nodes", 0, "alocatable"), [], "alocatable: unknown key; Node has name"),
        (
            ("spec", "fleet", "facts", 0, 1, "layers"),
            0,
            "facts[0].layers: Input should be greater",
        ),
        (("spec", "fleet", "facts", 0, 0), {}, "facts[0][0].namespace: is required"),
        (("spec", "intents", 0, "uid"), 7, "intents[0].uid: must be text"),
        (("spec", "intents"), {}, "spec.intents: must be a list"),
    ],
)
def test_a_damaged_snapshot_is_refused_with_its_path(path, value, says):
    with pytest.raises(InputError) as refused:
        read_snapshot(damaged(path, value), "fleet.yaml")

    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (("spec", "intents", 0, "mig"), "Maybe", "intents[0].mig: 'Maybe' is none of Allowed"),
        (("spec", "intents", 0, "maxReplicas"), 0, "intents[0].minReplicas: 1 to 0 is no range"),
        (("spec", "intents", 0, "createdAt"), float("nan"), "intents[0].createdAt: is nan"),
        (("spec", "intents", 0, "spread"), {"node": 7}, "intents[0].spread.node: is 7.0"),
    ],
)
def test_a_damaged_llmdeployment_of_a_snapshot_is_refused_alone_with_its_path(path, value, says):
    _, (one, *others) = read_snapshot(damaged(path, value), "fleet.yaml")

    assert isinstance(one, InvalidIntent)
    assert says in one.message
    assert not [other for other in others if isinstance(other, InvalidIntent)]


def test_whom_no_shape_serves_is_told_what_is_missing_and_which_settings_would_do():
    a = intent("a", "image:///m/8b", tpot=tpot(3), mig=MIGPolicy.FORBIDDEN)

    ((_, advice),) = recommend(snapshot(node("n0", gpu=1)), (a,)).advice

    assert advice.because[0].startswith(f"TPOT: {H100}: ")
    (change,) = advice.relaxations
    looser = replace(a, tpot=tpot(math.ceil(float(change.text.removeprefix("TPOT ").removesuffix(" ms")))))
    assert recommend(snapshot(node("n0", gpu=1)), (looser,)).document["unmet"] == []


@pytest.mark.parametrize("change", [{"tpot": tpot(1)}, {"uri": "image:///m/70b"}], ids=str)
def test_a_plan_says_why_no_shape_serves_in_the_words_of_the_condition_placed(change):
    a = intent("a", **({"uri": "image:///m/8b", "mig": MIGPolicy.FORBIDDEN} | change))
    seen = snapshot(node("n0", gpu=1))

    (unmet,) = recommend(seen, (a,)).document["unmet"]
    (decision,) = plan(seen, (a,), 0.0).decisions

    assert unmet["reason"] == decision.placed_message


NO_SHAPE = pytest.mark.parametrize(
    "change", [{"pools": ("gone",)}, {"tpot": tpot(1)}, {"precision": "nvfp4"}], ids=str
)


@NO_SHAPE
def test_live_replicas_that_no_shape_serves_any_more_are_not_moved_either(change):
    a = intent("a", "image:///m/8b", min_replicas=1, max_replicas=1, **change)
    b = intent("b", "image:///m/8b", min_replicas=1, max_replicas=1)
    seen = snapshot(
        replace(node("n0", mig_3g_40gb=2), gpus=1),
        replace(on("p", name="n1", mig_3g_40gb=2), gpus=1),
        pools=(pool("p", policy=PoolPolicy.IGNORE),),  # b stays, and beside it is room
        workloads=(workload(a, BIG, 1), workload(b, BIG, 1)),
        claims=(*claims(a, BIG, "n0", 1), *claims(b, BIG, "n1", 1)),
    )

    found = recommend(seen, (a, b))

    assert found.document["moves"] == []
    assert not found.better


@NO_SHAPE
def test_live_replicas_that_no_shape_serves_any_more_are_never_drained_for_others(change):
    a = intent("a", "image:///m/8b", min_replicas=2, max_replicas=2, **change)
    b = intent("b", "image:///m/8b", min_replicas=2, max_replicas=2, mig=MIGPolicy.FORBIDDEN)
    seen = snapshot(node("n0", gpu=2), **running(a, WHOLE, "n0", 2))

    found = recommend(seen, (a, b))
    owner = {i["owner"] for gpu in found.document["gpus"] for i in gpu["instances"]}

    assert owner == {"ns/a"}
    assert not [step for step in found.document["steps"] if step["kind"] == "drain-replica"]
    assert not found.better
    assert {each["name"] for each in found.document["unmet"]} == {"ns/a", "ns/b"}


def test_who_names_a_pool_that_is_not_there_is_told_so_and_nothing_that_would_not_help():
    a = intent("a", pools=("nowhere",))
    ((_, advice),) = recommend(snapshot(node("n0", gpu=2)), (a,)).advice

    assert (advice.because, advice.relaxations) == (("placement: no GPU is in GPUPool nowhere",), ())


def test_a_snapshot_that_was_cut_off_between_two_lines_is_refused():
    text = json.dumps(snapshot_document(snapshot(node("n0", gpu=1)), (intent("a"), intent("b"))))
    document = json.loads(text)
    document["spec"]["intents"].pop()

    with pytest.raises(InputError, match=r"holds\.intents: is 2, but there are 1: the document is truncated"):
        read_snapshot(document, "file")
    del document["spec"]["holds"]
    assert len(read_snapshot(document, "file")[1]) == 1


def test_a_snapshot_of_an_operator_that_reported_fewer_facts_is_read():
    a, key = intent("a"), FactsKey("ns", "image:///m/8b", IMAGE)
    seen = snapshot(node("n0", gpu=1), facts=((key, FACTS_8B),))
    document = snapshot_document(seen, (a,))
    (_, facts) = document["spec"]["fleet"]["facts"][0]
    for later in ("attentionBias", "qkNorm"):
        facts.pop(later, None)

    assert read_snapshot(document, "file") == (seen, (a,))


def test_counts_that_fit_no_layout_are_refused_without_trying_them_all():
    impossible = replace(node("n0", mig_1g_10gb=31, mig_2g_20gb=22, mig_3g_40gb=9, mig_4g_40gb=9), gpus=14)
    assert "fit no layout of 14" in " ".join(snapshot_input(snapshot(impossible), ()).notes)


def test_one_that_brings_out_a_bug_is_left_out_of_the_recommendation_and_keeps_what_it_runs(monkeypatch):
    bad, good = intent("bad", max_replicas=4), intent("good", created_at=2.0)
    seen = snapshot(node("n0", mig_1g_10gb=7), **running(bad, SLICE, "n0", 1))
    real = fleet_problem.__globals__["demand"]

    def demand(each, *rest):
        if each.requirements.intent.name == "bad":
            raise ZeroDivisionError("division by zero")
        return real(each, *rest)

    monkeypatch.setitem(fleet_problem.__globals__, "demand", demand)
    made = recommend(seen, (bad, good)).document

    assert [each["name"] for each in made["deployments"]] == ["good"]
    assert "ns/bad is not planned: ZeroDivisionError: division by zero; please report this" in made["notes"]
    assert [i["owner"] for g in made["gpus"] for i in g["instances"]].count("ns/bad") == 1


def test_what_every_llmdeployment_brings_out_is_raised(monkeypatch):
    def fails(*_):
        raise ZeroDivisionError("division by zero")

    monkeypatch.setitem(fleet_problem.__globals__, "_fleet", fails)
    with pytest.raises(ZeroDivisionError):
        recommend(snapshot(node("n0", mig_1g_10gb=7)), (intent("a"),))


def test_one_with_a_fault_is_not_planned_and_its_pods_stay():
    a, b = intent("a"), intent("b", created_at=2.0)
    faults = (Fault(a.uid, "read", "x"),)
    seen = snapshot(node("n0", mig_1g_10gb=7), faults=faults, **running(a, SLICE, "n0", 1))
    given = snapshot_input(seen, (a, b))

    assert [each.id for each in given.deployments] == ["ns/b"]
    assert not [i for g in given.gpus for i in g.instances if i.owner == "ns/a" and i.movable]


def test_pods_hold_their_gpus_while_a_device_plugin_restarts():
    a = intent("a")
    there = snapshot(node("n0", gpu=2), **running(a, WHOLE, "n0", 1))
    away = replace(there.nodes[0], allocatable=(), withheld=there.nodes[0].allocatable)

    assert snapshot_input(replace(there, nodes=(away,)), (a,)).gpus == snapshot_input(there, (a,)).gpus


def test_a_number_that_is_set_is_what_any_shape_has_to_offer():
    a = intent("a", replicas=3, min_replicas=3, traffic=Traffic(100.0))
    (wanted,) = snapshot_input(
        snapshot(node("n0", mig_1g_10gb=7), **running(a, SLICE, "n0", 2)), (a,)
    ).deployments

    assert (wanted.least, wanted.most, wanted.rps) == (3, 3, None)
    assert wanted.present == (ShapeKey(H100, "1g.10gb", 1), 3)


def test_one_that_is_set_to_none_is_not_planned_and_its_pods_end_by_themselves():
    a = intent("a", replicas=0, min_replicas=0, max_replicas=0)
    given = snapshot_input(snapshot(node("n0", mig_1g_10gb=7), **running(a, SLICE, "n0", 2)), (a,))

    assert given.deployments == ()
    assert any(note.startswith("ns/a is not planned: spec.replicas is 0") for note in given.notes)
    assert recommend(snapshot(node("n0", mig_1g_10gb=7)), (a,)).document["unmet"] == []


@pytest.mark.parametrize("count", [0, 4])
def test_a_number_that_is_set_survives_the_snapshot_file(count):
    by = FieldManager("kubectl", "scale", "2026-11-22T10:00:00Z")
    a = intent(
        "a", replicas=count, min_replicas=count, max_replicas=count, replicas_set_by=by, min_available=0
    )
    document = json.loads(json.dumps(snapshot_document(snapshot(), (a,))))

    assert read_snapshot(document, "it")[1] == (a,)
    document["spec"]["intents"][0]["replicas"] = 7
    assert isinstance(read_snapshot(document, "it")[1][0], InvalidIntent)
