"""`precision: Any` uses a quantised format only once a report about it is within tolerance."""

from dataclasses import replace

import pytest

from tangram.api.llm_deployment.status import LLMDeploymentStatus
from tangram.fleet import (
    ApplyDeployment,
    Evaluation,
    EvaluationFailure,
    EvaluationKey,
    EvaluationReport,
    FinishEvaluation,
    FleetSnapshot,
    Intent,
    PrecisionTolerance,
    QuotaLimit,
    StartEvaluation,
    WriteProblem,
)
from tangram.plan import plan, render_status
from tangram.plan.jobs.evaluations import RETRY_AFTER_S
from tests.support.fleet import CHECKPOINTS, NOW, Cluster, claims, intent, node, shape, snapshot, workload

GOOD = EvaluationReport(4000, 6.0, 6.06, 0.01, 0.97, 0.02, 0.3, "engine:1", "gpu")
BAD = replace(GOOD, quantised_perplexity=6.186, perplexity_increase=0.031)
BIG, SMALL = "mig_3g_40gb", "mig_1g_10gb"  # 8B in bf16 fits the former alone, in int4 both


def wants(**changes: object) -> Intent:
    return intent("m", "image:///m/8b", precision="Any", **changes)


def key(precision: str = "int4", sku: str = "H100-80GB-SXM", uri: str = "image:///m/8b") -> EvaluationKey:
    return EvaluationKey("ns", uri, CHECKPOINTS[uri].digest, sku, precision)


def fleet(*, big: int = 1, small: int = 1, **changes: object) -> FleetSnapshot:
    offer = {BIG: big, SMALL: small}
    return snapshot(node("a", **{name: count for name, count in offer.items() if count}), **changes)


def job(
    evaluation_key: EvaluationKey | None = None, profile: str = "1g.10gb", **changes: object
) -> Evaluation:
    return replace(Evaluation(evaluation_key or key(), profile, "job", "job-uid", NOW - 60), **changes)


def decide(observed: FleetSnapshot, *intents: Intent, now: float = NOW):
    new_plan = plan(observed, intents, now)
    return new_plan, {d.owner_uid: d for d in new_plan.decisions}


def started(new_plan) -> list[StartEvaluation]:
    return [action for action in new_plan.actions if isinstance(action, StartEvaluation)]


def ended(new_plan) -> list[FinishEvaluation]:
    return [action for action in new_plan.actions if isinstance(action, FinishEvaluation)]


def test_without_a_report_the_checkpoints_own_format_serves_and_the_cheaper_one_is_evaluated() -> None:
    new_plan, decisions = decide(fleet(), wants())

    assert decisions["uid-m"].shape == shape("3g.40gb")
    (start,) = started(new_plan)
    assert (start.key, start.shape) == (key(), shape("1g.10gb", precision="int4"))
    assert start.products == ("NVIDIA-H100-80GB-HBM3",)
    assert "H100-80GB-SXM:1g.10gb int4 is evaluated" in decisions["uid-m"].placed_message


def test_placed_waits_for_the_evaluation_if_only_a_quantised_format_fits() -> None:
    new_plan, decisions = decide(fleet(big=0), wants())

    assert decisions["uid-m"].placed_reason == "Evaluating"
    assert len(started(new_plan)) == 1


def test_a_report_within_tolerance_places_the_quantised_format() -> None:
    new_plan, decisions = decide(fleet(reports=((key(), GOOD),)), wants())

    assert decisions["uid-m"].shape == shape("1g.10gb", precision="int4")
    assert not started(new_plan)
    assert "perplexity +1 %, top-1 agreement 97.0 %" in decisions["uid-m"].placed_message


def test_the_report_of_a_finished_job_counts_before_it_is_recorded() -> None:
    new_plan, decisions = decide(fleet(evaluations=(job(result=GOOD),)), wants())

    assert decisions["uid-m"].shape.precision == "int4"
    assert not ended(new_plan)  # it is the only record of the report


def test_the_job_of_a_recorded_report_is_deleted() -> None:
    new_plan, _ = decide(fleet(reports=((key(), GOOD),), evaluations=(job(result=GOOD),)), wants())

    assert [end.uid for end in ended(new_plan)] == ["job-uid"]


def test_a_report_out_of_tolerance_is_explained_and_starts_no_new_job() -> None:
    new_plan, decisions = decide(fleet(reports=((key(), BAD), (key("fp8"), BAD))), wants())

    decision = decisions["uid-m"]
    assert decision.shape == shape("3g.40gb")
    assert not started(new_plan)
    assert "perplexity +3.1 % is above the tolerance 2 %" in decision.placed_message
    lost = [
        alternative
        for alternative in decision.alternatives
        if alternative.rejected_because == "OutOfTolerance"
    ]
    assert shape("1g.10gb", precision="int4") in [alternative.shape for alternative in lost]


