"""The API client against a server that throttles, rotates tokens, answers wrongly and hangs."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from tangram.kube.client import REQUEST_TIMEOUT_S, ApiClient, ApiError, _event
from tangram.kube.credentials import InClusterCredentials
from tangram.kube.kinds import DEPLOYMENTS, PODS
from tangram.shell.lead.lease import NotLeader
from tests.support.plain_credentials import PlainCredentials

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def served(
    handler: Handler, timeout_s: float = REQUEST_TIMEOUT_S
) -> AsyncIterator[tuple[ApiClient, list[tuple[str, str, str]]]]:
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", handler)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    counted: list[tuple[str, str, str]] = []
    client = ApiClient(
        PlainCredentials(f"http://127.0.0.1:{runner.addresses[0][1]}"),
        lambda *what: counted.append(what),
        timeout_s=timeout_s,
    )
    try:
        yield client, counted
    finally:
        await client.close()
        await runner.cleanup()


async def test_429_with_retry_after_is_honoured_and_counted() -> None:
    delays: list[float] = []

    async def handler(_request: web.Request) -> web.Response:
        delays.append(time.monotonic())
        if len(delays) == 1:
            return web.json_response(
                {"reason": "TooManyRequests"}, status=429, headers={"Retry-After": "0.2"}
            )
        return web.json_response({"metadata": {"name": "x"}})

    async with served(handler) as (client, counted):
        assert await client.get(PODS, "n", "x") == {"metadata": {"name": "x"}}
    assert delays[1] - delays[0] >= 0.2
    assert [code for _, _, code in counted] == ["429", "200"]


async def test_endless_throttling_ends_in_an_error_with_its_duration() -> None:
    async def handler(_request: web.Request) -> web.Response:
        return web.json_response({}, status=429, headers={"Retry-After": "0.01"})

    async with served(handler) as (client, counted):
        with pytest.raises(ApiError) as error:
            await client.get(PODS, "n", "x")
    assert error.value.status == 429
    assert error.value.transient
    assert error.value.retry_after_s == 0.01
    assert len(counted) == 3


async def test_a_401_is_retried_once_with_a_fresh_token() -> None:
    async def handler(request: web.Request) -> web.Response:
        ok = request.headers["Authorization"] == "Bearer new"
        return web.json_response({} if ok else {"reason": "Unauthorized"}, status=200 if ok else 401)

    async with served(handler) as (client, _):
        assert await client.get(PODS, "n", "x") == {}


async def test_a_write_after_the_lease_has_expired_is_not_sent() -> None:
    called = False

    async def handler(_request: web.Request) -> web.Response:
        nonlocal called
        called = True
        return web.json_response({})

    def over() -> float:
        raise NotLeader

    async with served(handler) as (client, _):
        with pytest.raises(NotLeader):
            await client.apply(DEPLOYMENTS, {"metadata": {"name": "x"}}, manager="m", force=True, guard=over)
    assert not called


async def test_a_write_never_outlives_the_lease() -> None:
    over = asyncio.Event()

    async def handler(_request: web.Request) -> web.Response:
        await over.wait()
        return web.json_response({})

    async with served(handler) as (client, _):
        start = time.monotonic()
        with pytest.raises(ApiError) as error:
            await client.apply(
                DEPLOYMENTS, {"metadata": {"name": "x"}}, manager="m", force=True, guard=lambda: 0.3
            )
        assert time.monotonic() - start < REQUEST_TIMEOUT_S / 2  # without a lease it would take all of it
        over.set()
    assert error.value.status == 0


@pytest.mark.parametrize("text", ["<html>", "[1]", '"x"', '{"half": '])
async def test_an_answer_that_is_not_an_object_is_an_error(text: str) -> None:
    async def handler(_request: web.Request) -> web.Response:
        return web.Response(text=text)

    async with served(handler) as (client, _):
        with pytest.raises(ApiError) as error:
            await client.get(PODS, "n", "x")
    assert error.value.transient


async def test_a_long_list_comes_in_chunks_and_is_reduced_at_once() -> None:
    async def handler(request: web.Request) -> web.Response:
        page = int(request.query.get("continue") or 0)
        meta = {"resourceVersion": "9"} | ({"continue": str(page + 1)} if page < 2 else {})
        items = [{"metadata": {"name": f"{page}-{i}"}} for i in range(2)]
        return web.json_response({"metadata": meta, "items": items})

    def odd(obj: dict) -> dict | None:
        return obj if obj["metadata"]["name"].endswith("1") else None

    async with served(handler) as (client, _):
        listing = await client.list(PODS, reduce=odd)
    assert [o["metadata"]["name"] for o in listing.items] == ["0-1", "1-1", "2-1"]
    assert listing.resource_version == "9"


async def test_a_watch_event_may_exceed_line_limits_and_be_split_anywhere() -> None:
    big = "x" * 700_000

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        text = (
            '{"type":"ADDED","object":{"metadata":{"name":"'
            + big
            + '"}}}\n{"type":"BOOKMARK","object":{}}\n{"type":'
        )
        for at in range(0, len(text), 65_001):
            await response.write(text[at : at + 65_001].encode())
        return response

    async with served(handler) as (client, _):
        events = [event async for event in client.watch(PODS, "1")]
    assert [event.type for event in events] == ["ADDED", "BOOKMARK"]
    assert events[0].object["metadata"]["name"] == big


def test_a_rotated_token_is_read_again(tmp_path: Path) -> None:
    clock = [0.0]
    (tmp_path / "token").write_text("one\n")
    credentials = InClusterCredentials("https://x", tmp_path, clock=lambda: clock[0])
    assert credentials.token() == "one"

    (tmp_path / "token").write_text("two\n")
    assert credentials.token() == "one"
    assert credentials.token(fresh=True) == "two"
    (tmp_path / "token").write_text("three\n")
    clock[0] = 61.0
    assert credentials.token() == "three"


@pytest.mark.parametrize("body", [b"[" * 5000, b'{"a":' * 5000, b"{", b"\xff", b'{"a":' + b"9" * 5000 + b"}"])
@pytest.mark.parametrize("status", [200, 500])
async def test_an_unparsable_answer_is_an_api_error(body: bytes, status: int) -> None:
    async def handler(_request: web.Request) -> web.Response:
        return web.Response(body=body, status=status, content_type="application/json")

    async with served(handler) as (client, _):
        with pytest.raises(ApiError):
            await client.get(PODS, "ns", "a")


def test_a_watch_event_that_nests_too_deep_is_an_api_error() -> None:
    with pytest.raises(ApiError, match="not JSON"):
        _event(b'{"type":"ADDED","object":' + b"[" * 5000)


def deep_pod(name: str, depth: int) -> bytes:
    """As the API server stores and returns it."""
    fields = b'{"f:\\"}":' * depth + b"{}" + b"}" * depth
    entry = b'{"manager":"x","fieldsType":"FieldsV1","fieldsV1":%s,"subresource":"status"}' % fields
    return b'{"metadata":{"name":"%s","managedFields":[%s,{"fieldsV1":{}},{"fieldsV1":null}]},"spec":{}}' % (
        name.encode(),
        entry,
    )


async def test_field_sets_that_nest_10000_levels_deep_do_not_end_a_list() -> None:
    async def handler(_request: web.Request) -> web.Response:
        items = b",".join(deep_pod(f"pod-{at}", 10_000) for at in range(3))
        return web.Response(body=b'{"items":[%s],"metadata":{}}' % items, content_type="application/json")

    async with served(handler) as (client, _):
        live_pod = await client.get(PODS, "ns", "a")
    assert live_pod is not None
    assert [pod["metadata"]["name"] for pod in live_pod["items"]] == ["pod-0", "pod-1", "pod-2"]
    assert live_pod["items"][0]["metadata"]["managedFields"][0]["subresource"] == "status"


def test_a_watch_event_with_deep_field_sets_is_read() -> None:
    event = _event(b'{"type":"ADDED","object":%s}' % deep_pod("a", 10_000))
    assert (event.type, event.object["metadata"]["name"]) == ("ADDED", "a")
