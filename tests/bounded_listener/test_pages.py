"""Pages are made at most once a second, beside the event loop, and are served within limits."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import AsyncExitStack

import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry, Gauge

from benchmarks.structure import ROOT
from tangram.shell.report import http_endpoints
from tangram_http.pages import MAX_HEADERS, PAGE_LIMITS, CachedPage, serve_pages
from tangram_http.sockets import listening_socket


class Made:
    """Counts how often a page is made, on a clock of the test."""

    def __init__(self, snapshot_s: float = 0.0) -> None:
        self.now = 0.0
        self.count = 0
        self.snapshot_s = snapshot_s
        self.may_end = threading.Event()
        self.may_end.set()

    def snapshot(self) -> Callable[[], bytes]:
        assert threading.current_thread() is threading.main_thread()
        self.now += self.snapshot_s
        return self.make

    def make(self) -> bytes:
        assert threading.current_thread() is not threading.main_thread()
        assert self.may_end.wait(30)
        self.count += 1
        return b"%d" % self.count

    def page(self) -> CachedPage:
        return CachedPage(self.snapshot, 1.0, lambda: self.now)


@pytest.mark.parametrize(("snapshot_s", "kept_s"), [(0.0, 1.0), (0.05, 1.0), (0.5, 5.0)])
async def test_a_page_is_made_once_a_second_and_less_often_where_that_takes_the_loop_long(
    snapshot_s: float, kept_s: float
) -> None:
    made = Made(snapshot_s)
    page = made.page()
    assert {*await asyncio.gather(*(page.read() for _ in range(200)))} == {b"1"}
    made.now += kept_s - 0.01
    assert await page.read() == b"1"
    made.now += 0.02
    assert {*await asyncio.gather(*(page.read() for _ in range(200)))} == {b"2"}
    assert made.count == 2


async def test_a_client_that_leaves_starts_no_second_page() -> None:
    made = Made()
    page = made.page()
    made.may_end.clear()
    for _ in range(20):
        reading = asyncio.create_task(page.read())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    last = asyncio.create_task(page.read())
    made.may_end.set()
    assert await last == b"1"
    assert made.count == 1


async def test_a_page_that_fails_fails_for_those_who_wait_and_is_made_again() -> None:
    made = Made()
    failing = [True]

    def snapshot() -> Callable[[], bytes]:
        if failing:
            failing.clear()
            raise ValueError("a metric that cannot be read")
        return made.make

    page = CachedPage(snapshot)
    with pytest.raises(ValueError, match="cannot be read"):
        await page.read()
    assert await page.read() == b"1"


async def test_probes_answer_while_a_page_of_metrics_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Made()
    made.may_end.clear()
    monkeypatch.setattr(http_endpoints, "generate_latest", lambda registry: made.make())
    async with AsyncExitStack() as stack:
        ports = []
        for app in (
            http_endpoints.probes(lambda: "", lambda: ""),
            http_endpoints.metrics(CollectorRegistry(), lambda: None),
        ):
            listening = listening_socket("127.0.0.1", 0)
            ports.append(listening.getsockname()[1])
            stack.push_async_callback((await serve_pages(app, listening)).close)
        scrapes = [await ask(stack, ports[1], "/metrics") for _ in range(40)]
        for _ in range(10):
            probe = await ask(stack, ports[0], "/livez")
            assert (await probe.readline()).startswith(b"HTTP/1.1 200 ")
        assert made.count == 0
        made.may_end.set()
        for scrape in scrapes:
            assert (await scrape.readline()).startswith(b"HTTP/1.1 200 ")
        assert made.count == 1


async def ask(stack: AsyncExitStack, port: int, path: str) -> asyncio.StreamReader:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    stack.callback(writer.close)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    return reader


async def test_a_page_of_the_operator_shows_values_of_one_moment() -> None:
    registry = CollectorRegistry()
    gauge = Gauge("a", "A.", ("of",), registry=registry)
    gauge.labels("x").set(1)
    app = http_endpoints.metrics(registry, lambda: gauge.labels("y").set(2))
    (handler,) = (route.handler for route in app.router.routes() if route.method == "GET")

    reading = asyncio.create_task(handler(None))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    gauge.clear()
    response = await reading

    assert isinstance(response, web.Response)
    assert response.body == b'# HELP a A.\n# TYPE a gauge\na{of="x"} 1.0\na{of="y"} 2.0\n'


def test_the_limits_in_the_security_document_are_those_of_the_pages() -> None:
    table = (
        (ROOT / "SECURITY.md")
        .read_text()
        .split("## The ports of operator and node agent")[1]
        .split("\n## ")[0]
    )
    limits = PAGE_LIMITS

    for stated in (
        f"{limits.connections}, and {limits.spare} more",
        f"{limits.head_bytes >> 10} KiB, {MAX_HEADERS} headers; {limits.header_seconds:g} s",
        f"{limits.answer_seconds:g} s, {limits.stall_seconds:g} s without a byte",
        f"without a request | {limits.idle_seconds:g} s",
    ):
        assert stated in table


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (b"a: b\r\n" * (MAX_HEADERS - 1), b"200"),
        (b"a: b\r\n" * MAX_HEADERS, b"400"),
        (b"a: %s\r\n" % (b"b" * 16_000), b"200"),
        (b"a: %s\r\n" % (b"b" * 16_400), b"431"),
    ],
)
async def test_the_head_of_a_request_for_a_page_is_bounded(headers: bytes, status: bytes) -> None:
    listening = listening_socket("127.0.0.1", 0)
    serving = await serve_pages(http_endpoints.probes(lambda: "", lambda: ""), listening)
    reader, writer = await asyncio.open_connection(*listening.getsockname())
    writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n" + headers + b"\r\n")
    assert (await reader.readline()).split()[1] == status
    writer.close()
    await serving.close()
