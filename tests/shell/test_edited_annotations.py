"""Edits of `tangram.dev/` labels and annotations by others: no plan changes, or a condition reports it."""

import copy
from dataclasses import replace

import pytest

from tangram.fleet import FactsKey, Intent, Shape, labels
from tangram.kube import kinds
from tangram.kube.kinds import Identity
from tangram.shell.objects import manifests
from tangram.shell.objects.manifest_match import up_to_date
from tangram.shell.snapshot.intents import parsed_intents
from tangram.shell.snapshot.jobs import fleet_jobs
from tangram.shell.watch.mirror_view import MirrorView
from tests.support.views import NOW, SETTINGS, Fleet, Object, deployment, llm_deployment, one_round, running

UID = "uid-a"
OTHER = manifests.shape_annotation(Shape("L4", "gpu"))
MARKS = [
    labels.OWNER_LABEL,
    kinds.OPERATOR_LABEL,
    kinds.VARIANT_LABEL,
    kinds.SKU_LABEL,
    kinds.PROFILE_LABEL,
    kinds.RUNTIME_LABEL,
    kinds.PRECISION_LABEL,
    kinds.SHAPE_ANNOTATION,
    kinds.RENDERED_ANNOTATION,
    kinds.TEMPLATE_ANNOTATION,
    kinds.MODEL_URI_ANNOTATION,
    kinds.ENGINE_IMAGE_ANNOTATION,
    kinds.EVALUATION_ANNOTATION,
    kinds.MODEL_CLAIM_ANNOTATION,
    kinds.FILLED_ANNOTATION,
    kinds.UNUSED_ANNOTATION,
    kinds.GENERATION_ANNOTATION,
]
RUNNING_FLEET = running("a", "z")
EXPECTED = one_round(RUNNING_FLEET.view())


def marked(obj: Object, mark: str, value: str | None) -> Object:
    """Return a copy of an object with another value of a label and annotation, or without it (None)."""
    copied = copy.deepcopy(obj)
    for where in ("labels", "annotations"):
        annotations = copied["metadata"].setdefault(where, {})
        annotations.pop(mark, None)
        if value is not None:
            annotations[mark] = value
    return copied


def test_every_annotation_of_the_operator_is_tested() -> None:
    constants = {**vars(kinds), **vars(labels)}
    named = {value for name, value in constants.items() if name.endswith(("_LABEL", "_ANNOTATION"))}
    assert {mark for mark in named if mark.startswith("tangram.dev/")} == set(MARKS)


@pytest.mark.parametrize("value", [None, "", "x", "0", "7", "99", OTHER])
@pytest.mark.parametrize("mark", MARKS)
@pytest.mark.parametrize("kind", ["llm_deployments", "nodes", "pods", "services", "deployments"])
def test_an_edited_annotation_changes_no_plan(kind: str, mark: str, value: str | None) -> None:
    first, *others = getattr(RUNNING_FLEET, kind)
    result = one_round(replace(RUNNING_FLEET, **{kind: (marked(first, mark, value), *others)}).view())

    assert result.plan == EXPECTED.plan
    if (kind, mark) != ("deployments", kinds.GENERATION_ANNOTATION):
        assert result.statuses == EXPECTED.statuses


@pytest.mark.parametrize(
    "mark",
    [
        kinds.SHAPE_ANNOTATION,
        kinds.GENERATION_ANNOTATION,
        kinds.RENDERED_ANNOTATION,
        kinds.TEMPLATE_ANNOTATION,
    ],
)
def test_an_edited_annotation_makes_a_deployment_out_of_date(mark: str) -> None:
    rendered = {key: value for key, value in RUNNING_FLEET.deployments[0].items() if key != "status"}
    assert up_to_date(rendered, rendered)
    for value in (None, "x"):
        assert not up_to_date(marked(rendered, mark, value), rendered)


def gone(annotation: str) -> Fleet:
    """Return a fleet with a Deployment on a GPU that has left the catalog."""
    (owner,) = parsed_intents(MirrorView(llm_deployments=(llm_deployment("a"),)))
    assert isinstance(owner, Intent)
    edited = marked(deployment(owner, Shape("GTX-1080", "gpu")), kinds.SHAPE_ANNOTATION, annotation)
    return replace(
        RUNNING_FLEET, deployments=(edited, *RUNNING_FLEET.deployments[1:]), pods=RUNNING_FLEET.pods[1:]
    )


@pytest.mark.parametrize("value", ["", "x", OTHER])
def test_an_edited_shape_annotation_that_cannot_be_restored_is_reported_without_action(value: str) -> None:
    result = one_round(gone(value).view())

    (ready, *_) = result.statuses[UID]["conditions"]
    assert (ready["status"], ready["reason"]) == ("False", "NotJudged")
    assert "restore the annotation, or delete the Deployment" in ready["message"]
    assert not [action for action in result.plan.actions if action.owner_uid == UID]
    assert result.of("uid-z") == EXPECTED.of("uid-z")


# --- inspect Jobs

KEY = FactsKey("ns", "image:///a", "engine:1")


@pytest.mark.parametrize("mark", [kinds.MODEL_URI_ANNOTATION, kinds.ENGINE_IMAGE_ANNOTATION])
@pytest.mark.parametrize("value", [None, "", "image:///other"])
def test_an_edited_job_keeps_the_checkpoint_of_its_inspection(mark: str, value: str | None) -> None:
    """Its pod template cannot be changed, and its name is a hash of both."""
    job = manifests.inspect_job(Identity("ns", "a", UID), KEY, SETTINGS)
    job["metadata"] |= {"uid": "job", "creationTimestamp": "2026-01-01T00:00:00Z"}
    view = replace(RUNNING_FLEET, jobs=(marked(job, mark, value),)).view()

    assert [inspection.key for inspection in fleet_jobs(view, NOW)] == [KEY]
