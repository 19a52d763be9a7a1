"""Metrics pages over HTTP from pods that break every rule; each ends in one clear problem, in time."""

import asyncio
import gzip
import resource
import time
from contextlib import asynccontextmanager, suppress

import pytest

from tangram.scaling.queries import RUNNING, WAITING
from tangram.shell.measure import page_fetcher
from tangram.shell.measure.page_fetcher import PageFetcher
from tangram.shell.measure.scraped_page import PageProblem

OK = b"HTTP/1.1 200 OK\r\n"
LINE = f'{RUNNING}{{model_name="m"}} 1\n'.encode()


@asynccontextmanager
async def pod(reply):
    """A server whose `reply(reader, writer)` follows a request; its URL, and the requests that it had."""
    requests = []

    async def handle(reader, writer):
        requests.append(await reader.readuntil(b"\r\n\r\n"))
        try:
            await reply(writer)
            await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/metrics", requests
    finally:
        server.close()


def sends(*parts):
    async def reply(writer):
        for part in parts:
            writer.write(part)
            await writer.drain()

    return reply


async def fetched(reply, timeout_s=5.0):
    fetcher = PageFetcher(timeout_s)
    try:
        async with pod(reply) as (url, _):
            return await fetcher.fetch(url)
    finally:
        await fetcher.close()


async def test_the_lines_that_the_operator_reads_are_returned():
    body = b"# HELP a b\nother 1\n" + LINE + f'{WAITING}{{model_name="m"}} 2'.encode()

    lines = await fetched(sends(OK + b"Content-Length: %d\r\n\r\n" % len(body), body[:30], body[30:]))

    assert lines == [LINE[:-1], f'{WAITING}{{model_name="m"}} 2'.encode()]


async def test_a_page_of_many_lines_is_read_whole_wherever_its_pieces_end():
    wanted = [f'{RUNNING}{{model_name="m",engine="{number}"}} 1'.encode() for number in range(60)]
    body = b"\n".join(line for each in wanted for line in (*[b"# nothing"] * 150, each))
    pieces = [body[begin : begin + 999] for begin in range(0, len(body), 999)]

    assert body.count(b"\n") > 2 * page_fetcher.MOST_LINES
    assert await fetched(sends(OK + b"Content-Length: %d\r\n\r\n" % len(body), *pieces)) == wanted


async def test_a_request_asks_for_an_unpacked_page_and_shows_nothing_of_the_operator():
    fetcher = PageFetcher(5)
    async with pod(sends(OK + b"Content-Length: 0\r\n\r\n")) as (url, requests):
        await fetcher.fetch(url)
    await fetcher.close()

    (request,) = requests
    headers = request.decode().lower().split("\r\n")
    assert headers[0] == "get /metrics http/1.1"
    assert "accept-encoding: identity" in headers
    assert not [header for header in headers if header.startswith(("authorization", "cookie"))]


class KeptConnections:
    """A server that answers over and over, and then does `afterwards(writer)`."""

    def __init__(self, afterwards=None):
        self.connections = self.requests = 0
        self._afterwards, self._writers = afterwards, []

    async def _handle(self, reader, writer):
        self.connections += 1
        self._writers.append(writer)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while await reader.readuntil(b"\r\n\r\n"):
                self.requests += 1
                writer.write(OK + b"Content-Length: %d\r\n\r\n" % len(LINE) + LINE)
                await writer.drain()
                if self._afterwards:
                    self._afterwards(writer)

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._handle, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/metrics"
        return self

    async def __aexit__(self, *_):
        self._server.close()
        for writer in self._writers:
            writer.close()


@asynccontextmanager
async def fetcher_of(timeout_s=5.0):
    fetcher = PageFetcher(timeout_s)
    try:
        yield fetcher
    finally:
        await fetcher.close()


async def test_a_connection_that_the_pod_keeps_serves_the_next_scrape():
    async with KeptConnections() as kept, fetcher_of() as fetcher:
        pages = [await fetcher.fetch(kept.url) for _ in range(3)]

        assert pages == [[LINE[:-1]]] * 3
        assert (kept.requests, kept.connections) == (3, 1)


async def test_a_connection_that_the_pod_has_closed_costs_no_scrape():
    async with KeptConnections(lambda writer: writer.close()) as closing, fetcher_of() as fetcher:
        for _ in range(3):
            assert await fetcher.fetch(closing.url) == [LINE[:-1]]


async def test_pods_are_asked_side_by_side():
    begun, all_begun = [], asyncio.Event()

    async def waits_for_the_others(writer):
        begun.append(1)
        if len(begun) == 3:
            all_begun.set()
        await all_begun.wait()
        writer.write(OK + b"Content-Length: %d\r\n\r\n" % len(LINE) + LINE)

    async with pod(waits_for_the_others) as (url, _), fetcher_of() as fetcher:
        assert await asyncio.gather(*(fetcher.fetch(url) for _ in range(3))) == [[LINE[:-1]]] * 3


