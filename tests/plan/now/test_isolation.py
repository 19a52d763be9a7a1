"""A bug that one LLMDeployment causes affects it alone: the others are planned as if it did not change."""

from dataclasses import replace

import pytest

from tangram.eligibility.isolation import RoundStep, StepsFailed, for_each, isolated
from tangram.eligibility.shapes import runtimes
from tangram.fleet import Claim, Fault, MIGPolicy, Pool, Shape, Traffic
from tangram.fleet.lengths import around
from tangram.plan import decision_draft, plan, planning_round, render_status, round_decisions
from tangram.plan.offers import assessment
from tangram.plan.place.now import back_off, joint_assignment, placement_targets, replica_limits
from tangram.plan.place.now.joint_assignment import assign_devices
from tangram.plan.place.now.placement_demand import NO_LIMIT
from tangram.plan.words.placement import FAULT_TEXTS
from tests.support.fleet import NOW, claims, intent, node, shape, snapshot, workload

SLICE, WHOLE, L4 = shape("1g.10gb"), shape(), shape(sku="L4")

BAD = intent("bad", created_at=2.0, min_replicas=1, max_replicas=4, traffic=Traffic(5.0))
OLD = intent("old", created_at=1.0, max_replicas=3)
YOUNG = intent("young", created_at=3.0, denied_skus=("L4",), priority=1)
EVERYONE = (OLD, BAD, YOUNG)


def fleet(at=SLICE, **changes):
    """One slice and one L4 are free; `bad` and `old` run."""
    base = {
        "claims": (*claims(BAD, SLICE, "b"), *claims(OLD, SLICE, "b")),
        "workloads": (workload(BAD, at), workload(OLD, SLICE)),
        "desired": ((BAD.uid, 2), (OLD.uid, 2)),
    }
    return snapshot(node("b", mig_1g_10gb=3), node("c", "L4", gpu=1), **base | changes)


def others(new_plan):
    return (
        [d for d in new_plan.decisions if d.owner_uid != BAD.uid],
        [a for a in new_plan.actions if a.owner_uid != BAD.uid],
    )


def standing_still(observed):
    return plan(replace(observed, faults=(Fault(BAD.uid, "read", "because"),)), EVERYONE, NOW)


# --- specs that tenants can write


@pytest.mark.parametrize(
    "at",
    [Shape("H100-80GB-SXM", "9g.999gb"), Shape("no-such-gpu", "gpu"), Shape("L4", "gpu", 10**18, "fp64")],
)
def test_a_shape_missing_from_the_catalog_fails_no_plan(at):
    observed = fleet(at, desired_of=((BAD.uid, at),))
    new_plan = plan(observed, EVERYONE, NOW)

    assert not new_plan.faults
    assert len(new_plan.decisions) == 3


def test_a_price_near_zero_with_a_budget_causes_no_overflow():
    rich = intent("rich", budget_per_hour=1e6)
    almost_free = Pool("p", (("side", "left"),), price_per_gpu_hour=1e-320)
    left = replace(node("b", gpu=2), labels=(("side", "left"),))
    new_plan = plan(snapshot(left, pools=(almost_free,)), (rich,), NOW)

    assert not new_plan.faults
    assert new_plan.decisions[0].placed_reason == "Placed"


@pytest.mark.parametrize(
    "changes",
    [
        {"min_replicas": 10**18, "max_replicas": 10**18},
        {"max_replicas": 10**18},
        {"budget_per_hour": 1e308},
        {"budget_per_hour": 5e-324},
        {"traffic": Traffic(1e308, around(1), around(1))},
        {"traffic": Traffic(1.0, around(10**18), around(10**18))},
        {"max_model_len": 10**18, "max_running_requests": 10**18},
        {"priority": 10**18},
        {"priority": -(10**18)},
        {"name": "x" * 10_000, "served_name": "y" * 10_000},
        {"pools": ("nowhere",)},
        {"mig": MIGPolicy.REQUIRED, "tensor_parallel": (8,)},
    ],
    ids=str,
)
def test_an_llmdeployment_with_huge_numbers_is_planned_and_fails_no_plan(changes):
    hostile = replace(BAD, **changes)
    new_plan = plan(fleet(), (OLD, hostile, YOUNG), NOW)

    assert {d.owner_uid for d in new_plan.decisions} == {OLD.uid, BAD.uid, YOUNG.uid}
    remaining = [d for d in new_plan.decisions if d.owner_uid == OLD.uid]
    assert [(d.placed_reason, d.shape) for d in remaining if d.placed], remaining


