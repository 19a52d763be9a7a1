"""The webhook and the conditions say the same about runtimes, and what runs goes on."""

import time

import pytest

from tangram.admission import Review, ReviewedObjects, object_warnings, refusal
from tangram.fleet import FleetSnapshot
from tangram.shell.report.runtime_status import runtime_statuses
from tangram.shell.snapshot.fleet_snapshot import fleet_snapshot
from tangram.shell.snapshot.intents import parsed_intents
from tangram.shell.watch.mirror_view import MirrorView
from tests.shell.test_manifests import SETTINGS
from tests.support.fleet import NOW
from tests.support.runtimes import OTHERS, runtime_object, shipped_spec


def llm_deployment(**runtime):
    meta = {
        "name": "chat",
        "namespace": "team",
        "uid": "u",
        "generation": 1,
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    return {"metadata": meta, "spec": {"model": {"uri": "pvc://w/olmo"}, "runtime": runtime}}


def reviewed(body, plural="llmdeployments", old=None, **objects):
    namespace = body["metadata"].get("namespace", "")
    review = Review(
        "CREATE" if old is None else "UPDATE", plural, namespace, body["metadata"]["name"], body, old
    )
    return review, refusal(review, ReviewedObjects(**objects))


def accepted_message(body, *runtimes):
    """Return what the condition Accepted says of an LLMDeployment beside runtimes."""
    view = MirrorView(llm_deployments=(body,), engine_runtimes=runtimes)
    observed = fleet_snapshot(view, SETTINGS, NOW)
    (intent,) = parsed_intents(view, fleet=observed)
    return intent.refusal.message if intent.refusal else ""


@pytest.mark.parametrize(
    ("runtime", "changed", "field", "sentence"),
    [
        (
            {"name": "none"},
            {},
            "spec.runtime.name",
            "EngineRuntime none does not exist; name one of tangram, vllm",
        ),
        (
            {"name": "vllm"},
            {"namespaces": ["other"]},
            "spec.runtime.name",
            "may not be used in the namespace team",
        ),
        ({"name": "vllm"}, {"image": None}, "spec.runtime.name", "has no image, so it is off"),
        (
            {"name": "vllm"},
            {"arguments": []},
            "spec.runtime.name",
            "is not accepted: spec.arguments: must set",
        ),
        (
            {"name": "vllm", "arguments": [{"name": "--trust-remote-code"}]},
            {},
            "spec.runtime.arguments[0]",
            "--trust-remote-code is never admissible",
        ),
        (
            {
                "name": "vllm",
                "arguments": [{"name": "--reasoning-parser", "value": "x"}, {"name": "--max-num-seqs"}],
            },
            {},
            "spec.runtime.arguments[1]",
            "EngineRuntime vllm sets --max-num-seqs already",
        ),
        (
            {"name": "vllm", "variables": [{"name": "PYTHONPATH", "value": "/x"}]},
            {},
            "spec.runtime.variables[0]",
            "PYTHONPATH runs code",
        ),
    ],
)
def test_a_refused_runtime_has_one_sentence_at_apply_and_in_the_condition(runtime, changed, field, sentence):
    spec = {key: value for key, value in shipped_spec("vllm", **changed).items() if value is not None}
    vllm, body = runtime_object("vllm", spec), llm_deployment(**runtime)

    _, refused = reviewed(body, engine_runtimes=(vllm,))

    assert refused.field_path == field
    assert sentence in refused.message
    assert sentence in accepted_message(body, vllm)


def test_a_runtime_that_is_not_known_yet_refuses_nothing():
    assert reviewed(llm_deployment(name="vllm"))[1] is None
    assert reviewed(llm_deployment(name="vllm"), engine_runtimes=())[1] is not None


def test_an_edit_of_something_else_is_admitted_although_the_runtime_is_gone():
    body, old = llm_deployment(name="vllm"), llm_deployment(name="vllm")
    body["spec"]["scaling"] = {"maxReplicas": 3}

    assert reviewed(body, old=old, engine_runtimes=())[1] is None


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"arguments": ["{modelPath}", "--trust_remote_code"]}, "--trust-remote-code is never admissible"),
        ({"version": "0.33.0", "allowedArguments": ["--enable-prefix-cachin"]}, "is no flag of vLLM 0.33.0"),
        ({"image": "vllm/vllm-openai:latest"}, "must be REGISTRY/NAME@sha256:DIGEST"),
        ({"variables": [{"name": "VLLM_SERVER_DEV_MODE", "value": "1"}]}, "VLLM_SERVER_DEV_MODE runs code"),
    ],
)
def test_the_webhook_and_the_condition_of_a_runtime_say_the_same(changed, sentence):
    body = runtime_object("vllm", shipped_spec("vllm", **changed))

    _, refused = reviewed(body, "engineruntimes")
    ((_, status),) = statuses(body)
    accepted, ready = status["conditions"]

    assert sentence in refused.message
    assert (accepted["status"], accepted["reason"]) == ("False", "InvalidSpec")
    assert refused.message in accepted["message"]
    assert ready["status"] == "Unknown"
    assert "acceptedSpec" not in status


