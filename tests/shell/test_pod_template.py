"""The pod template of engine pods and inspect Jobs, and the settings that may change it."""

import copy
import os
import re
import subprocess
import sys
from typing import Any

import pytest
from pydantic import ValidationError

from tangram.catalog import gpu, skus
from tangram.fleet import WHOLE_GPU, ApplyDeployment, FactsKey, Shape
from tangram.shell.objects import manifests
from tangram.shell.objects.manifest_match import up_to_date
from tangram.shell.settings import Settings
from tangram.shell.watch import kept_fields
from tests.shell.test_manifests import SETTINGS, SLICE, action, intent

LABEL_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
SHAPES = [
    Shape(sku, profile) for sku in skus() for profile in (WHOLE_GPU, *(p.name for p in gpu(sku).profiles))
]
EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"
KARPENTER = "karpenter.sh/do-not-disrupt"


def settings(**changed: Any) -> Settings:
    return Settings.model_validate({"engineImage": "registry/engine:1"} | changed)


def engine(settings: Settings = SETTINGS, apply_action: ApplyDeployment | None = None) -> dict[str, Any]:
    rendered = manifests.deployment(intent(), apply_action or action(SLICE), settings)
    template: dict[str, Any] = rendered["spec"]["template"]
    return template


def inspect(settings: Settings = SETTINGS) -> dict[str, Any]:
    job = manifests.inspect_job(
        manifests.owner_identity(intent()), FactsKey("ns", "pvc://w/x", "e"), settings
    )
    template: dict[str, Any] = job["spec"]["template"]
    return template


def volume(template: dict[str, Any], name: str) -> Any:
    (matching,) = (
        volume_entry for volume_entry in template["spec"]["volumes"] if volume_entry["name"] == name
    )
    return matching["emptyDir"]


@pytest.mark.parametrize("template", [engine, inspect])
def test_pods_set_no_user_if_the_cluster_assigns_it(template) -> None:
    usual = template()["spec"]["securityContext"]
    assigned = template(settings(engine={"runAsUser": None}))["spec"]["securityContext"]

    assert [usual[key] for key in ("runAsUser", "runAsGroup", "fsGroup")] == [65532] * 3
    assert assigned == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


@pytest.mark.parametrize("template", [engine, inspect])
def test_the_tmp_limit_has_the_canonical_form_of_the_api_server(template) -> None:
    assert volume(template(), "tmp") == {"sizeLimit": "2Gi"}
    assert volume(template(settings(engine={"tmpSizeLimit": "4096Mi"})), "tmp") == {"sizeLimit": "4Gi"}


def test_shared_memory_of_engines_has_a_limit() -> None:
    template = engine(settings(engine={"shmSizeLimit": "0.5Gi"}))

    assert volume(template, "shm") == {"medium": "Memory", "sizeLimit": "512Mi"}
    mounts = {
        mount["name"]: mount["mountPath"] for mount in template["spec"]["containers"][0]["volumeMounts"]
    }
    assert mounts["shm"] == "/dev/shm"  # noqa: S108 - a path inside the container


@pytest.mark.parametrize("wrong", [{"tmpSizeLimit": "0"}, {"shmSizeLimit": "lots"}, {"runAsUser": 0}])
def test_zero_limits_and_the_user_root_are_refused(wrong) -> None:
    with pytest.raises(ValidationError):
        settings(engine=wrong)


@pytest.mark.parametrize(
    ("removal", "written"),
    [
        ("Default", {}),
        ("Block", {EVICT: "false", KARPENTER: "true"}),
        ("Allow", {EVICT: "true"}),
    ],
)
def test_pods_carry_the_autoscaler_annotations_of_the_setting(removal, written) -> None:
    annotations = engine(settings(engine={"nodeRemoval": removal}))["metadata"]["annotations"]

    assert {key: annotations[key] for key in (EVICT, KARPENTER) if key in annotations} == written


def test_an_inspect_pod_has_a_short_grace_period() -> None:
    assert inspect()["spec"]["terminationGracePeriodSeconds"] == 2


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_labels_of_every_shape_are_valid_and_identify_it(shape) -> None:
    labels = engine(apply_action=action(shape))["metadata"]["labels"]

    assert all(LABEL_VALUE.fullmatch(value) for value in labels.values())
    assert labels["tangram.dev/sku"] == shape.sku
    assert labels["tangram.dev/profile"] == shape.profile.replace("+", ".")
    assert labels["tangram.dev/precision"] == shape.precision


def test_the_selector_has_the_labels_of_existing_deployments() -> None:
    selector = manifests.deployment(intent(), action(SLICE), SETTINGS)["spec"]["selector"]

    assert set(selector["matchLabels"]) == {
        "app.kubernetes.io/managed-by",
        "app.kubernetes.io/component",
        "tangram.dev/llmdeployment",
        "tangram.dev/variant",
    }


@pytest.mark.parametrize(
    "shape", [SLICE, Shape("RTX-PRO-6000-SERVER", "4g.96gb+gfx"), Shape("L4", "gpu")], ids=str
)
def test_the_mirror_keeps_every_field_that_up_to_date_compares(shape) -> None:
    """What is rendered and not kept would be written in every round."""
    every = settings(
        engine={
            "runAsUser": None,
            "nodeRemoval": "Block",
            "tmpSizeLimit": "3000Mi",
            "imagePullSecrets": ["pull"],
        }
    )
    rendered = manifests.deployment(intent("pvc://w/x"), action(shape), every)

    reduced = kept_fields.owned_object(copy.deepcopy(rendered))

    assert reduced is not None
    assert up_to_date(reduced, rendered)


def test_settings_that_do_not_concern_pods_do_not_change_them() -> None:
    other = settings(
        prices={"L4": 1},
        prometheus={"url": "http://p:9090"},
        scaling={"downAfterSeconds": 60},
        scheduling={"deadlineSeconds": 10},
        advice={"idleSeconds": 1},
        leaderElection={"name": "another"},
        watchNamespaces=["ns"],
        operator={"tickSeconds": 5, "logFormat": "plain"},
    )
    rendered = manifests.deployment(intent(), action(SLICE), SETTINGS)

    assert up_to_date(rendered, manifests.deployment(intent(), action(SLICE), other))


RENDER = """
from tests.shell.test_manifests import SETTINGS, SLICE, action, intent
from tangram.shell.objects import manifests
from tangram.shell.watch import kept_fields
print(manifests.content_hash(manifests.deployment(intent("pvc://w/x"), action(SLICE), SETTINGS)))
"""


def test_a_restarted_operator_renders_the_same_template() -> None:
    own_hash = manifests.content_hash(manifests.deployment(intent("pvc://w/x"), action(SLICE), SETTINGS))
    environment = os.environ | {"PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    other_hash = subprocess.run(
        [sys.executable, "-c", RENDER], env=environment, capture_output=True, text=True, check=True
    )

    assert other_hash.stdout.strip() == own_hash
