"""A small asynchronous client of the Kubernetes API: parsed JSON in and out, every call bounded and counted.

It retries a call only after 429 with a short Retry-After (the server did nothing) and once after a 401 (the
token had rotated). Each page of a LIST has its own deadline and attempts; the LIST as a whole has none.
Callers retry for as long as they need.
"""

import asyncio
import json
import math
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import aiohttp

from tangram.kube.credentials import Credentials, ssl_context
from tangram.kube.kinds import Kind, Object, key_of
from tangram.kube.response_body import parse_json, read_limited, watch_lines
from tangram.kube.retry_delays import RetryDelays

REQUEST_TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 5.0
LIST_CHUNK = 500  # objects in a page, where they are of ordinary size
# Pages of larger objects hold fewer of them: bounds memory, latency there, and the time for which the event
# loop parses a page (7 ms for a MiB).
PAGE_BYTES = 4 * 2**20
AT_ONCE = 100  # objects of a page that are reduced before the event loop does other work
PAGE_ATTEMPTS = 5  # for one page; each page starts with all of them
RESTARTS = 3  # of a LIST whose continue token expired (the API server keeps versions for five minutes)
WATCH_INACTIVITY_S = 70.0  # bookmarks arrive about every minute; without any, the connection is dead
WATCH_S = 300  # until the API server ends a watch, which is then resumed
MAX_RETRY_AFTER_S = 5.0
FIRST_REFUSAL = 300  # status; a redirect is none of the API server's, and may lead the token elsewhere
THROTTLED_ATTEMPTS = 3
MAX_MESSAGE = 1000  # characters of an error
# For a LIST without spec and status; an API server that does not know the form sends whole objects.
METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"

Guard = Callable[[], float]
"""Returns the seconds for which the caller may still write; raises when it may not."""

UNGUARDED: Guard = lambda: math.inf  # noqa: E731 - for the Lease itself, and for commands of users

CallCounter = Callable[[str, str, str], None]
"""Called with (verb, plural, code) after every call; the code is `error` without a response."""

ProgressListener = Callable[[], None]
"""Called after every page of a LIST, or once the API server has accepted a watch."""


