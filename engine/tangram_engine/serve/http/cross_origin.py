"""Which web pages may call this server from a browser: the CORS protocol of the Fetch standard.

A browser asks before it sends JSON or an API key (a preflight, which has no key), and withholds an answer
without these headers from the page. Cookies and passwords are never allowed: the server has none.
"""

import re
from collections.abc import Collection, Mapping

from aiohttp import hdrs, web

from .errors import APIError

ANY_ORIGIN = "*"
_METHODS = "GET, POST"
_HEADERS = "Authorization, Content-Type"  # where a preflight names none
_READABLE = "Retry-After, x-request-id, x-should-retry"  # beside those that every page may read
_HEADER_NAMES = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~, -]{1,2048}")
_PREFLIGHT_SECONDS = 600  # for which a browser need not ask again


class AllowedOrigins:
    """The origins whose pages may call the server, as `https://chat.example.com`, or any with `*`."""

    def __init__(self, origins: Collection[str]) -> None:
        self._origins = frozenset(origins)

    def headers(self, request: web.BaseRequest) -> Mapping[str, str]:
        """What every answer to a request has, refusals and streams, too."""
        headers: dict[str, str] = {}
        if ANY_ORIGIN not in self._origins:
            headers[hdrs.VARY] = hdrs.ORIGIN
        allowed = self._allowed(request)
        if allowed is not None:
            headers[hdrs.ACCESS_CONTROL_ALLOW_ORIGIN] = allowed
            headers[hdrs.ACCESS_CONTROL_EXPOSE_HEADERS] = _READABLE
        return headers

    def preflight(self, request: web.BaseRequest) -> web.Response | None:
        """The answer to a preflight, None for any other request. Raises APIError for another origin."""
        headers = request.headers
        asks = hdrs.ORIGIN in headers and hdrs.ACCESS_CONTROL_REQUEST_METHOD in headers
        if request.method != hdrs.METH_OPTIONS or not asks:
            return None
        if self._allowed(request) is None:
            raise APIError(403, "Pages of this origin may not call this server.", code="origin_not_allowed")
        names = headers.get(hdrs.ACCESS_CONTROL_REQUEST_HEADERS, "")
        return web.Response(
            status=204,
            headers={
                hdrs.ACCESS_CONTROL_ALLOW_METHODS: _METHODS,
                # `*` would not stand for Authorization.
                hdrs.ACCESS_CONTROL_ALLOW_HEADERS: names if _HEADER_NAMES.fullmatch(names) else _HEADERS,
                hdrs.ACCESS_CONTROL_MAX_AGE: str(_PREFLIGHT_SECONDS),
            },
        )

    def _allowed(self, request: web.BaseRequest) -> str | None:
        """The value of Access-Control-Allow-Origin, if there is one."""
        origins = request.headers.getall(hdrs.ORIGIN, [])
        if len(origins) != 1:
            return None
        if ANY_ORIGIN in self._origins:
            return ANY_ORIGIN
        return origins[0] if origins[0] in self._origins else None
