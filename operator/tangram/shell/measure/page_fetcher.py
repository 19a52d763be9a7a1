"""Fetches metrics pages from pods: bounded in time, bytes, lines and pieces, never redirected or unpacked."""

import asyncio

import httpx

from tangram.shell.measure.scraped_page import PageProblem, is_wanted

MOST_BYTES = 2**20  # of a page; an engine has 40 to 60 KiB
MOST_LINES = 4096  # that the operator reads; an engine has some 110
LONGEST_LINE = 4096  # bytes
MOST_PIECES = 4096  # of a body: a page in pieces of a byte each takes seconds of processor time
_CONNECT_S = 3.0  # one lost packet is sent again after a second


class PageFetcher:
    """GETs pages, each over a connection of its own: idle connections to a thousand pods are not kept."""

    def __init__(self, timeout_s: float, *, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._timeout_s = timeout_s
        self._client = httpx.AsyncClient(
            timeout=httpx.Timeout(timeout_s, connect=min(_CONNECT_S, timeout_s), pool=None),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
            transport=transport,
            headers={
                "Accept": "text/plain",
                "Accept-Encoding": "identity",  # what is compressed has no bound before it is whole
                "Connection": "close",
                "User-Agent": "tangram-operator",
            },
            trust_env=False,
            follow_redirects=False,  # a page may lead elsewhere
        )

    async def fetch(self, url: str) -> list[bytes]:
        """Return the lines of a page that the operator reads. Raises PageProblem."""
        try:
            async with asyncio.timeout(self._timeout_s), self._client.stream("GET", url) as response:
                return await _wanted_lines(response)
        except TimeoutError:
            raise PageProblem(f"has not sent its page within {self._timeout_s:g} s") from None
        except httpx.ConnectError:
            raise PageProblem("refuses connections") from None
        except httpx.TimeoutException as error:
            raise PageProblem(f"does not answer ({type(error).__name__})") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise PageProblem(f"has not sent a page ({type(error).__name__})") from None

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()


async def _wanted_lines(response: httpx.Response) -> list[bytes]:
    if response.status_code != 200:
        raise PageProblem(f"answers {response.status_code} to /metrics")
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise PageProblem("sends a compressed page, which was not asked for")
    wanted: list[bytes] = []
    rest, size, pieces = b"", 0, 0
    async for piece in response.aiter_raw():
        size, pieces = size + len(piece), pieces + 1
        if size > MOST_BYTES:
            raise PageProblem(f"sends a page of more than {MOST_BYTES} bytes")
        if pieces > MOST_PIECES:
            raise PageProblem(f"sends its page in more than {MOST_PIECES} pieces")
        *lines, rest = (rest + piece).split(b"\n")
        _take(lines, wanted)
        if len(rest) > LONGEST_LINE:
            raise PageProblem(f"sends a line of more than {LONGEST_LINE} bytes")
    _take([rest], wanted)
    return wanted


def _take(lines: list[bytes], wanted: list[bytes]) -> None:
    for line in filter(is_wanted, lines):
        if len(line) > LONGEST_LINE:
            raise PageProblem(f"sends a line of more than {LONGEST_LINE} bytes")
        wanted.append(line)
    if len(wanted) > MOST_LINES:
        raise PageProblem(f"sends more than {MOST_LINES} lines of metrics that the operator reads")
