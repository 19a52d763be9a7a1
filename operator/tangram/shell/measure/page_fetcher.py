"""Fetches metrics pages from pods: bounded in time, bytes, lines and pieces, never redirected or unpacked.

libcurl does it. What a pod sends unasked stays in its socket, and headers have a limit, those of interim
responses among them. aiohttp, by which the API server is called, has neither limit. It takes 0.08 CPU seconds
for 400 pages of 9 KB where libcurl takes 0.06 (benchmarks/engine_scrapes.py); but a pod that sends interim
responses without end takes 3 CPU seconds of 10, and one that floods a kept connection 40 MiB of memory a
second. libcurl gives up the first within 0.01 CPU seconds and does not read the second. httpx takes 18 CPU
seconds for the pages: each request walks the pool of kept connections.
"""

import resource
from typing import Any

from tangram.shell.measure.scraped_page import PageProblem, wanted_lines

MOST_BYTES = 2**20  # of a page; an engine has 40 to 60 KiB
MOST_LINES = 4096  # that the operator reads; an engine has some 110
LONGEST_LINE = 4096  # bytes
MOST_PIECES = 4096  # of a body: a page in pieces of a byte each takes seconds of processor time
_CONNECT_S = 3.0  # one lost packet is sent again after a second
_MOST_KEPT = 2048  # connections; each is kept for the next scrape
_PIECE_BYTES = 2**16  # at most
_ERRORS = {
    1: "no HTTP",
    8: "no HTTP",
    18: "it was cut off",
    52: "an empty answer",
    55: "sending failed",
    56: "receiving failed",
    61: "a coding that was not asked for",
    100: "too many headers",
}
_HEADERS = (
    "Accept: text/plain",
    "Accept-Encoding: identity",  # what is compressed has no bound before it is whole
    "User-Agent: tangram-operator",
)


class PageFetcher:
    """GETs pages, over connections that are kept between scrapes where the pod keeps them, too."""

    def __init__(self, timeout_s: float) -> None:
        import pycurl  # noqa: PLC0415  # 10 MiB that an operator with a Prometheus does without

        self._curl, self._timeout_s = pycurl, timeout_s
        self._multi = pycurl.AsyncCurlMulti()
        self._multi.setopt(pycurl.M_MAXCONNECTS, _kept_connections())
        self._idle: list[tuple[Any, _Page]] = []  # handles, and the page that each one fills

    async def fetch(self, url: str, *, whole: bool = False) -> list[bytes]:
        """Return the lines of a page that the operator reads, or all of them. Raises PageProblem."""
        curl = self._curl
        handle, page = self._idle.pop() if self._idle else self._new_handle()
        page.is_whole = whole
        handle.setopt(curl.URL, url)
        problem = None
        try:
            await self._multi.perform(handle)
        except curl.error as error:
            problem = self._problem(handle, error.args[0])
        self._idle.append((handle, page))  # but not if it was cancelled: it then is in use still
        return page.end(problem)

    async def close(self) -> None:
        """Close all connections."""
        await self._multi.aclose()

    def _new_handle(self) -> tuple[Any, "_Page"]:
        curl, handle, page = self._curl, self._curl.Curl(), _Page()
        for option, value in (
            (curl.TIMEOUT_MS, max(1, round(1000 * self._timeout_s))),
            (curl.CONNECTTIMEOUT_MS, max(1, round(1000 * min(_CONNECT_S, self._timeout_s)))),
            (curl.NOSIGNAL, 1),
            (curl.PROTOCOLS, curl.PROTO_HTTP),
            (curl.HTTP_VERSION, curl.CURL_HTTP_VERSION_1_1),
            (curl.FOLLOWLOCATION, 0),  # a page may lead elsewhere
            (curl.PROXY, ""),  # nor where the environment leads
            (curl.NETRC, curl.NETRC_IGNORED),
            (curl.HTTPHEADER, list(_HEADERS)),
            (curl.BUFFERSIZE, _PIECE_BYTES),
            (curl.HEADERFUNCTION, page.take_header),
            (curl.WRITEFUNCTION, page.take),
        ):
            handle.setopt(option, value)
        return handle, page

    def _problem(self, handle: Any, code: int) -> PageProblem:
        curl = self._curl
        if code == curl.E_COULDNT_CONNECT:
            return PageProblem("refuses connections")
        if code != curl.E_OPERATION_TIMEDOUT:
            return PageProblem(f"has not sent a page ({_ERRORS.get(code, f'error {code} of libcurl')})")
        if not handle.getinfo(curl.CONNECT_TIME):
            return PageProblem("does not answer (ConnectTimeout)")
        return PageProblem(f"has not sent its page within {self._timeout_s:g} s")


