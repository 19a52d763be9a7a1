"""The evaluate Job: its manifest, its report as it is read, and the report in a status."""

import copy
import json
from dataclasses import replace
from typing import Any

import pytest

from tangram.api import evaluation_block, evaluations_from_status, parse_evaluation
from tangram.api.llm_deployment.status import LLMDeploymentStatus
from tangram.fleet import (
    Evaluation,
    EvaluationFailure,
    EvaluationKey,
    EvaluationReport,
    Intent,
    Shape,
    StartEvaluation,
)
from tangram.kube import kinds
from tangram.shell.objects import manifests
from tangram.shell.snapshot.intents import parsed_intents
from tangram.shell.snapshot.jobs import fleet_jobs
from tangram.shell.watch.mirror_view import MirrorView
from tests.support.apiserver import evaluation_report
from tests.support.views import NOW, PRODUCT, SETTINGS, Object, llm_deployment, one_round, running

DIGEST = "sha256:" + "0" * 64
KEY = EvaluationKey("ns", "image:///a", DIGEST, "H100-80GB-SXM", "int4")
AT = Shape("H100-80GB-SXM", "1g.10gb", 1, "int4")


def owner(**spec: Any) -> Intent:
    (parsed,) = parsed_intents(MirrorView(llm_deployments=(llm_deployment("a", **spec),)))
    assert isinstance(parsed, Intent)
    return parsed


def job(**status: Any) -> Object:
    manifest: Object = copy.deepcopy(
        manifests.evaluate_job(owner(), StartEvaluation("uid-a", KEY, AT, (PRODUCT,)), SETTINGS)
    )
    manifest["metadata"] |= {"uid": "job", "creationTimestamp": "2026-01-01T00:00:00Z"}
    return manifest | {"status": status}


def pod(message: str = "", **terminated: Any) -> Object:
    name = job()["metadata"]["name"]
    reference = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": "job", "controller": True}
    return {
        "metadata": {"name": f"{name}-x", "namespace": "ns", "labels": {}, "ownerReferences": [reference]},
        "nodeName": "n1",
        "requests": {},
        "phase": "Succeeded",
        "conditions": [],
        "containers": [
            {"name": "evaluate", "waiting": None, "terminated": terminated | {"message": message}}
        ],
    }


def read_evaluation(job: Object, *pods: Object) -> Any:
    evaluations = fleet_jobs(MirrorView(llm_deployments=(llm_deployment("a"),), jobs=(job,), pods=pods), NOW)
    return evaluations[0] if evaluations else None


COMPLETE = {"conditions": [{"type": "Complete", "status": "True"}]}
FAILED = {"conditions": [{"type": "Failed", "status": "True", "message": "Job was active longer"}]}


