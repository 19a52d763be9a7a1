"""LISTs of large clusters, slow servers and large objects: each continues while pages arrive."""

import asyncio
import json
import tracemalloc
from copy import deepcopy
from typing import Any

import pytest
from aiohttp import web

from tangram.kube.client import AT_ONCE, LIST_CHUNK, PAGE_ATTEMPTS, PAGE_BYTES, RESTARTS, ApiError
from tangram.kube.kinds import DEPLOYMENTS, PODS, Identity
from tangram.kube.mirror import Mirror, MirrorSource
from tangram.kube.response_body import MAX_BODY_BYTES
from tangram.kube.retry_delays import RetryDelays
from tangram.shell.objects import manifests
from tangram.shell.objects.manifest_match import up_to_date
from tangram.shell.watch import kept_fields
from tests.kube.test_client_calls import served


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RetryDelays, "next_s", lambda _self: 0.0)


class Collection:
    """Serves `count` objects in pages, as the API server does; `fault` may answer first."""

    def __init__(self, count: int, make: Any = None, fault: Any = None) -> None:
        self.count, self.fault = count, fault
        self.make = make or (
            lambda i: {"metadata": {"name": f"o{i}", "namespace": "n", "resourceVersion": "9"}}
        )
        self.requests: list[tuple[int, int]] = []  # (first, limit) of each request

    async def serve(self, request: web.Request) -> web.StreamResponse:
        first, limit = int(request.query.get("continue") or 0), int(request.query["limit"])
        self.requests.append((first, limit))
        answer = await self.fault(len(self.requests), first, limit) if self.fault else None
        if answer is not None:
            return answer
        last = min(self.count, first + limit)
        meta = {"resourceVersion": "9"} | ({"continue": str(last)} if last < self.count else {})
        return web.json_response({"metadata": meta, "items": [self.make(i) for i in range(first, last)]})


def names(items: list[dict[str, Any]]) -> list[str]:
    return [item["metadata"]["name"] for item in items]


async def test_a_list_continues_while_pages_arrive() -> None:
    async def slow(_nth: int, _first: int, _limit: int) -> None:
        await asyncio.sleep(0.1)

    pages: list[int] = []
    collection = Collection(15 * LIST_CHUNK, fault=slow)
    async with served(collection.serve, timeout_s=1.0) as (client, _):  # of a page: the whole takes longer
        began = asyncio.get_running_loop().time()
        listing = await client.list(PODS, on_page=lambda: pages.append(1))
        assert asyncio.get_running_loop().time() - began > 1.0
    assert len(listing.items) == 15 * LIST_CHUNK
    assert len(pages) == len(collection.requests) == 15


async def test_between_parts_of_a_page_the_event_loop_does_other_work() -> None:
    reduced = [0]

    def reduce(obj: dict[str, Any]) -> dict[str, Any]:
        if not reduced[-1]:
            asyncio.get_running_loop().call_soon(reduced.append, 0)
        reduced[-1] += 1
        return obj

    async with served(Collection(2 * LIST_CHUNK).serve) as (client, _):
        await client.list(PODS, reduce=reduce)
    assert sum(reduced) == 2 * LIST_CHUNK
    assert max(reduced) <= AT_ONCE


async def test_a_stalled_page_is_requested_again_with_a_smaller_limit() -> None:
    async def stalls(_nth: int, first: int, limit: int) -> None:
        if first >= LIST_CHUNK and limit > 200:
            await asyncio.sleep(3600)

    collection = Collection(2 * LIST_CHUNK, fault=stalls)
    async with served(collection.serve, timeout_s=0.2) as (client, _):
        listing = await client.list(PODS)
    assert names(listing.items) == [f"o{i}" for i in range(2 * LIST_CHUNK)]
    assert collection.requests[:3] == [(0, 500), (500, 500), (500, 125)]


@pytest.mark.parametrize("code", [429, 500, 503])
async def test_an_occasionally_refused_page_does_not_end_the_list(code: int) -> None:
    async def sometimes(nth: int, _first: int, _limit: int) -> web.Response | None:
        return web.json_response({}, status=code, headers={"Retry-After": "0.01"}) if nth % 3 == 0 else None

    collection = Collection(20 * LIST_CHUNK, fault=sometimes)
    async with served(collection.serve) as (client, _):
        listing = await client.list(PODS)
    assert len(set(names(listing.items))) == len(listing.items) == 20 * LIST_CHUNK


async def test_a_page_that_never_comes_ends_the_list_with_an_error() -> None:
    async def never(_nth: int, first: int, _limit: int) -> web.Response | None:
        return web.json_response({}, status=500) if first else None

    collection = Collection(2 * LIST_CHUNK, fault=never)
    async with served(collection.serve) as (client, _):
        with pytest.raises(ApiError):
            await client.list(PODS)
    assert len(collection.requests) == 1 + PAGE_ATTEMPTS


@pytest.mark.parametrize("expires", [1, RESTARTS])
async def test_an_expired_continue_token_begins_the_list_anew(expires: int) -> None:
    gone: list[int] = []

    async def expired(_nth: int, first: int, _limit: int) -> web.Response | None:
        if first and len(gone) < expires:
            gone.append(1)
            return web.json_response({"reason": "Expired"}, status=410)
        return None

    async with served(Collection(2 * LIST_CHUNK, fault=expired).serve) as (client, _):
        if expires == RESTARTS:
            with pytest.raises(ApiError):
                await client.list(PODS)
        else:
            listing = await client.list(PODS)
            assert names(listing.items) == [f"o{i}" for i in range(2 * LIST_CHUNK)]