@pytest.mark.parametrize("name", OTHERS)
def test_a_runtime_without_an_image_is_accepted_and_not_ready(name):
    spec = shipped_spec(name)
    del spec["image"]
    body = runtime_object(name, spec)

    review, refused = reviewed(body, "engineruntimes")
    ((_, status),) = statuses(body)
    accepted, ready = status["conditions"]

    assert refused is None
    assert "spec.image is not set: the runtime is off" in object_warnings(review, ReviewedObjects())
    assert (accepted["status"], ready["status"], ready["reason"]) == ("True", "False", "NoImage")
    assert status["acceptedSpec"]["generation"] == 1


def test_flags_of_an_unknown_version_are_warned_of_in_both_places():
    body = runtime_object("vllm", shipped_spec("vllm", version="0.40.0", allowedArguments=["--no-such"]))

    review, refused = reviewed(body, "engineruntimes")
    ((_, status),) = statuses(body)

    assert refused is None
    told = " ".join(object_warnings(review, ReviewedObjects()))
    assert "not for the version 0.40.0" in told
    assert "--no-such" in told
    assert "--no-such" in status["conditions"][0]["message"]


def test_replicas_of_another_version_than_declared_are_told_and_stay():
    body = runtime_object("vllm", shipped_spec("vllm"))
    image = shipped_spec("vllm")["image"]

    ((_, right),) = runtime_statuses((body,), snapshot_of(body), NOW, {image: "0.33.0"})
    ((_, other),) = runtime_statuses((body,), snapshot_of(body), NOW, {image: "0.32.0"})

    assert right["conditions"][1]["reason"] == "Available"
    ready = other["conditions"][1]
    assert (ready["status"], ready["reason"]) == ("True", "VersionMismatch")
    assert "of version 0.32.0, and spec.version is 0.33.0" in ready["message"]


def test_a_status_that_is_written_again_is_the_same():
    body = runtime_object("vllm", shipped_spec("vllm"))
    ((_, status),) = statuses(body)

    ((_, again),) = statuses(body | {"status": status}, NOW + 1000)

    assert again == status


def test_an_object_that_only_a_newer_operator_understands_stops_nothing():
    broken = runtime_object("other", {"engine": "New", "version": 3, "arguments": {"a": 1}})
    fine = runtime_object("vllm", shipped_spec("vllm"))
    observed = snapshot_of(broken, fine)

    assert [runtime.name for runtime in observed.runtimes] == ["vllm"]
    assert [runtime.name for runtime in observed.invalid_runtimes] == ["other"]


def test_hundreds_of_runtimes_are_read_in_a_second():
    many = [runtime_object(f"vllm-{number}", shipped_spec("vllm")) for number in range(200)]
    began = time.process_time()

    assert len(snapshot_of(*many).runtimes) == 200
    assert time.process_time() - began < 1.5


def snapshot_of(*runtimes) -> FleetSnapshot:
    return fleet_snapshot(MirrorView(engine_runtimes=runtimes), SETTINGS, NOW)


def statuses(body, now=NOW):
    return runtime_statuses((body,), snapshot_of(body), now)
