"""Formats in plans of an observed fleet: those that the operator would use, and why not the others."""

from tangram.fleet import EvaluationKey, EvaluationReport, PrecisionTolerance, Shape, ShapeKey
from tangram.plan.fleet_input.observed.snapshot_input import snapshot_input
from tangram.plan.inputs_hash import inputs_hash
from tangram.plan.place.best.pack import PlanTimeLimit
from tangram.plan.place.best.packing_problem import fleet_problem
from tangram.plan.recommend import recommend
from tests.support.fleet import FACTS_8B, intent, node, snapshot, workload

SKU = "H100-80GB-SXM"
KEY = EvaluationKey("ns", "image:///m/8b", FACTS_8B.digest, SKU, "int4")
REPORT = EvaluationReport(4000, 6.0, 6.186, 0.031, 0.97, 0.02, 0.3)
SLICES = {"mig_1g_10gb": 1, "mig_3g_40gb": 1}


def sized(who, **seen):
    return fleet_problem(snapshot_input(snapshot(node("n0", **SLICES), **seen), (who,))).assessed["ns/a"]


def wants(**changes):
    return intent("a", "image:///m/8b", precision="Any", **changes)


def test_without_a_report_only_the_checkpoints_own_format_is_offered() -> None:
    found = sized(wants())

    assert {offer.shape.precision for offer in found.serving} == {"bf16"}
    waiting = [each for each in found.rejected if each.constraint == "evaluation"]
    assert f"int4 is not evaluated on {SKU} yet" in {each.message for each in waiting}


def test_a_report_outside_the_tolerance_rejects_the_format_with_its_figures() -> None:
    found = sized(wants(), reports=((KEY, REPORT),))

    missed = [each for each in found.rejected if each.constraint == "tolerance"]
    assert {each.shape.precision for each in missed} == {"int4"}
    assert missed[0].message == "int4: perplexity +3.1 % is above the tolerance 2 %"


def test_a_report_within_the_tolerance_offers_the_format_and_is_an_input_of_the_plan() -> None:
    who = wants(tolerance=PrecisionTolerance(0.05, 0.9))
    seen = snapshot(node("n0", **SLICES), reports=((KEY, REPORT),))

    offer = fleet_problem(snapshot_input(seen, (who,))).assessed["ns/a"].offer(ShapeKey(SKU, "1g.10gb", 1))

    assert offer is not None
    assert offer.shape.precision == "int4"
    assert inputs_hash(snapshot_input(seen, (who,))) != inputs_hash(snapshot_input(seen, (wants(),)))


def test_a_named_format_is_offered_without_a_report() -> None:
    found = sized(intent("a", "image:///m/8b", precision="int4"))

    assert {offer.shape.precision for offer in found.serving} == {"int4"}


def test_a_plan_tells_of_a_slice_that_waits_for_an_evaluation() -> None:
    seen = snapshot(node("n0", **SLICES))

    (found,) = recommend(seen, (wants(),), PlanTimeLimit(5.0)).document["deployments"]

    because = {
        (each["chosen"][0]["profile"], each["chosen"][0]["precision"]): each["rejectedBecause"]
        for each in found["alternatives"]
    }
    assert because[("1g.10gb", "int4")] == "NotEvaluated"


LARGE = ShapeKey(SKU, "3g.40gb", 1)
TOLERANT = PrecisionTolerance(0.05, 0.9)


def test_of_the_formats_on_one_slice_the_fastest_is_offered() -> None:
    offers = {
        form: sized(intent("a", "image:///m/8b", precision=form)).offer(LARGE) for form in ("bf16", "int4")
    }

    best = sized(wants(tolerance=TOLERANT), reports=((KEY, REPORT),)).offer(LARGE)

    assert best is not None
    assert best.rate == max(each.rate for each in offers.values() if each is not None)


def test_a_slice_on_which_replicas_run_keeps_their_format() -> None:
    who = wants(tolerance=TOLERANT)
    seen = {"reports": ((KEY, REPORT),)}

    for form in ("bf16", "int4"):
        ours = workload(who, Shape(SKU, "3g.40gb", 1, form))
        found = sized(who, workloads=(ours,), **seen)

        assert found.offer(LARGE).shape.precision == form
        assert found.offer(ShapeKey(SKU, "1g.10gb", 1)).shape.precision == "int4"