def test_a_wider_tolerance_accepts_the_same_report() -> None:
    _, decisions = decide(fleet(reports=((key(), BAD),)), wants(tolerance=PrecisionTolerance(0.05, 0.9)))

    assert decisions["uid-m"].shape.precision == "int4"


@pytest.mark.parametrize(
    "evaluation_key",
    [
        replace(key(), digest="sha256:another"),
        replace(key(), namespace="other"),
        replace(key(), uri="image:///m/other"),
        replace(key(), sku="A100-80GB-SXM"),
        replace(key(), precision="fp8"),
    ],
)
def test_a_report_about_another_revision_format_or_gpu_does_not_count(evaluation_key: EvaluationKey) -> None:
    _, decisions = decide(fleet(reports=((evaluation_key, GOOD),)), wants())

    assert decisions["uid-m"].shape == shape("3g.40gb")


def test_after_the_report_replicas_move_and_new_ones_start_first() -> None:
    m = wants()
    big, small = shape("3g.40gb"), shape("1g.10gb", precision="int4")
    running = {"workloads": (workload(m, big),), "claims": claims(m, big, "a")}
    cluster = Cluster(fleet(reports=((key(), GOOD),), **running), (m,))

    served = []
    for _ in range(6):
        new_plan, _ = decide(cluster.observed, m)
        cluster.perform(new_plan)
        cluster.settle()
        served.append({w.shape for w in cluster.observed.workloads if w.available})

    assert all(served)
    assert served[-1] == {small}


def test_a_saving_too_small_for_a_move_starts_no_job() -> None:
    """fp8 halves the weights; on the same whole GPU, for one replica, it saves nothing."""
    new_plan, decisions = decide(snapshot(node("a", "A10", gpu=2)), wants(max_model_len=2048))

    assert decisions["uid-m"].placed_reason == "Placed"
    assert not started(new_plan)


@pytest.mark.parametrize("precision", ["AsStored", "bf16", "int4", "fp8"])
def test_a_precision_other_than_any_starts_no_job(precision: str) -> None:
    new_plan, decisions = decide(fleet(), replace(wants(), precision=precision))

    assert not started(new_plan)
    expected = "bf16" if precision == "AsStored" else precision
    assert decisions["uid-m"].shape.precision == expected


def test_a_named_quantised_format_is_served_without_a_report_and_says_so() -> None:
    _, decisions = decide(fleet(), replace(wants(), precision="int4"))

    decision = decisions["uid-m"]
    assert decision.shape == shape("1g.10gb", precision="int4")
    assert "engine.precision names int4: it is served without an evaluation" in decision.placed_message


def test_a_running_job_is_not_started_again_though_it_holds_the_last_device() -> None:
    m = wants()
    running = {"workloads": (workload(m, shape("3g.40gb")),), "claims": claims(m, shape("3g.40gb"), "a")}
    held = claims(None, shape("1g.10gb"), "a")
    observed = fleet(evaluations=(job(),), **running | {"claims": running["claims"] + held})

    new_plan, decisions = decide(observed, m)

    assert not started(new_plan)
    assert not ended(new_plan)
    assert "by Job ns/job, started" in decisions["uid-m"].placed_message


def test_a_job_waits_for_a_free_device() -> None:
    m = wants()
    held = claims(m, shape("3g.40gb"), "a") + claims(None, shape("1g.10gb"), "a")
    observed = fleet(workloads=(workload(m, shape("3g.40gb")),), claims=held)

    new_plan, decisions = decide(observed, m)

    assert not started(new_plan)
    assert "its evaluation waits for a free 1g.10gb" in decisions["uid-m"].placed_message


def test_a_job_takes_no_device_that_a_replica_gets_in_the_same_plan() -> None:
    other = intent(
        "other", min_replicas=1, created_at=NOW - 2000
    )  # 1B: the small slice is the cheapest for it
    new_plan, decisions = decide(fleet(), other, wants())

    assert decisions["uid-other"].shape == shape("1g.10gb")
    assert not started(new_plan)


def test_a_job_ends_when_a_replica_needs_its_device() -> None:
    m, other = wants(), intent("other", min_replicas=2)
    small = shape("1g.10gb")
    held = claims(m, shape("3g.40gb"), "a") + claims(None, small, "a") + claims(other, small, "a")
    running = (workload(m, shape("3g.40gb")), workload(other, small, 1))
    observed = fleet(small=2, workloads=running, claims=held, evaluations=(job(),))

    new_plan, decisions = decide(observed, m, other)

    assert decisions["uid-other"].placed == 1
    assert [end.uid for end in ended(new_plan)] == ["job-uid"]
    assert not started(new_plan)