class ApiError(Exception):
    """The API server responded with an error, or not at all (`status` 0)."""

    def __init__(self, status: int, reason: str, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(f"{status or 'no response'} {reason}: {message}")
        self.status, self.reason, self.message, self.retry_after_s = status, reason, message, retry_after_s

    @property
    def transient(self) -> bool:
        """Whether the same call may succeed later without a change of the object or of rights."""
        return self.status in (0, 401, 408, 429) or self.status >= 500


CHANGES = ("ADDED", "MODIFIED", "DELETED")


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One line of a watch: ADDED, MODIFIED, DELETED, BOOKMARK or ERROR."""

    type: str
    object: Object


@dataclass(frozen=True, slots=True)
class Listing:
    """A complete LIST: every object, and the version of the collection that it shows."""

    items: list[Object]
    resource_version: str


@dataclass(frozen=True, slots=True)
class _Call:
    verb: str
    method: str
    kind: Kind
    path: str
    params: Mapping[str, str]
    body: Object | Sequence[Object] | None = None
    content_type: str = "application/json"
    guard: Guard = UNGUARDED
    accept: str = "application/json"


class ApiClient:
    """The API calls of one process. Create it inside the running event loop; close it at the end.

    `timeout_s` is the deadline of one call and of one page of a LIST.
    """

    def __init__(
        self,
        credentials: Credentials,
        count: CallCounter = lambda *_call: None,
        *,
        user_agent: str = "tangram-operator",
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        self.credentials = credentials
        self._count, self._timeout_s = count, timeout_s
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=ssl_context(credentials) or True, limit=64),
            headers={"User-Agent": user_agent},
            trust_env=False,
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """Return one object, None when it does not exist."""
        return await self._call_existing(_Call("get", "GET", kind, kind.path(namespace, name), {}))

    async def served(self, kind: Kind) -> bool:
        """Say whether the API server serves this kind (for Tangram's: whether the CRD is installed)."""
        call = _Call("get", "GET", kind, f"/apis/{kind.group}/{kind.version}", {})
        resources = (await self._call_existing(call) or {}).get("resources", ())
        return any(resource.get("name") == kind.plural for resource in resources)

    async def list(
        self,
        kind: Kind,
        namespace: str = "",
        selector: str = "",
        reduce: Callable[[Object], Object | None] | None = None,
        on_page: ProgressListener = lambda: None,
        field_selector: str = "",
        *,
        accept: str = "application/json",
    ) -> Listing:
        """Return a consistent LIST, fetched in pages. `reduce` shortens each object at once (None drops it).

        It has no deadline while pages arrive. A page that fails is requested again, then a smaller one; where
        the continue token has expired, the LIST starts again.
        """
        for attempt in range(1, RESTARTS + 1):
            try:
                return await self._list(kind, namespace, selector, reduce, on_page, field_selector, accept)
            except ApiError as error:
                if error.status != 410 or attempt == RESTARTS:
                    raise
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _list(
        self,
        kind: Kind,
        namespace: str,
        selector: str,
        reduce: Callable[[Object], Object | None] | None,
        on_page: ProgressListener,
        field_selector: str,
        accept: str,
    ) -> Listing:
        items: list[Object] = []
        selectors = {"labelSelector": selector, "fieldSelector": field_selector}
        params = {name: text for name, text in selectors.items() if text}
        page_size = _PageSize()
        while True:
            call = _Call("list", "GET", kind, kind.path(namespace), params, accept=accept)
            page = await self._page(call, page_size)
            on_page()
            for number, item in enumerate(_items(page, kind)):
                if number % AT_ONCE == 0:
                    await asyncio.sleep(0)
                item.setdefault("apiVersion", kind.api_version)
                item.setdefault("kind", kind.kind)
                kept_item = reduce(item) if reduce else item
                if kept_item is not None:
                    items.append(kept_item)
            meta = page.get("metadata") or {}
            if not meta.get("continue"):
                return Listing(items, str(meta.get("resourceVersion", "")))
            params = params | {"continue": str(meta["continue"])}

    async def _page(self, call: _Call, page_size: "_PageSize") -> Object:
        """Return the next page of a LIST, with PAGE_ATTEMPTS for transient errors."""
        delays = RetryDelays()
        for attempt in range(1, PAGE_ATTEMPTS + 1):
            sized = replace(call, params={**call.params, "limit": str(page_size.limit)})
            try:
                page = await self._call(sized, page_size.record_bytes)
            except ApiError as error:
                if not error.transient or error.status == 401 or attempt == PAGE_ATTEMPTS:
                    raise
                if error.status in (0, 504):
                    page_size.limit = max(1, page_size.limit // 4)  # too large, too slow, or cut off
                await asyncio.sleep(max(delays.next_s(), min(error.retry_after_s, MAX_RETRY_AFTER_S)))
            else:
                page_size.record_objects(len(page.get("items") or ()))
                return page
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def watch(
        self,
        kind: Kind,
        resource_version: str | None,
        namespace: str = "",
        selector: str = "",
        server_timeout_s: int = WATCH_S,
        *,
        field_selector: str = "",
        on_open: ProgressListener = lambda: None,
    ) -> AsyncGenerator[WatchEvent, None]:
        """Yield events after `resource_version` until the stream ends; ApiError 0 after a long silence.

        Without a version, the first events are the objects as they are.
        """
        named = {
            "resourceVersion": resource_version or "",
            "labelSelector": selector,
            "fieldSelector": field_selector,
        }
        params = {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(server_timeout_s)}
        params |= {name: text for name, text in named.items() if text}
        call = _Call("watch", "GET", kind, kind.path(namespace), params)
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=WATCH_INACTIVITY_S
        )
        try:
            async with self._send(call, timeout) as response:
                if response.status >= FIRST_REFUSAL:
                    raise await self._error(call, response)
                self._count("watch", kind.plural, str(response.status))
                on_open()
                async for line in watch_lines(response.content):
                    yield _event(line)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            self._count("watch", kind.plural, "error")
            raise ApiError(0, "Unreachable", f"watch of {kind.plural}: {_text_of(error)}") from error

    async def create(self, kind: Kind, obj: Object, *, manager: str, guard: Guard) -> Object:
        """POST an object: it must not exist (ApiError 409 AlreadyExists)."""
        path, params = kind.path(obj["metadata"].get("namespace", "")), {"fieldManager": manager}
        return await self._call(_Call("create", "POST", kind, path, params, obj, guard=guard))

    async def apply(
        self, kind: Kind, obj: Object, *, manager: str, force: bool, subresource: str = "", guard: Guard
    ) -> Object:
        """Server-side apply.

        With `metadata.uid` in `obj` it changes no other object of that name. Of a status the API server
        ignores it.
        """
        path = kind.path(*key_of(obj), subresource)
        params = {"fieldManager": manager, "force": "true" if force else "false"}
        content_type = "application/apply-patch+yaml"
        return await self._call(_Call("apply", "PATCH", kind, path, params, obj, content_type, guard))

    async def replace(self, kind: Kind, obj: Object, *, manager: str, guard: Guard) -> Object:
        """PUT an object; its resourceVersion makes the write conditional."""
        path, params = kind.path(*key_of(obj)), {"fieldManager": manager}
        return await self._call(_Call("update", "PUT", kind, path, params, obj, guard=guard))

    async def merge(
        self, kind: Kind, namespace: str, name: str, patch: Object, *, manager: str = "", guard: Guard
    ) -> Object:
        """Merge-patch an object."""
        path = kind.path(namespace, name)
        params = {"fieldManager": manager} if manager else {}
        content_type = "application/merge-patch+json"
        return await self._call(_Call("patch", "PATCH", kind, path, params, patch, content_type, guard))

    async def json_patch(
        self, kind: Kind, namespace: str, name: str, patch: Sequence[Object], *, manager: str, guard: Guard
    ) -> Object:
        """JSON-patch an object (ApiError 422 where an operation does not apply)."""
        path, content_type = kind.path(namespace, name), "application/json-patch+json"
        params = {"fieldManager": manager}
        return await self._call(_Call("patch", "PATCH", kind, path, params, patch, content_type, guard))

    async def delete(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        *,
        uid: str,
        resource_version: str | None = None,
        guard: Guard,
    ) -> bool:
        """Delete the object with this UID (and version). False when it does not exist; ApiError 409 for
        another object of that name.
        """
        path = kind.path(namespace, name)
        preconditions = {"uid": uid} | ({"resourceVersion": resource_version} if resource_version else {})
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Background",
            "preconditions": preconditions,
        }
        call = _Call("delete", "DELETE", kind, path, {}, options, guard=guard)
        return await self._call_existing(call) is not None

    async def _call_existing(self, call: _Call) -> Object | None:
        """Return the response, None where the object does not exist (404)."""
        try:
            return await self._call(call)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def _call(self, call: _Call, on_bytes: Callable[[int], None] = lambda _bytes: None) -> Object:
        for attempt in range(1, THROTTLED_ATTEMPTS + 1):
            try:
                return await self._once(call, on_bytes, fresh_token=False)
            except ApiError as error:
                if error.status == 401 and attempt == 1:
                    return await self._once(call, on_bytes, fresh_token=True)
                short = 0 < error.retry_after_s <= MAX_RETRY_AFTER_S
                if error.status != 429 or not short or attempt == THROTTLED_ATTEMPTS:
                    raise
                await asyncio.sleep(error.retry_after_s)
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _once(self, call: _Call, on_bytes: Callable[[int], None], *, fresh_token: bool) -> Object:
        total_s = min(self._timeout_s, call.guard())
        timeout = aiohttp.ClientTimeout(total=total_s, sock_connect=min(CONNECT_TIMEOUT_S, total_s))
        try:
            async with self._send(call, timeout, fresh_token=fresh_token) as response:
                if response.status >= FIRST_REFUSAL:
                    raise await self._error(call, response)
                raw = await read_limited(response.content)
                on_bytes(len(raw))
                document = parse_json(raw)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self._count(call.verb, call.kind.plural, "error")
            raise ApiError(0, "Unreachable", f"{call.verb} {call.path}: {_text_of(error)}") from error
        except (ValueError, RecursionError) as error:
            self._count(call.verb, call.kind.plural, "error")
            raise ApiError(0, "Garbled", f"{call.verb} {call.path}: the response is not JSON") from error
        self._count(call.verb, call.kind.plural, str(response.status))
        if not isinstance(document, dict):
            raise ApiError(0, "Garbled", f"{call.verb} {call.path}: the response is not an object")
        return document

    def _send(self, call: _Call, timeout: aiohttp.ClientTimeout, *, fresh_token: bool = False) -> Any:
        token = self.credentials.token(fresh=fresh_token)
        headers = {"Accept": call.accept} | ({"Authorization": f"Bearer {token}"} if token else {})
        if call.verb == "watch":
            headers["Accept-Encoding"] = "identity"  # a small stream cannot become a large one
        if call.body is not None:
            headers["Content-Type"] = call.content_type
        data = None if call.body is None else json.dumps(call.body, separators=(",", ":")).encode()
        url = self.credentials.server + call.path
        return self._session.request(
            call.method,
            url,
            params=call.params,
            data=data,
            headers=headers,
            timeout=timeout,
            allow_redirects=False,
        )

    async def _error(self, call: _Call, response: aiohttp.ClientResponse) -> ApiError:
        self._count(call.verb, call.kind.plural, str(response.status))
        raw = await read_limited(response.content, 2**20)
        try:
            status = parse_json(raw)
            reason, message = str(status.get("reason") or response.reason), str(status.get("message", ""))
        except (ValueError, AttributeError, RecursionError):
            reason, message = str(response.reason), raw[:200].decode("utf-8", "replace")
        return ApiError(response.status, reason, message[:MAX_MESSAGE], _retry_after(response))


@dataclass(slots=True)
class _PageSize:
    """The number of objects in the next page of a LIST: pages stay near PAGE_BYTES, whatever their size."""

    limit: int = LIST_CHUNK
    _bytes: int = 0

    def record_bytes(self, size: int) -> None:
        """Record the bytes of a page."""
        self._bytes = size

    def record_objects(self, objects: int) -> None:
        """Record the objects of the page and size the next one, at most twice as large."""
        fits = PAGE_BYTES * max(1, objects) // max(1, self._bytes)
        self.limit = max(1, min(LIST_CHUNK, 2 * self.limit, fits))


def _items(page: Object, kind: Kind) -> list[Object]:
    """Return the objects of a page. Raises ApiError where an item is not an object."""
    items = page.get("items") or []
    if not isinstance(items, list) or not all(_is_object(item) for item in items):
        raise ApiError(0, "Garbled", f"list of {kind.plural}: an item of a page is not an object")
    return items


def _is_object(obj: Any) -> bool:
    meta = obj.get("metadata") if isinstance(obj, dict) else None
    return isinstance(meta, dict) and isinstance(meta.get("name"), str)


def _retry_after(response: aiohttp.ClientResponse) -> float:
    try:
        return max(0.0, float(response.headers.get("Retry-After", "0")))
    except ValueError:
        return 1.0  # an HTTP date: the API server sends seconds, a proxy might not


def failure_of(event: WatchEvent) -> ApiError:
    """Return the error that an event of type ERROR reports; 410: the watch cannot go on from its version."""
    status = event.object
    code = status.get("code")
    message = f"in the watch: {str(status.get('message', ''))[:MAX_MESSAGE]}"
    return ApiError(code if isinstance(code, int) and code else 500, str(status.get("reason", "")), message)


def _event(line: bytes) -> WatchEvent:
    try:
        document = parse_json(line)
        event = WatchEvent(str(document["type"]), document["object"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ApiError(0, "Garbled", "a watch event is not JSON with type and object") from error
    if not isinstance(event.object, dict) or (event.type in CHANGES and not _is_object(event.object)):
        raise ApiError(0, "Garbled", f"a watch event of type {event.type[:20]} holds no object")
    return event


def _text_of(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