async def test_what_a_pod_sends_unasked_stays_in_its_socket():
    more = OK + b"Content-Length: 3\r\n\r\nbad"
    blocked = asyncio.Event()

    def floods(writer):
        async def flood():
            with suppress(ConnectionError, TimeoutError):
                async with asyncio.timeout(1):
                    while True:
                        writer.write(more * 10_000)
                        await writer.drain()
            blocked.set()

        flooding.append(asyncio.ensure_future(flood()))

    flooding = []
    async with KeptConnections(floods) as flooder, fetcher_of() as fetcher:
        assert await fetcher.fetch(flooder.url) == [LINE[:-1]]
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        await blocked.wait()
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024  # KiB
        await fetcher.fetch(flooder.url)  # what was sent in advance, or the answer: of this pod, either way
        await asyncio.gather(*flooding)


async def test_a_scrape_that_is_cancelled_leaves_the_others_alone():
    async with pod(silence) as (silent, _), KeptConnections() as kept, fetcher_of() as fetcher:
        scrape = asyncio.ensure_future(fetcher.fetch(silent))
        await fetcher.fetch(kept.url)
        scrape.cancel()

        pages = await asyncio.gather(
            scrape, *(fetcher.fetch(kept.url) for _ in range(2)), return_exceptions=True
        )

        assert isinstance(pages[0], asyncio.CancelledError)
        assert pages[1:] == [[LINE[:-1]]] * 2


async def test_proxies_of_the_environment_are_not_asked(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")

    async with KeptConnections() as kept, fetcher_of() as fetcher:
        assert await fetcher.fetch(kept.url) == [LINE[:-1]]


async def endless_line(writer):
    writer.write(OK + b"\r\n")
    while True:
        writer.write(b"x" * 65536)
        await writer.drain()


async def endless_lines(writer):
    writer.write(OK + b"\r\n")
    while True:
        writer.write(LINE * 1000)
        await writer.drain()


async def endless_comments(writer):
    writer.write(OK + b"\r\n")
    while True:
        writer.write(b"# nothing\n" * 6000)
        await writer.drain()


async def slow_body(writer):
    writer.write(OK + b"\r\n")
    while True:
        writer.write(b"#\n")
        await writer.drain()
        await asyncio.sleep(0.01)


async def silence(_writer):
    await asyncio.sleep(30)


async def one_byte_pieces(writer):
    writer.write(OK + b"Transfer-Encoding: chunked\r\n\r\n")
    writer.write(b"1\r\n#\r\n" * 20_000 + b"0\r\n\r\n")


async def endless_interim_responses(writer):
    while True:
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000)
        await writer.drain()


PACKED = gzip.compress(LINE * 10)
HOSTILE = {
    "endless line": (endless_line, "a line of more than"),
    "endless series": (endless_lines, "more than 4096 lines"),
    "endless comments": (endless_comments, "more than 1048576 bytes"),
    "slow body": (slow_body, "within"),
    "silence": (silence, "within|does not answer"),
    "pieces of a byte": (one_byte_pieces, "pieces"),
    "not found": (sends(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"), "answers 404"),
    "redirect": (sends(b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\n\r\n"), "answers 302"),
    "gzip": (
        sends(OK + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(PACKED), PACKED),
        "compressed",
    ),
    "endless interim responses": (endless_interim_responses, "receiving failed|too many headers"),
    "coded transfer": (
        sends(OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"),
        "coding that was not asked for",
    ),
    "another protocol": (
        sends(b"HTTP/1.1 301 Moved\r\nLocation: file:///etc/passwd\r\nContent-Length: 0\r\n\r\n"),
        "answers 301",
    ),
    "no HTTP": (sends(b"SSH-2.0-OpenSSH_9.6\r\n"), "no HTTP"),
    "endless headers": (
        sends(OK, *[b"X-%d: y\r\n" % n for n in range(20_000)]),
        "too many headers",
    ),
    "cut body": (sends(OK + b"Content-Length: 500\r\n\r\n", LINE), "cut off"),
}  # fmt: skip


@pytest.mark.parametrize("kind", HOSTILE)
async def test_a_hostile_pod_gives_one_problem_within_the_time_limit(kind):
    reply, problem = HOSTILE[kind]
    begin = time.monotonic()

    with pytest.raises(PageProblem, match=problem):
        await fetched(reply, timeout_s=1.0)

    assert time.monotonic() - begin < 10


async def test_a_closed_port_refuses_connections():
    async with pod(silence) as (url, _):
        pass
    fetcher = PageFetcher(1.0)

    with pytest.raises(PageProblem, match="refuses connections"):
        await fetcher.fetch(url)
    await fetcher.close()


async def test_a_redirect_is_never_followed():
    fetcher, secrets = PageFetcher(2.0), []

    async def secret(writer):
        secrets.append(1)
        writer.write(OK + b"Content-Length: 0\r\n\r\n")

    async with pod(secret) as (target, _):
        redirect = b"HTTP/1.1 301 Moved\r\nLocation: %s\r\nContent-Length: 0\r\n\r\n" % target.encode()
        async with pod(sends(redirect)) as (url, _):
            with pytest.raises(PageProblem, match="301"):
                await fetcher.fetch(url)
    await fetcher.close()

    assert secrets == []


async def test_a_long_line_that_the_operator_reads_is_refused():
    long = f'{RUNNING}{{model_name="{"m" * page_fetcher.LONGEST_LINE}"}} 1\n'.encode()

    with pytest.raises(PageProblem, match="a line of more than"):
        await fetched(sends(OK + b"Content-Length: %d\r\n\r\n" % len(long), long))
