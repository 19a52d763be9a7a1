"""Hostile servers: each watch and call ends in one `ApiError`, in bounded time and memory."""

import asyncio
import json
import zlib
from collections.abc import AsyncIterator, Iterable

import pytest
from aiohttp import web

from tangram.kube import client as client_module
from tangram.kube import response_body
from tangram.kube.client import ApiClient, ApiError, WatchEvent, failure_of
from tangram.kube.kinds import GPU_NODES, PODS
from tests.kube.test_client_calls import served

NODE_EVENT = b'{"type": "ADDED", "object": {"metadata": {"name": "a"}}}\n'


class Stream:
    """Answers each request with `chunks`; None stays silent."""

    def __init__(self, *chunks: bytes | None, status: int = 200) -> None:
        self.chunks: Iterable[bytes | None] = chunks
        self.status, self.sent = status, 0
        self.requests: list[web.Request] = []

    async def serve(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        response = web.StreamResponse(status=self.status)
        await response.prepare(request)
        for chunk in self.chunks:
            if chunk is None:
                await asyncio.sleep(3600)
            else:
                await response.write(chunk)
                self.sent += len(chunk)
        return response


async def events_of(client: ApiClient, version: str | None = None) -> AsyncIterator[WatchEvent]:
    async for event in client.watch(GPU_NODES, version, field_selector="metadata.name=a"):
        yield event


async def watched(stream: Stream, version: str | None = None) -> list[WatchEvent]:
    async with served(stream.serve) as (client, _):
        return [event async for event in events_of(client, version)]


async def test_a_watch_asks_for_bookmarks_and_an_end_and_is_not_compressed() -> None:
    stream = Stream(NODE_EVENT[:20], NODE_EVENT[20:] + b"\n", b'{"unfinished')

    (event,) = await watched(stream, "17")

    assert event == WatchEvent("ADDED", {"metadata": {"name": "a"}})
    (request,) = stream.requests
    assert request.path == "/apis/tangram.dev/v1alpha1/gpunodes"
    assert dict(request.query) == {
        "watch": "true",
        "allowWatchBookmarks": "true",
        "timeoutSeconds": "300",
        "resourceVersion": "17",
        "fieldSelector": "metadata.name=a",
    }
    assert request.headers["Authorization"] == "Bearer old"
    assert request.headers["Accept-Encoding"] == "identity"


async def test_a_watch_without_a_version_names_none_so_that_it_begins_with_the_objects() -> None:
    stream = Stream()

    await watched(stream)

    assert "resourceVersion" not in stream.requests[0].query


async def test_that_a_watch_was_accepted_is_known_before_its_first_event() -> None:
    opened = asyncio.Event()
    async with served(Stream(b"", None).serve) as (client, _):
        watch = client.watch(GPU_NODES, "5", on_open=opened.set)
        reading = asyncio.ensure_future(anext(watch))
        async with asyncio.timeout(20):
            await opened.wait()
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


@pytest.mark.parametrize("status", [302, 403, 410, 500])
async def test_a_watch_that_is_refused_has_the_status_of_the_refusal(status: int) -> None:
    with pytest.raises(ApiError) as error:
        await watched(Stream(b"{}", status=status))

    assert error.value.status == status


async def test_an_event_without_an_end_is_given_up_before_it_fills_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(response_body, "MAX_BODY_BYTES", 2**16)
    stream = Stream()
    stream.chunks = (b"x" * 2**14 for _ in range(4000))

    with pytest.raises(ApiError, match="more than 65536 bytes"):
        await watched(stream)

    assert stream.sent < 4000 * 2**14


async def test_an_event_that_is_too_long_is_none_even_if_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_body, "MAX_BODY_BYTES", 100)

    with pytest.raises(ApiError, match="more than 100 bytes"):
        await watched(Stream(b"x" * 101 + b"\n"))


async def test_a_watch_that_says_nothing_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "WATCH_INACTIVITY_S", 0.2)

    async with served(Stream(NODE_EVENT, None).serve) as (client, counted):
        events = events_of(client)
        assert (await anext(events)).type == "ADDED"
        with pytest.raises(ApiError, match="Timeout") as error:
            await anext(events)

    assert error.value.status == 0
    assert [code for _, _, code in counted] == ["200", "error"]


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({"code": 410, "reason": "Expired", "message": "too old"}, 410),
        ({"code": 500}, 500),
        ({"code": "Gone", "message": {}}, 500),
        ({}, 500),
    ],
)
def test_an_error_in_a_watch_has_a_status(status: dict[str, object], expected: int) -> None:
    assert failure_of(WatchEvent("ERROR", status)).status == expected


@pytest.mark.parametrize("status", [301, 302, 307])
async def test_a_redirect_is_a_refusal_and_the_token_is_sent_nowhere_else(status: int) -> None:
    elsewhere = Stream(b"{}")

    async with served(elsewhere.serve) as (other, _):

        async def redirects(_request: web.Request) -> web.Response:
            place = f"{other.credentials.server}/api"
            return web.json_response({"kind": "Pod"}, status=status, headers={"Location": place})

        async with served(redirects) as (client, _):
            with pytest.raises(ApiError) as error:
                await client.get(PODS, "n", "x")
            with pytest.raises(ApiError):
                await anext(client.watch(PODS, None))

    assert error.value.status == status
    assert elsewhere.requests == []


async def test_a_compressed_body_is_bounded_by_what_it_unpacks_to() -> None:
    packed = zlib.compressobj(9, wbits=31)
    blank = b" " * 2**20
    body = b"".join(packed.compress(blank) for _ in range(256)) + packed.flush()

    async def bomb(_request: web.Request) -> web.Response:
        return web.Response(body=body, headers={"Content-Encoding": "gzip"})

    async with served(bomb) as (client, _):
        with pytest.raises(ApiError, match=f"more than {response_body.MAX_BODY_BYTES} bytes"):
            await client.get(PODS, "n", "x")


async def test_a_body_that_trickles_ends_with_the_deadline_of_the_call() -> None:
    async def trickles(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(1000):
            await response.write(b" ")
            await asyncio.sleep(0.02)
        return response

    async with served(trickles, timeout_s=0.3) as (client, _):
        began = asyncio.get_running_loop().time()
        with pytest.raises(ApiError, match="Timeout"):
            await client.get(PODS, "n", "x")
        assert asyncio.get_running_loop().time() - began < 5


async def test_a_body_that_is_cut_off_is_an_error() -> None:
    async def cut(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "500"})
        await response.prepare(request)
        await response.write(json.dumps({"metadata": {"name": "x"}}).encode())
        assert request.transport is not None
        request.transport.close()
        return response

    async with served(cut) as (client, _):
        with pytest.raises(ApiError) as error:
            await client.get(PODS, "n", "x")
    assert error.value.status == 0
