"""Instant queries to the HTTP API of a Prometheus: bounded in time and size, never redirected."""

import asyncio
import re
import ssl
from functools import lru_cache
from urllib.parse import quote

import httpx

from tangram.shell.measure.prometheus_access import (
    PrometheusAccess,
    PrometheusAccessError,
    read_access,
)
from tangram.shell.settings import PrometheusSettings

# Of a response. The event loop stands still while it is parsed, for some 15 ms at these limits. A query names
# at most 3,000 pods, so its rows are as many at most, of some 200 bytes and 9 values each.
MAX_RESPONSE_BYTES = 4 * 2**20
MOST_VALUES = 60_000  # of JSON: objects, arrays, numbers and strings
_BEFORE_VALUES = (b",", b"{", b"[")  # each value stands behind one of them
# What stands in the queries beside letters, digits and -._~, which stand for themselves (RFC 3986). `%` is
# replaced first.
_ESCAPES = {char: f"%{ord(char):02X}" for char in '%|" $()*+,/:<=>@[\\]^{}'}
_ENCODED = re.compile(r"[A-Za-z0-9._~%-]*")
_ABOUT_SERIES = frozenset({400, 422})  # Prometheus could not evaluate the query: bad_data, execution

_EXPLAINED = {
    401: "the token or the headers of prometheus.auth are missing or not accepted",
    403: "the token or the headers of prometheus.auth do not give access",
}


class QueryFailed(Exception):  # becomes the problem of a reading
    """Prometheus returned no usable result for one query."""


class QueryUnanswerable(QueryFailed):
    """Prometheus answered, but its series cannot be used: a query about others of them may succeed."""


class Prometheus:
    """One Prometheus, with the access that its files give now."""

    def __init__(
        self, settings: PrometheusSettings, *, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self._settings, self._transport = settings, transport
        self._access = PrometheusAccess()
        self._client: httpx.AsyncClient | None = None

    async def refresh(self) -> None:
        """Read token, headers and authority again. Raises QueryFailed if a file cannot be used."""
        try:
            access = read_access(self._settings)
            if self._client is None or access.authority != self._access.authority:
                client = self._new_client(access)
                await self.close()
                self._client = client
        except PrometheusAccessError as error:
            raise QueryFailed(str(error)) from error
        self._access = access

    async def query(self, promql: str, at: float | None) -> bytes:
        """POST a query (proxies cut the long URL of a GET) and return its bounded response."""
        return await self._post("query", promql, "" if at is None else f"&time={at:.3f}")

    async def query_range(self, promql: str, start: float, end: float, step_s: float) -> bytes:
        """POST a query for each `step_s` from `start` to `end`, and return its bounded response."""
        return await self._post("query_range", promql, f"&start={start:.3f}&end={end:.3f}&step={step_s:g}")

    async def _post(self, endpoint: str, promql: str, times: str) -> bytes:
        if self._client is None:
            raise QueryFailed("Prometheus has not been asked yet")
        # In whole milliseconds: Prometheus refuses durations such as 2.5s.
        timeout_ms = max(1, round(self._settings.timeout_seconds * 1000))
        form = f"query={percent_encoded(promql)}&timeout={timeout_ms}ms{times}"
        headers = {**self._access.headers, "Content-Type": "application/x-www-form-urlencoded"}
        timeout_s = self._settings.timeout_seconds
        try:
            # The client's own timeout begins anew with every byte: a body that trickles would have no end.
            async with (
                asyncio.timeout(timeout_s),
                self._client.stream(
                    "POST", f"api/v1/{endpoint}", content=form.encode(), headers=headers
                ) as response,
            ):
                return await _bounded_body(response)
        except TimeoutError as error:
            raise QueryFailed(f"Prometheus did not answer within {timeout_s:g} s") from error
        except httpx.HTTPError as error:
            raise QueryFailed(_unreachable(error)) from error

    async def close(self) -> None:
        """Close all connections."""
        if self._client is not None:
            await self._client.aclose()

    def _new_client(self, access: PrometheusAccess) -> httpx.AsyncClient:
        context = access.ssl_context()
        return httpx.AsyncClient(
            base_url=self._settings.url.rstrip("/") + "/",
            timeout=self._settings.timeout_seconds,
            transport=self._transport,
            # What is compressed has no bound before it is whole; and the network is local.
            headers={"Accept": "application/json", "Accept-Encoding": "identity"},
            verify=True if context is None else context,
            trust_env=False,
            follow_redirects=False,  # the token is for this server, and a redirect may lead elsewhere
        )


@lru_cache(maxsize=32)  # queries of 100 KB at most, of which a round has some 20
def percent_encoded(text: str) -> str:
    """Return `text` as a value of a form. Much faster than urllib, for a text with many names of pods."""
    encoded = text
    for char, escape in _ESCAPES.items():
        encoded = encoded.replace(char, escape)
    return encoded if _ENCODED.fullmatch(encoded) else quote(text, safe="")


async def _bounded_body(response: httpx.Response) -> bytes:
    if response.is_redirect:
        raise QueryFailed(
            f"Prometheus answered {response.status_code}, a redirect, which is not followed: set "
            "prometheus.url to its target"
        )
    if response.status_code != 200:
        if response.status_code in _ABOUT_SERIES:
            raise QueryUnanswerable(f"Prometheus answered {response.status_code}")
        explained = _EXPLAINED.get(response.status_code)
        raise QueryFailed(
            f"Prometheus answered {response.status_code}" + (f": {explained}" if explained else "")
        )
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise QueryFailed("Prometheus answered with a compressed body, which was not asked for")
    body, values = bytearray(), 0
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > MAX_RESPONSE_BYTES:
            raise QueryUnanswerable(f"Prometheus answered with more than {MAX_RESPONSE_BYTES} bytes")
        values += sum(map(chunk.count, _BEFORE_VALUES))
        if values > MOST_VALUES:
            raise QueryUnanswerable(
                f"Prometheus answered with more than {MOST_VALUES} values, for more rows than there are pods"
            )
    return bytes(body)


def _unreachable(error: httpx.HTTPError) -> str:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"the certificate of Prometheus is not accepted ({cause.verify_message})"
        cause = cause.__cause__ or cause.__context__
    return f"Prometheus does not answer ({type(error).__name__})"
