"""What reviews are answered from: mirrored objects of a namespace, and the API server where they may lag."""

from typing import Any

from aiohttp import web

from tangram.admission import ObjectKey, ReviewedObjects
from tangram.kube.client import ApiClient
from tangram.kube.mirror import Mirror, MirrorSource
from tangram.shell.admission.placements import WARM_UP
from tangram.shell.admission.reviewed_cluster import ReviewedCluster
from tangram.shell.settings import Settings
from tangram.shell.watch.mirrors import Mirrors
from tests.kube.test_client_calls import served
from tests.support.apiserver import llm, priority_class


def reviewed(client: ApiClient, *namespaces: str) -> ReviewedCluster:
    def mirror(source: MirrorSource) -> Mirror:
        return Mirror(client, source, changed=lambda: None, clock=lambda: 0.0)

    settings = Settings(engine_image="e:1", watch_namespaces=namespaces)
    return ReviewedCluster(Mirrors(namespaces, mirror), settings, client, None)


def review_in(namespace: str) -> Any:
    return type(WARM_UP)("CREATE", "llmdeployments", namespace, "m", llm("m", namespace))


async def listing(request: web.Request) -> web.Response:
    """An API server with LLMDeployments in two namespaces and one PriorityClass."""
    plural = request.path.rsplit("/", 1)[-1]
    items = {
        "llmdeployments": [llm("a", "team-a"), llm("b", "team-b")],
        "priorityclasses": [priority_class("late", 1)],
    }.get(plural, [])
    wanted = request.query.get("fieldSelector", "metadata.name=").removeprefix("metadata.name=")
    items = [obj for obj in items if wanted in ("", obj["metadata"]["name"])]
    return web.json_response({"items": items, "metadata": {"resourceVersion": "7"}})


async def test_objects_of_other_namespaces_are_not_seen() -> None:
    async with served(listing) as (client, _):
        cluster = reviewed(client)
        unsynced = await cluster.objects(review_in("team-a"))
        for mirror in cluster.mirrors.all:
            await mirror._list()
        found = await cluster.objects(review_in("team-a"))
        elsewhere = await reviewed(client, "team-b").objects(review_in("team-a"))

    assert unsynced.llm_deployments is None
    assert found.llm_deployments is not None
    assert [obj["metadata"]["name"] for obj in found.llm_deployments] == ["a"]
    assert found.priority_classes is not None
    assert found.gpu_pools == ()
    assert elsewhere.llm_deployments is None, "a namespace that is not served has no mirror"


async def test_what_a_refusal_rests_on_is_read_from_the_api_server() -> None:
    key = ObjectKey("priorityclasses", "", "late")
    async with served(listing) as (client, _):
        cluster = reviewed(client)
        present = await cluster.current(ReviewedObjects(priority_classes=()), (key,))
        absent = await cluster.current(present, (key._replace(name="gone"),))

    assert present.priority_classes is not None
    (kept,) = present.priority_classes
    assert kept["metadata"]["name"] == "late"
    assert "kind" not in kept, "reduced as mirrors do"
    assert absent.priority_classes == present.priority_classes