def test_the_evaluate_job_is_an_engine_pod_of_its_shape_without_rights() -> None:
    manifest = job()
    spec = manifest["spec"]["template"]["spec"]
    (container,) = spec["containers"]

    arguments = ["evaluate", "--model", "/a", "--quantize", "int4"]
    assert container["args"][:5] == arguments
    assert container["image"] == SETTINGS.engine_image
    assert container["resources"]["limits"]["nvidia.com/mig-1g.10gb"] == "1"
    assert container["resources"]["limits"] == container["resources"]["requests"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert spec["automountServiceAccountToken"] is False
    assert spec["restartPolicy"] == "Never"
    terms = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert PRODUCT in json.dumps(terms)
    assert manifest["spec"]["activeDeadlineSeconds"] == manifests.EVALUATE_DEADLINE_S
    assert manifest["metadata"]["ownerReferences"][0]["uid"] == "uid-a"


def test_the_evaluate_pod_has_the_priority_class_of_the_llmdeployment() -> None:
    intent = replace(owner(), priority_class_name="tangram-low")
    manifest = manifests.evaluate_job(intent, StartEvaluation("uid-a", KEY, AT, (PRODUCT,)), SETTINGS)

    assert manifest["spec"]["template"]["spec"]["priorityClassName"] == "tangram-low"


def test_an_evaluate_job_is_read_back_and_is_no_inspection() -> None:
    evaluation = read_evaluation(job())

    assert (evaluation.key, evaluation.profile, evaluation.result) == (KEY, "1g.10gb", None)
    view = MirrorView(llm_deployments=(llm_deployment("a"),), jobs=(job(),))
    assert [type(job) for job in fleet_jobs(view, NOW)] == [Evaluation]


def test_the_report_of_a_finished_job_is_read() -> None:
    evaluation = read_evaluation(job(**COMPLETE), pod(evaluation_report()))

    assert evaluation.result == EvaluationReport(
        tokens=4000,
        perplexity=6.0,
        quantised_perplexity=6.06,
        perplexity_increase=0.01,
        top1_agreement=0.97,
        kl_mean=0.02,
        kl_p99=0.3,
        engine_image=SETTINGS.engine_image,
        profile="1g.10gb",
    )


@pytest.mark.parametrize(
    ("message", "reason", "text"),
    [
        ("", "EvaluationFailed", "Job was active longer"),
        ("Killed", "EvaluationFailed", "left no report, but: Killed"),
        ('{"schema":1}', "EvaluationFailed", "neither figures nor an error"),
        ('{"schema":2,"evaluation":{}}', "EvaluationFailed", "left no report"),
        (evaluation_report(format="fp8"), "EvaluationFailed", "about fp8"),
        (evaluation_report(digest="sha256:other"), "CheckpointChanged", "a directory of its own"),
        (evaluation_report(perplexity="many"), "EvaluationFailed", "left no report"),
        (evaluation_report(top1Agreement=1.5), "EvaluationFailed", "left no report"),
        (evaluation_report(perplexityIncrease=float("nan")), "EvaluationFailed", "left no report"),
        ('{"schema":1,"error":{"reason":"OutOfMemory","message":"no room"}}', "OutOfMemory", "no room"),
        ('{"schema":1,"error":{"reason":"<b>","message":"no room"}}', "EvaluationFailed", "left no report"),
        ('"\\ud800"', "EvaluationFailed", "left no report"),
        ("[" * 5000, "EvaluationFailed", "left no report"),
    ],
)
def test_an_invalid_report_is_a_failure_with_its_reason(message: str, reason: str, text: str) -> None:
    failure = read_evaluation(job(**FAILED), pod(message)).result

    assert isinstance(failure, EvaluationFailure)
    assert failure.reason == reason
    assert text in failure.message


def test_an_oom_killed_container_names_the_setting_to_raise() -> None:
    failure = read_evaluation(job(**FAILED), pod("", reason="OOMKilled", exitCode=137)).result

    assert "OOMKilled" in failure.message
    assert "engine.resources.requests.memory" in failure.message


@pytest.mark.parametrize("value", [None, "", "{}", "[]", '{"digest": 1}', "x" * 1000])
def test_a_job_without_a_valid_evaluation_annotation_is_ignored(value: str | None) -> None:
    manifest = job()
    annotations = manifest["spec"]["template"]["metadata"]["annotations"]
    annotations.pop(kinds.EVALUATION_ANNOTATION)
    if value is not None:
        annotations[kinds.EVALUATION_ANNOTATION] = value

    assert read_evaluation(manifest) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda manifest: manifest["metadata"].update(name="tangram-evaluate-0000000000"),
        lambda manifest: manifest["spec"]["template"]["spec"]["containers"][0].update(command=["sh"]),
        lambda manifest: manifest["spec"]["template"]["spec"]["containers"][0].update(args=["inspect"]),
        lambda manifest: manifest["spec"]["template"]["spec"]["containers"].append({"name": "second"}),
        lambda manifest: manifest["metadata"].update(ownerReferences=[]),
    ],
)
def test_a_job_that_the_operator_would_not_write_is_ignored(change: Any) -> None:
    manifest = job(**COMPLETE)
    change(manifest)

    assert read_evaluation(manifest, pod(evaluation_report())) is None


@pytest.mark.parametrize("number", [0.0, 1e-9, 0.01, -0.013, 12345.678901, 1e12])
def test_a_recorded_report_is_read_back_unchanged(number: float) -> None:
    text = evaluation_report(perplexityIncrease=number, quantisedPerplexity=abs(number))
    report = parse_evaluation(text, KEY, "e", "gpu", NOW)
    assert isinstance(report, EvaluationReport)

    block = evaluation_block(KEY, report)
    status = {"model": {"uri": KEY.uri, "engineImage": "e", "evaluations": [block]}}
    LLMDeploymentStatus.model_validate(json.loads(json.dumps(status)))
    obj = {"metadata": {"namespace": "ns"}, "status": status}

    assert evaluations_from_status(obj) == ((KEY, report),)


@pytest.mark.parametrize(
    "edit", [{"precision": "int2"}, {"tokens": 0}, {"klMean": "1e9"}, {"digest": ""}, None]
)
def test_an_unreadable_recorded_report_is_evaluated_again(edit: Object | None) -> None:
    report = parse_evaluation(evaluation_report(), KEY, "e", "gpu", NOW)
    assert isinstance(report, EvaluationReport)
    block: Any = evaluation_block(KEY, report) | edit if edit is not None else "x"
    status = {"model": {"uri": KEY.uri, "evaluations": [block]}}

    assert evaluations_from_status({"metadata": {"namespace": "ns"}, "status": status}) == ()


def test_a_round_records_the_report_and_ends_the_job_in_the_next() -> None:
    running_fleet = running("a", spec={"engine": {"precision": "Any"}})
    fleet = replace(running_fleet, jobs=(job(**COMPLETE),), reduced=(pod(evaluation_report()),))
    first = one_round(fleet.view())
    (block,) = first.statuses["uid-a"]["model"]["evaluations"]
    assert (block["precision"], block["perplexityIncrease"], block["top1Agreement"]) == (
        "int4",
        "0.01",
        "0.97",
    )

    (llm,) = running_fleet.llm_deployments
    again = one_round(replace(fleet, llm_deployments=(llm | {"status": first.statuses["uid-a"]},)).view())

    assert "FinishEvaluation" in [type(action).__name__ for action in again.plan.actions]
    assert again.statuses["uid-a"]["model"] == first.statuses["uid-a"]["model"]