@pytest.mark.parametrize("items", ['"x"', '["x"]', "[{}]", '[{"metadata": {"name": 7}}]', "{}"])
async def test_a_page_with_invalid_items_is_an_error(items: str) -> None:
    async def handler(_request: web.Request) -> web.Response:
        return web.Response(text='{"metadata": {}, "items": ' + items + "}")

    async with served(handler) as (client, _):
        if items == "{}":
            assert (await client.list(PODS)).items == []
        else:
            with pytest.raises(ApiError):
                await client.list(PODS)


def pod(i: int, *, gpus: int = 1, padding: int = 10_000) -> dict[str, Any]:
    """A pod of realistic size; the operator needs few of its fields."""
    environment = [{"name": f"VAR_{k}", "value": "v" * 90} for k in range(padding // 120)]
    resources = {"limits": {"nvidia.com/gpu": str(gpus)} if gpus else {}}
    meta = {"name": f"o{i}", "namespace": "n", "uid": f"uid-{i}", "resourceVersion": "9"}
    return {
        "metadata": meta
        | {"labels": {f"l{k}": "x" * 40 for k in range(10)}, "annotations": {"a": "y" * 500}},
        "spec": {"nodeName": f"n{i % 50}", "containers": [{"env": environment, "resources": resources}]},
        "status": {"phase": "Running", "containerStatuses": [{"name": "c", "state": {"running": {}}}]},
    }


def kept_of_each(texts: list[str], reduced: Any) -> float:
    """Bytes that stay of each object, read and reduced one after the other."""
    first = reduced(json.loads(texts[0]))  # what is made once is not counted
    tracemalloc.start()
    reduced_objects = [reduced(json.loads(text)) for text in texts]
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(reduced_objects) == len(texts)
    assert (first is None) == (reduced_objects[0] is None)
    return size / len(texts)


def test_a_reduced_pod_with_gpu_takes_under_2_kib_and_others_are_dropped() -> None:
    assert 10_000 < len(json.dumps(pod(0))) < 20_000

    assert kept_of_each([json.dumps(pod(i)) for i in range(300)], kept_fields.pod) < 2 * 1024
    assert kept_of_each([json.dumps(pod(i, gpus=0)) for i in range(300)], kept_fields.pod) < 64


OWNER = Identity("n", "chat", "uid-1")


def padded(part: str) -> dict[str, Any]:
    """A child of 1.4 MB: as many small values as users can add to it."""
    obj = manifests.service(OWNER)
    obj["metadata"] |= {"uid": "u", "resourceVersion": "9"}
    few = {f"k{i}.example/{i:06}": "v" * 10 for i in range(8_000)}
    many = [{"name": f"v{i}", "value": "x"} for i in range(45_000)]
    if part == "spec":
        obj["spec"]["template"] = {"spec": {"containers": [{"env": many}]}}
    else:
        obj["metadata"][part] = obj["metadata"].get(part, {}) | few if part != "finalizers" else list(few)
    return obj


@pytest.mark.parametrize("part", ["spec", "annotations", "labels", "finalizers", "managedFields"])
@pytest.mark.parametrize(
    "reduced", [kept_fields.owned_object, kept_fields.custom_resource], ids=["child", "own"]
)
def test_fields_added_by_users_are_not_kept(part: str, reduced: Any) -> None:
    if (part, reduced) == ("spec", kept_fields.custom_resource):
        pytest.skip("bounded by the CRD")
    assert kept_of_each([json.dumps(padded(part))] * 3, reduced) < 16 * 1024


def test_a_rendered_deployment_is_kept_whole_and_a_padded_one_differs() -> None:
    rendered = manifests.service(OWNER)
    light, heavy = kept_fields.owned_object(deepcopy(rendered)), kept_fields.owned_object(padded("spec"))

    assert light is not None
    assert heavy is not None
    assert up_to_date(light, rendered)
    assert not up_to_date(heavy, rendered)
    assert kept_fields.owned_object({**rendered, "metadata": {"name": "x", "namespace": "n"}}) is None


async def test_objects_of_the_largest_size_come_in_small_pages() -> None:
    blob = "z" * 1_500_000
    count = 40  # 60 MB

    def fat(i: int) -> dict[str, Any]:
        meta = {"name": f"o{i}", "namespace": "n", "resourceVersion": "9", "annotations": {"x": blob}}
        return {"metadata": meta}

    collection = Collection(count, make=fat)
    async with served(collection.serve) as (client, _):
        listing = await client.list(
            DEPLOYMENTS, reduce=lambda obj: {"metadata": {"name": obj["metadata"]["name"]}}
        )
    assert names(listing.items) == [f"o{i}" for i in range(count)]
    largest = max(limit for first, limit in collection.requests[8:])
    assert largest * 1_500_000 < PAGE_BYTES < MAX_BODY_BYTES
    assert len(collection.requests) < 30


async def test_one_object_that_cannot_be_reduced_does_not_end_the_mirror(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def picky(obj: dict[str, Any]) -> dict[str, Any]:
        if obj["metadata"]["name"] == "o1":
            raise ValueError("odd")
        return obj

    async with served(Collection(3).serve) as (client, _):
        mirror = Mirror(client, MirrorSource(PODS, picky), changed=lambda: None, clock=lambda: 0.0)
        await mirror.refresh()
        assert sorted(obj["metadata"]["name"] for obj in mirror.store) == ["o0", "o2"]
    assert "o1 is unreadable and left out" in caplog.text