def test_the_older_of_two_llmdeployments_with_one_uid_is_planned():
    twin = intent("twin", created_at=9.0, uid=OLD.uid)
    assert plan(fleet(), (twin, *EVERYONE), NOW) == plan(fleet(), EVERYONE, NOW)


# --- every step of a round


def broken(monkeypatch, where, name, of=BAD.uid):
    """Make one function raise for one LLMDeployment."""
    real = where[name]

    def raises(*args, **named):
        for argument in args:
            subject = getattr(argument, "demand", argument)
            subject = getattr(subject, "intent", subject)
            if of in (subject, getattr(subject, "uid", None)):
                raise ZeroDivisionError("division by zero")
        return real(*args, **named)

    monkeypatch.setitem(where, name, raises)


def test_each_round_step_has_its_own_fault_text():
    assert FAULT_TEXTS.keys() == set(RoundStep)
    assert len(set(FAULT_TEXTS.values())) == len(RoundStep)


STEPS = [
    (decision_draft.__dict__, "model_state", "model"),
    (decision_draft.__dict__, "_desired", "model"),
    (assessment.__dict__, "node_shapes", "judge"),
    (runtimes.__dict__, "requirements_of", "judge"),
    (back_off.__dict__, "_next", "back_off"),
    (replica_limits.__dict__, "_new_pods", "limit"),
    (placement_targets.__dict__, "_placement_choice", "target"),
    (placement_targets.__dict__, "_target", "plan"),
    (round_decisions.__dict__, "_decide", "place"),
    (round_decisions.__dict__, "deployment_placement", "place"),
]


@pytest.mark.parametrize(("where", "name", "step"), STEPS, ids=[name for _, name, _ in STEPS])
def test_a_step_that_raises_for_one_llmdeployment_changes_nothing_for_the_others(
    monkeypatch, where, name, step
):
    observed = fleet()
    expected = standing_still(observed)
    if name == "_decide":
        real = where[name]

        def decide(intent, observation, placement, running):
            if placement.assessed.get(intent.uid) is not None and intent.uid == BAD.uid:
                raise KeyError("x")
            return real(intent, observation, placement, running)

        monkeypatch.setitem(where, name, decide)
    elif name == "_desired":
        real_desired, calls = where[name], []

        def once(argument, *rest):
            calls.append(argument.uid)
            if argument.uid == BAD.uid and calls.count(BAD.uid) == 1:
                raise KeyError("x")
            return real_desired(argument, *rest)

        monkeypatch.setitem(where, name, once)
    else:
        broken(monkeypatch, where, name)
    new_plan = plan(observed, EVERYONE, NOW)

    assert [(fault.owner_uid, fault.step) for fault in new_plan.faults] == [(BAD.uid, step)]
    assert "Traceback" in new_plan.faults[0].trace
    assert others(new_plan) == others(expected)
    assert not [a for a in new_plan.actions if a.owner_uid == BAD.uid]
    (decision,) = [d for d in new_plan.decisions if d.owner_uid == BAD.uid]
    assert decision.placed_reason == "NotJudged"
    status = render_status(decision, BAD, observed, None, None, {}, NOW)
    assert (status["conditions"][0]["status"], status["conditions"][0]["reason"]) == ("False", "NotJudged")


def test_a_faulted_llmdeployment_keeps_the_devices_of_running_and_expected_replicas():
    """Three slices: `bad` was given two and one of its pods is still to come."""
    observed = fleet(workloads=(workload(BAD, SLICE, 2, available=1), workload(OLD, SLICE)))
    new_plan = standing_still(observed)

    placed = {d.owner_uid: d.placed for d in new_plan.decisions}
    assert placed == {OLD.uid: 1, BAD.uid: 0, YOUNG.uid: 0}


