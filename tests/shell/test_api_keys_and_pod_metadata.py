"""Fields of engine pods from the spec: API keys of a Secret, labels and annotations."""

from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from tangram.api.llm_deployment.pod_metadata import is_own_key
from tangram.fleet import ApplyDeployment, ApplyService, Intent, SecretKey
from tangram.fleet.times import rfc3339
from tangram.shell.objects import manifests
from tangram.shell.objects.waiting_pods import waiting_message
from tangram.shell.settings import Settings
from tangram_engine import __main__ as engine_command
from tangram_engine.serve import server
from tests.shell.test_manifests import SETTINGS, action, container, intent
from tests.support import views

KEYS = SecretKey("chat-keys", "clients.txt")
CREATED_S = 1_800_000_000.0


def rendered(intent_to_render: Intent) -> dict[str, Any]:
    return manifests.deployment(intent_to_render, action(), SETTINGS)


def template(intent_to_render: Intent) -> dict[str, Any]:
    pod_template: dict[str, Any] = rendered(intent_to_render)["spec"]["template"]
    return pod_template


def test_the_key_of_a_secret_is_a_file_that_the_engine_reads() -> None:
    deployment = rendered(replace(intent(), api_keys=KEYS))
    options = engine_command._parser().parse_args(container(deployment)["args"])

    volume = deployment["spec"]["template"]["spec"]["volumes"][-1]
    mount = container(deployment)["volumeMounts"][-1]
    assert volume == {
        "name": mount["name"],
        "secret": {
            "secretName": "chat-keys",
            "items": [{"key": "clients.txt", "path": "api-keys"}],
            "defaultMode": 0o440,
        },
    }
    assert mount["readOnly"] is True
    assert "subPath" not in mount  # the kubelet would not update it
    assert str(options.api_key_file) == f"{mount['mountPath']}/api-keys"


def test_without_api_keys_pods_mount_no_secret() -> None:
    pod = template(intent())["spec"]

    assert not any("secret" in volume for volume in pod["volumes"])
    assert "--api-key-file" not in pod["containers"][0]["args"]


