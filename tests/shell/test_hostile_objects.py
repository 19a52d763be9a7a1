"""Hostile objects of one tenant do not end the planning round of all."""

from typing import Any

import pytest

from tangram.fleet import Shape
from tangram.kube.kinds import GENERATION_ANNOTATION, SHAPE_ANNOTATION, VARIANT_LABEL, Identity
from tangram.shell.objects import manifests
from tangram.shell.objects.owned_objects import UnknownShape, generation_of, shape_of
from tangram.shell.settings import Settings
from tangram.shell.snapshot.fleet_snapshot import fleet_snapshot
from tangram.shell.snapshot.intents import parsed_intents
from tangram.shell.watch import kept_fields
from tangram.shell.watch.mirror_view import MirrorView

OWNER = Identity("ns", "chat", "uid-1")
SHAPE = Shape("H100-80GB-SXM", "gpu")


def deployment(name: str = "chat-abc", shape: str = "", generation: str = "3", **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "namespace": "ns",
            "uid": f"uid-{name}",
            "annotations": {
                SHAPE_ANNOTATION: shape or manifests.shape_annotation(SHAPE),
                GENERATION_ANNOTATION: generation,
            },
            "ownerReferences": [manifests._owner_reference(OWNER)],
        },
        "spec": {"replicas": 1, "selector": {"matchLabels": {VARIANT_LABEL: SHAPE.variant}}} | spec,
    }


def selector(variant: str) -> dict[str, Any]:
    return {"matchLabels": {VARIANT_LABEL: variant}}


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "[" * 500,
        '{"sku":"a","profile":"b","tensor_parallel":1e999,"precision":"bf16"}',
        '{"sku":"a","profile":"b","tensor_parallel":' + "9" * 5000 + ',"precision":"bf16"}',
        '{"sku":"' + "a" * 100_000 + '","profile":"b","tensor_parallel":1,"precision":"bf16"}',
        "[]",
        "null",
    ],
    ids=["nested", "nested a little", "infinite", "many digits", "long", "list", "null"],
)
def test_the_shape_is_read_from_the_selector_despite_a_broken_annotation(text: str) -> None:
    assert shape_of(deployment(shape=text)) == SHAPE
    gone = Shape("a", "b", 10**30)
    with pytest.raises(UnknownShape, match="restore the annotation, or delete the Deployment"):
        shape_of(deployment(shape=text, selector=selector(gone.variant)))


@pytest.mark.parametrize("split", [(0, 1), (1, 0), (-2, -2), (65, 1), (16, 8)])
def test_no_replica_has_less_than_one_gpu_or_more_than_any_node(split: tuple[int, int]) -> None:
    """Plans divide by the GPUs of a replica."""
    gone = Shape("a", "b", split[0], pipeline_parallel=split[1])
    forged = deployment(shape=manifests.shape_annotation(gone), selector=selector(gone.variant))
    with pytest.raises(UnknownShape):
        shape_of(forged)


def test_an_edited_shape_annotation_is_ignored() -> None:
    other = manifests.shape_annotation(Shape("L4", "gpu"))
    assert shape_of(deployment(shape=other)) == SHAPE


def test_the_annotation_identifies_a_shape_missing_from_the_catalog() -> None:
    gone = Shape("GTX-1080", "gpu")
    live_deployment = deployment(shape=manifests.shape_annotation(gone), selector=selector(gone.variant))
    assert shape_of(live_deployment) == gone


@pytest.mark.parametrize("text", ["9" * 5000, "-1", "", "1e9", "x"])
def test_a_broken_generation_is_ignored(text: str) -> None:
    assert generation_of(deployment(generation=text)) == 0


def test_annotations_of_the_operator_are_read_back() -> None:
    assert shape_of(deployment()) == SHAPE
    assert generation_of(deployment()) == 3


def test_an_unreadable_object_is_skipped_and_reported() -> None:
    bad_node = kept_fields.node({"metadata": {"name": "bad"}, "spec": {}, "status": {}}) | {"allocatable": 7}
    bad = deployment("bad", replicas="many")
    chat = {"metadata": {"name": "chat", "namespace": "ns", "uid": "uid-1"}}
    bad_llm = {"metadata": {"name": "bad", "namespace": "ns", "uid": "u"}, "status": 7}
    bad_pod = {"metadata": {"name": "bad", "namespace": "ns"}}
    bad_job = {
        "metadata": {"name": "bad", "namespace": "ns", "ownerReferences": [OWNER_REFERENCE]},
        "spec": 1,
    }
    bad_job["metadata"]["annotations"] = 5
    view = MirrorView(
        llm_deployments=(bad_llm, chat),
        nodes=(bad_node,),
        pods=(bad_pod,),
        deployments=(bad, deployment("good")),
        jobs=(bad_job,),
        model_claims=({"metadata": {"name": "bad", "namespace": "ns", "annotations": 5}},),
    )
    messages: list[str] = []

    def skipped(obj: dict[str, Any], error: Exception) -> None:
        messages.append(type(error).__name__)

    snapshot = fleet_snapshot(view, Settings(engine_image="e"), 0, skipped)

    assert [workload.name for workload in snapshot.workloads] == ["good"]
    assert len(messages) == 6, messages
    assert parsed_intents(MirrorView(llm_deployments=(bad_llm,)), skipped) == ()
    assert len(messages) == 7


OWNER_REFERENCE = manifests._owner_reference(OWNER)