class _Page:
    """A page as it comes. What `take` and `take_header` return tells libcurl whether to go on."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self.is_whole = False  # whether all lines are kept
        self.problem: PageProblem | None = None
        self._wanted: list[bytes] = []
        self._buffer: list[bytes] = []  # pieces; the first begins a line
        self._newlines = 0  # in the buffer
        self._size = self._pieces = self._line_bytes = 0

    def take_header(self, line: bytes) -> int | None:
        """Take the status or a header."""
        name, _, value = line.partition(b":")
        if line.startswith(b"HTTP/"):
            status = line.split(None, 2)[1:2]
            if status != [b"200"] and not b"".join(status).startswith(b"1"):  # interim responses do not count
                return self._refuse(f"answers {b''.join(status)[:3].decode(errors='replace')} to /metrics")
        elif name.lower() == b"content-encoding" and value.strip().lower() != b"identity":
            return self._refuse("sends a compressed page, which was not asked for")
        return None

    def take(self, piece: bytes) -> int | None:
        """Take a piece of the body."""
        self._size, self._pieces = self._size + len(piece), self._pieces + 1
        self._buffer.append(piece)
        end = piece.rfind(b"\n") + 1
        self._line_bytes = len(piece) - end if end else self._line_bytes + len(piece)
        self._newlines += piece.count(b"\n")
        if self._size > MOST_BYTES:
            return self._refuse(f"sends a page of more than {MOST_BYTES} bytes")
        if self._pieces > MOST_PIECES:
            return self._refuse(f"sends its page in more than {MOST_PIECES} pieces")
        if self._newlines > MOST_LINES:
            self._select(b"".join(self._buffer))
        if self._line_bytes > LONGEST_LINE:
            self._refuse_long_line()
        return None if self.problem is None else 0

    def end(self, problem: PageProblem | None) -> list[bytes]:
        """Return the lines that the operator reads, and begin anew. Raises PageProblem.

        `problem`: why the page has not come, unless it was refused.
        """
        if problem is None:
            self._select(b"".join(self._buffer) + b"\n")
        problem, wanted = self.problem or problem, self._wanted
        self._begin()
        if problem is not None:
            raise problem
        return wanted

    def _select(self, text: bytes) -> None:
        """Keep of the lines that have come what the operator reads."""
        end = text.rfind(b"\n") + 1
        lines = text[:end].splitlines() if self.is_whole else wanted_lines(text[:end])
        self._wanted += lines
        self._buffer, self._newlines = [text[end:]], 0
        if lines and max(map(len, lines)) > LONGEST_LINE:
            self._refuse_long_line()
        if len(self._wanted) > MOST_LINES:
            self._refuse(f"sends more than {MOST_LINES} lines of metrics that the operator reads")

    def _refuse_long_line(self) -> None:
        self._refuse(f"sends a line of more than {LONGEST_LINE} bytes")

    def _refuse(self, problem: str) -> int:
        self.problem = self.problem or PageProblem(problem)
        return 0


def _kept_connections() -> int:
    """Return how many connections are kept: at most half of the files that the process may open."""
    return max(1, min(_MOST_KEPT, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2))