@pytest.mark.parametrize(
    "change",
    [
        {"api_keys": KEYS},
        {"api_keys": SecretKey("chat-keys", "others.txt")},
        {"pod_labels": (("team", "search"),)},
        {"pod_annotations": (("example.com/owner", "floor 3"),)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_change_replaces_the_pods_and_leaves_selectors_and_services(change: Any) -> None:
    owner = replace(intent(), api_keys=SecretKey("chat-keys", "api-keys"))
    first, other = rendered(owner), rendered(replace(owner, **change))

    assert first["spec"]["template"] != other["spec"]["template"]
    assert first["spec"]["selector"] == other["spec"]["selector"]
    assert first["metadata"]["labels"] == other["metadata"]["labels"]


def test_user_labels_and_annotations_are_added_to_those_of_the_operator() -> None:
    plain = template(intent())["metadata"]
    owner = replace(
        intent(), pod_labels=(("team", "search"),), pod_annotations=(("example.com/owner", "floor 3"),)
    )

    assert template(owner)["metadata"] == {
        "labels": plain["labels"] | {"team": "search"},
        "annotations": plain["annotations"] | {"example.com/owner": "floor 3"},
    }


def test_no_user_label_or_annotation_replaces_one_of_the_operator() -> None:
    """Nor does an object that was stored before a key was refused."""
    plain = template(intent())["metadata"]
    stolen = replace(
        intent(),
        pod_labels=tuple((key, "stolen") for key in sorted(plain["labels"])),
        pod_annotations=tuple((key, "stolen") for key in sorted(plain["annotations"])),
    )

    assert template(stolen)["metadata"] == plain


def test_every_key_of_the_operator_on_a_pod_is_its_own() -> None:
    metadata = template(intent())["metadata"]

    assert all(is_own_key(key) for key in {**metadata["labels"], **metadata["annotations"]})


METADATA = {"labels": {"team": "search"}, "annotations": {"example.com/owner": "floor 3"}}


def with_listed(monkeypatch: pytest.MonkeyPatch, *keys: str) -> None:
    settings = Settings.model_validate({"engineImage": views.IMAGE, "engine": {"podMetadataKeys": keys}})
    monkeypatch.setattr(views, "SETTINGS", settings)


def test_replicas_with_a_key_that_is_no_longer_listed_run_on_and_a_condition_names_the_setting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet = views.running("chat", spec={"metadata": METADATA, "scaling": {"minReplicas": 2}})
    with_listed(monkeypatch, "team", "example.com/owner")
    listed = views.one_round(fleet.view())
    with_listed(monkeypatch, "team")
    unlisted = views.one_round(fleet.view())

    assert [type(action) for action in listed.plan.actions] == [ApplyService, ApplyDeployment]
    assert unlisted.plan.actions == ()
    (accepted,) = [c for c in unlisted.statuses["uid-chat"]["conditions"] if c["type"] == "Accepted"]
    assert (accepted["status"], accepted["reason"]) == ("False", "MetadataKeyNotAllowed")
    assert accepted["message"].startswith(
        "spec.metadata.annotations: the key example.com/owner is not allowed"
    )
    assert "engine.podMetadataKeys allows team alone" in accepted["message"]


@pytest.mark.parametrize(
    "keys",
    [["tangram.dev/variant"], ["hold.tangram.dev/*"], ["pod-template-hash"], ["app.kubernetes.io/name"]],
)
def test_no_setting_gives_away_a_key_of_the_operator(keys: list[str]) -> None:
    with pytest.raises(ValidationError, match="is a key that Tangram itself writes"):
        Settings.model_validate({"engineImage": "e", "engine": {"podMetadataKeys": keys}})


@pytest.mark.parametrize(
    "key", ["*", "*/*", "*.example.com/*", "Example.com/*", "example.com/", "a/b/c", "", "/*"]
)
def test_a_setting_lists_keys_and_domains_and_no_other_pattern(key: str) -> None:
    with pytest.raises(ValidationError, match="podMetadataKeys"):
        Settings.model_validate({"engineImage": "e", "engine": {"podMetadataKeys": [key]}})


def pod(state: dict[str, Any], last: dict[str, Any] | None = None) -> dict[str, Any]:
    engine = {"name": "engine", "waiting": state, "terminated": None, "lastTerminated": last, "restarts": 0}
    meta = {"name": "a", "creationTimestamp": rfc3339(CREATED_S)}
    return {"metadata": meta, "phase": "Pending", "conditions": [], "containers": [engine]}


def test_a_pod_that_waits_for_volumes_names_the_secret_that_may_be_missing() -> None:
    waits = [pod({"reason": "ContainerCreating"})]
    with_keys = rendered(replace(intent(), api_keys=KEYS))

    message = waiting_message(with_keys, waits, CREATED_S + 121)

    assert "(does key clients.txt of Secret chat-keys exist?)" in message
    assert "Secret" not in waiting_message(rendered(intent()), waits, CREATED_S + 121)
    assert waiting_message(with_keys, waits, CREATED_S + 120) == ""


def test_an_engine_that_exits_without_keys_names_the_secret() -> None:
    state = {"reason": "CrashLoopBackOff", "message": "back-off 10s restarting failed container"}
    with_keys = rendered(replace(intent(), api_keys=KEYS))

    def message_after_exit(code: int) -> str:
        return waiting_message(with_keys, [pod(state, {"exitCode": code, "reason": "Error"})], CREATED_S)

    assert message_after_exit(server.EXIT_API_KEYS).startswith(
        "pod a: key clients.txt of Secret chat-keys may hold no API keys"
    )
    assert "Secret" not in message_after_exit(server.EXIT_CHECKPOINT)
