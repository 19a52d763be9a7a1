"""When the annotation of a ReplicaSet is corrected, and when it is left alone; without an API server."""

from typing import Any

import pytest

from tangram.fleet import ResumeRollout
from tangram.kube.client import ApiError, Listing
from tangram.kube.kinds import Kind, Object
from tangram.shell.write.stalled_rollouts import DESIRED_ANNOTATION, resume_rollout

ACTION = ResumeRollout("owner", "ns", "tiny-1", "mine", 2)


def replica_set(name: str = "old", replicas: int = 2, noted: str | None = "1", of: str = "mine") -> Object:
    return {
        "metadata": {
            "name": name,
            "resourceVersion": "7",
            "annotations": {} if noted is None else {DESIRED_ANNOTATION: noted},
            "ownerReferences": [
                {
                    "apiVersion": "apps/v1",
                    "kind": "Deployment",
                    "name": "tiny-1",
                    "uid": of,
                    "controller": True,
                }
            ],
        },
        "spec": {"replicas": replicas},
    }


class Api:
    """Serves ReplicaSets; keeps what is patched, or refuses it."""

    def __init__(self, *sets: Object, refuses: int = 0) -> None:
        self.sets, self.refuses, self.patched = sets, refuses, []

    async def list(self, _kind: Kind, _namespace: str, _selector: str) -> Listing:
        return Listing(list(self.sets), "1")

    async def merge(self, _kind: Kind, _namespace: str, name: str, patch: Object, *, guard: Any) -> None:
        if self.refuses:
            raise ApiError(self.refuses, "Refused", "no")
        self.patched.append((name, patch["metadata"]))


async def test_an_annotation_that_stalls_the_controller_is_corrected() -> None:
    others = replica_set("new", replicas=0), replica_set("stranger", of="another")
    api = Api(replica_set(), *others)

    assert await resume_rollout(api, None, ACTION)

    assert api.patched == [("old", {"resourceVersion": "7", "annotations": {DESIRED_ANNOTATION: "2"}})]


@pytest.mark.parametrize(
    "sets",
    [
        (),
        (replica_set(noted="2"),),
        (replica_set(noted=None),),
        (replica_set(replicas=1),),
        (replica_set(), replica_set("new", replicas=1)),
        (replica_set(of="another"),),
    ],
    ids=["none", "right", "no note", "the controller has to scale", "it scales both", "another's"],
)
async def test_a_rollout_that_the_controller_will_do_is_left_to_it(sets: tuple[Object, ...]) -> None:
    api = Api(*sets)

    assert not await resume_rollout(api, None, ACTION)

    assert api.patched == []


@pytest.mark.parametrize("status", [404, 409])
async def test_a_conflict_with_the_controller_is_no_failure(status: int) -> None:
    assert not await resume_rollout(Api(replica_set(), refuses=status), None, ACTION)


async def test_a_refused_write_is_reported() -> None:
    with pytest.raises(ApiError):
        await resume_rollout(Api(replica_set(), refuses=403), None, ACTION)