def test_a_demand_that_breaks_the_solver_is_isolated_and_the_others_are_solved_jointly(monkeypatch):
    """Without `bad` the fleet of `old` and `young` is solved, not assigned by priority."""
    old, young = intent("old", created_at=1.0), intent("young", denied_skus=("L4",), created_at=2.0)
    bad = intent("bad", created_at=0.0, budget_per_hour=77.0)
    observed = snapshot(node("b", mig_1g_10gb=1), node("c", "L4", gpu=1))
    place, assignments = joint_assignment._place, joint_assignment.ranked_assignments

    def failing(ranked, *rest, **named):
        if any(assignment.price == 13.0 for candidates in ranked for assignment in candidates):
            raise ZeroDivisionError("division by zero")
        return place(ranked, *rest, **named)

    def priced(options, free):
        ranked = assignments(options, free)
        if options[0].max_replicas == NO_LIMIT:
            return ranked
        return [replace(assignment, price=13.0) for assignment in ranked]

    monkeypatch.setattr(joint_assignment, "_place", failing)
    monkeypatch.setattr(joint_assignment, "ranked_assignments", priced)
    assign_devices.cache_clear()
    new_plan = plan(observed, (bad, old, young), NOW)
    assign_devices.cache_clear()

    assert [fault.owner_uid for fault in new_plan.faults] == [bad.uid]
    shapes = {d.owner_uid: d.shape for d in new_plan.decisions}
    assert (shapes[old.uid], shapes[young.uid]) == (L4, SLICE)


def test_an_error_without_an_llmdeployment_is_attributed_by_bisection(monkeypatch):
    real = round_decisions.__dict__["inspection_actions"]
    many = tuple(intent(f"m{i}", created_at=float(i)) for i in range(9))
    hated = {many[2].uid, many[7].uid}

    def raises(group, active, idle, now):
        if hated & {i.uid for i in active}:
            raise RuntimeError("somebody")
        return real(group, active, idle, now)

    observed = snapshot(node("b", gpu=20))
    faults = tuple(Fault(uid, "read", "x") for uid in sorted(hated))
    expected = plan(replace(observed, faults=faults), many, NOW)
    monkeypatch.setitem(round_decisions.__dict__, "inspection_actions", raises)
    new_plan = plan(observed, many, NOW)

    assert {fault.owner_uid for fault in new_plan.faults} == hated
    assert [d for d in new_plan.decisions if d.owner_uid not in hated] == [
        d for d in expected.decisions if d.owner_uid not in hated
    ]


def test_an_error_that_no_llmdeployment_causes_is_raised(monkeypatch):
    def raises(*_):
        raise RuntimeError("all of it")

    monkeypatch.setattr(planning_round, "offers", raises)
    with pytest.raises(RuntimeError, match="all of it"):
        plan(fleet(), EVERYONE, NOW)


def test_bisection_needs_few_attempts():
    attempts = []

    def attempt(still):
        attempts.append(set(still))
        if "u777" not in still:
            raise ValueError("unknown")
        return "done"

    results, faults = isolated(attempt, [f"u{i}" for i in range(1000)])

    assert (results, [fault.owner_uid for fault in faults]) == ("done", ["u777"])
    assert len(attempts) < 30


def test_a_step_that_still_fails_for_a_faulted_llmdeployment_is_raised():
    def attempt(still):
        return for_each("x", ["a"], lambda uid: uid, lambda uid: 1 // 0)

    with pytest.raises(StepsFailed, match="x of a: ZeroDivisionError"):
        isolated(attempt, ["a"])


def test_all_faults_of_one_step_cost_one_more_attempt():
    attempts = []

    def attempt(still):
        attempts.append(len(still))
        return for_each("x", range(50), str, lambda n: n if str(n) in still or n % 2 else 1 // 0)

    _, faults = isolated(attempt, map(str, range(50)))
    assert len(faults) == 25
    assert attempts == [0, 25]


def test_a_claim_and_a_workload_without_a_known_owner_are_left_alone():
    gone = intent("gone")
    observed = fleet(
        claims=(Claim("b", SLICE.resource, 1, gone.uid),),
        workloads=(workload(gone, SLICE), workload(OLD, SLICE)),
    )
    new_plan = plan(observed, EVERYONE, NOW)
    assert not [a for a in new_plan.actions if a.owner_uid == gone.uid]
