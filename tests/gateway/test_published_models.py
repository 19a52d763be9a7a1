"""Names of models and addresses of replicas, from objects of the cluster."""

import json

from tangram.gateway import published_models, ready_replicas
from tangram.gateway.answers import GatewayAnswer
from tests.support.front_door import Replica, endpoint_slice, llm_deployment


def models_of(*objects):
    kept = [published_models.kept_fields(obj) for obj in objects]
    return published_models.published_models(each for each in kept if each is not None)


def named(namespace, name, served_name="", **status):
    return llm_deployment(namespace, name, served_name) | {"status": status}


def refused(**status):
    return {"conditions": [{"type": "Accepted", "status": "False"}], **status}


def test_a_qualified_name_cannot_be_taken_by_another_namespace():
    models = models_of(named("team-a", "chat"), named("evil", "x", "team-a/chat"))
    assert models.find("team-a/chat").namespace == "team-a"
    assert models.find("evil/team-a/chat").namespace == "evil"
    ids = [each["id"] for each in json.loads(models.listing().body)["data"]]
    assert ids == ["evil/team-a/chat", "chat"]
    assert all(not isinstance(models.find(each), GatewayAnswer) for each in ids)


def test_what_the_operator_does_not_accept_is_not_served():
    last = {"acceptedSpec": {"generation": 1, "spec": json.dumps({"model": {"servedName": "before"}})}}
    models = models_of(
        named("a", "edited", "after", **refused(**last)),
        named("a", "never", **refused()),
        named("a", "new"),
        named("a", "gone") | {"metadata": {"name": "gone", "namespace": "a", "deletionTimestamp": "now"}},
        named("a", "garbled", acceptedSpec={"spec": "[" * 10_000}),
    )
    assert set(models.by_name) == {"before", "new"}


def test_of_two_with_one_name_in_a_namespace_the_older_one_serves():
    older, newer = named("a", "z", "same"), named("a", "b", "same")
    for obj, created in ((older, "2026-01-01T00:00:00Z"), (newer, "2026-02-01T00:00:00Z")):
        obj["metadata"]["creationTimestamp"] = created
    assert models_of(newer, older).find("same").name == "z"


def test_endpoints_that_end_or_are_not_ready_are_left_out():
    replicas = [Replica(str(port), port) for port in range(5)]
    states = ({}, {"ready": False}, {"terminating": True}, {"ready": True, "serving": True}, {"ready": None})
    slices = [
        endpoint_slice("a", "chat", replica, **state) for replica, state in zip(replicas, states, strict=True)
    ]
    foreign = endpoint_slice("a", "chat", Replica("x", 9))
    foreign["ports"][0]["name"] = "metrics"
    headless = endpoint_slice("a", "chat", Replica("y", 9))
    del headless["metadata"]["labels"]["kubernetes.io/service-name"]
    six = endpoint_slice("b", "chat", Replica("z", 9)) | {"addressType": "IPv6"}
    six["endpoints"][0]["addresses"] = ["fd00::1"]
    kept = [ready_replicas.kept_fields(each) for each in (*slices, foreign, headless, six)]
    assert ready_replicas.ready_replicas(each for each in kept if each) == {
        ("a", "chat"): {"127.0.0.1:0", "127.0.0.1:3", "127.0.0.1:4"},
        ("b", "chat"): {"[fd00::1]:9"},
    }