def test_a_failed_job_is_reported_kept_for_a_while_and_then_retried() -> None:
    failure = EvaluationFailure("OutOfMemory", "no room for the head.", NOW - 60)
    observed = fleet(evaluations=(job(result=failure),), reports=((key("fp8"), BAD),))

    new_plan, decisions = decide(observed, wants())
    assert not ended(new_plan)
    assert not started(new_plan)
    message = decisions["uid-m"].placed_message
    assert "the evaluation of H100-80GB-SXM:1g.10gb int4 failed: no room for the head; it is tried" in message

    later, _ = decide(observed, wants(), now=NOW + RETRY_AFTER_S)
    assert [end.uid for end in ended(later)] == ["job-uid"]
    assert not started(later)  # its name is taken until then

    again, _ = decide(replace(observed, evaluations=()), wants(), now=NOW + RETRY_AFTER_S)
    assert len(started(again)) == 1


def test_one_job_at_a_time_for_each_llmdeployment() -> None:
    several = snapshot(
        node("a", mig_1g_10gb=2, mig_1g_20gb=2, mig_2g_20gb=2), node("b", "A100-80GB-SXM", gpu=2)
    )
    new_plan, _ = decide(several, wants())
    (start,) = started(new_plan)

    new_plan, _ = decide(replace(several, evaluations=(job(start.key, start.shape.profile),)), wants())
    assert not started(new_plan)
    assert not ended(new_plan)


def test_two_llmdeployments_of_one_checkpoint_share_a_job() -> None:
    new_plan, decisions = decide(
        fleet(big=2, small=2), wants(), replace(wants(), uid="uid-n", name="n", served_name="n")
    )

    assert len(started(new_plan)) == 1
    assert all("is evaluated" in decision.placed_message for decision in decisions.values())


def test_a_job_that_is_no_longer_needed_is_deleted() -> None:
    new_plan, _ = decide(fleet(evaluations=(job(),)), replace(wants(), precision="AsStored"))

    assert [end.uid for end in ended(new_plan)] == ["job-uid"]


def test_a_paused_llmdeployment_starts_no_job_and_ends_none() -> None:
    paused = wants(paused=True)

    assert not started(decide(fleet(), paused)[0])
    assert not ended(decide(fleet(evaluations=(job(),)), paused)[0])


def test_an_evaluation_waits_for_an_exhausted_quota_and_names_it() -> None:
    limit = QuotaLimit("ns", "gpus", "requests.nvidia.com/mig-1g.10gb", 1, 1)

    new_plan, decisions = decide(fleet(quotas=(limit,)), wants())

    assert not started(new_plan)
    assert "its evaluation waits for ResourceQuota gpus of namespace ns" in decisions["uid-m"].placed_message


def test_plans_do_not_depend_on_the_order_of_reports_and_jobs() -> None:
    reports = ((key(), GOOD), (key("fp8"), BAD))
    jobs = (job(), job(key("fp8"), job_uid="second", job_name="second"))
    forth, back = (
        plan(fleet(reports=r, evaluations=j), (wants(),), NOW)
        for r, j in ((reports, jobs), (reports[::-1], jobs[::-1]))
    )

    assert forth == back


def test_engine_pods_are_applied_with_the_format_of_their_shape() -> None:
    new_plan, _ = decide(fleet(reports=((key(), GOOD),)), wants())

    (action,) = [applied for applied in new_plan.actions if isinstance(applied, ApplyDeployment)]
    assert action.shape.precision == "int4"


def test_a_refused_job_is_reported_and_the_replica_stays_placed() -> None:
    refused = WriteProblem("uid-m", "Forbidden", "exceeded quota: jobs")

    new_plan, decisions = decide(fleet(evaluation_problems=(refused,)), wants())

    assert len(started(new_plan)) == 1  # the writer waits between two tries
    assert decisions["uid-m"].placed_reason == "Placed"
    assert "its Job is refused: exceeded quota: jobs" in decisions["uid-m"].placed_message


@pytest.mark.parametrize(
    ("observed", "placed"),
    [
        (fleet(big=0), ("Unknown", "Evaluating")),
        (fleet(big=0, reports=((key(), BAD),)), ("False", "Infeasible")),
        (fleet(reports=((key(), GOOD),)), ("True", "Placed")),
    ],
)
def test_the_status_has_the_state_and_the_reports_of_evaluations(
    observed: FleetSnapshot, placed: tuple[str, str]
) -> None:
    m = wants()
    _, decisions = decide(observed, m)

    status = render_status(decisions["uid-m"], m, observed, None, None, {}, NOW)

    LLMDeploymentStatus.model_validate(status)
    condition = next(c for c in status["conditions"] if c["type"] == "Placed")
    assert (condition["status"], condition["reason"]) == placed
    recorded = {block["precision"] for block in status["model"].get("evaluations", ())}
    assert recorded == {evaluation_key.precision for evaluation_key, _ in observed.reports}
