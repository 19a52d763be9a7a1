"""A repository of a registry, by the OCI Distribution API 1.1: manifests, and ranges of blobs.

`oras` for Python reads blobs whole, without a bound, and begins anew after a cut. Tokens are those of
https://distribution.github.io/distribution/spec/auth/token/.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from typing import Any

import httpx2

from tangram.sources.checkpoint.answers import asked_part
from tangram.sources.checkpoint.errors import SourceError, SourceReason, changed, invalid, unreachable
from tangram.sources.checkpoint.files import parse_object
from tangram.sources.oci.docker_config import DOCKER_HUB, RegistryUser
from tangram.sources.oci.manifest import INDEXES, MANIFESTS, Blob, layers, platform_digest

MANIFEST_LIMIT = 4 << 20  # bytes, which registries should accept (OCI Distribution, "Pushing Manifests")
_TOKEN_LIMIT = 64 << 10
_TIMEOUT_S = 30.0  # of a connection, and between two pieces of an answer
_CHUNK = 1 << 20
_MOST_RETRY_AFTER_S = 120.0
_LOOPBACK = re.compile(r"(localhost|127\.0\.0\.1)(:\d+)?")  # plain HTTP, as all clients of registries do


@dataclass(frozen=True, slots=True)
class RegistryAccess:
    """A user, None for none, and the registries that speak plain HTTP."""

    credentials: RegistryUser | None = None
    place: str = "model.secretRef"  # what people call the place that the credentials are from
    plain_http: frozenset[str] = frozenset()  # host:port


@cache
def _client() -> httpx2.Client:
    """Return the client of all registries. It sends no credentials to hosts that it is redirected to."""
    return httpx2.Client(follow_redirects=True, timeout=_TIMEOUT_S)


class ImageRepository:
    """One repository of a registry. Threads share it."""

    def __init__(self, host: str, repository: str, access: RegistryAccess) -> None:
        is_plain = _LOOPBACK.fullmatch(host) or host in access.plain_http
        address = "registry-1.docker.io" if host == DOCKER_HUB else host
        self.uri = f"oci://{host}/{repository}"
        self._scheme = "http" if is_plain else "https"
        self._base = f"{self._scheme}://{address}/v2/{repository}"
        self._host = address
        self._scope = f"repository:{repository}:pull"
        self._access = access
        self._authorization: Mapping[str, str] = {}

    def manifest(self, reference: str) -> tuple[bytes, str]:
        """Return a manifest or index by tag or digest, and its digest. Raises SourceError."""
        headers = {"Accept": ", ".join((*MANIFESTS, *INDEXES))}
        with self._answer(f"{self._base}/manifests/{reference}", headers) as response:
            content = self._whole(response, MANIFEST_LIMIT)
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        if ":" in reference and digest != reference:
            raise changed(f"{self.uri}@{reference} is not what its digest says: a mirror may be stale")
        return content, digest

    def read(self, blob: Blob, start: int, end: int) -> Iterator[bytes]:
        """Yield the bytes from `start` up to `end` of a blob, of servers with ranges and without."""
        # Sizes are those of the stored bytes.
        headers = {"Accept-Encoding": "identity", "Range": f"bytes={start}-{end - 1}"}
        with self._answer(f"{self._base}/blobs/{blob.digest}", headers) as response:
            skipped = start
            if response.status_code == HTTPStatus.PARTIAL_CONTENT:
                self._check_range(response.headers.get("Content-Range", ""), blob, start)
                skipped = 0
            yield from asked_part(response.iter_bytes(_CHUNK), skipped, end - start)

    def reads_ranges(self, blob: Blob) -> bool:
        """Say whether the registry answers a range of `blob` with that range. Raises SourceError."""
        headers = {"Accept-Encoding": "identity", "Range": "bytes=0-0"}
        with self._answer(f"{self._base}/blobs/{blob.digest}", headers) as response:
            return response.status_code == HTTPStatus.PARTIAL_CONTENT

    def _check_range(self, content_range: str, blob: Blob, start: int) -> None:
        place, _, total = content_range.partition("/")
        if not place.startswith(f"bytes {start}-") or total not in {str(blob.size), "*"}:
            raise changed(f"{self.uri}: {blob.digest} has not the {blob.size} bytes of its manifest")

    @contextmanager
    def _answer(self, url: str, headers: Mapping[str, str]) -> Iterator[httpx2.Response]:
        """Give the answer to a request, with a new token where one is asked for. Raises SourceError."""
        with self._explains():
            for is_last in (False, True):
                with _client().stream("GET", url, headers={**headers, **self._authorization}) as response:
                    if response.status_code == HTTPStatus.UNAUTHORIZED and not is_last:
                        challenge = response.headers.get("WWW-Authenticate", "")
                    else:
                        self._check_status(response)
                        yield response
                        return
                self._authorization = {"Authorization": self._authorize(challenge)}

    def _authorize(self, challenge: str) -> str:
        """Return the header that answers a challenge (RFC 9110, 11.6.1). Raises SourceError."""
        credentials = self._access.credentials
        auth = None if credentials is None else httpx2.BasicAuth(credentials.user, credentials.password)
        scheme, _, rest = challenge.partition(" ")
        if scheme.lower() == "basic":
            if auth is None:
                raise self._denied()
            request = next(auth.auth_flow(httpx2.Request("GET", self._base)))
            return request.headers["Authorization"]
        values = dict(re.findall(r'(\w+)="([^"]*)"', rest))
        realm = values.get("realm", "")
        if scheme.lower() != "bearer" or not realm.startswith((f"{self._scheme}://", "https://")):
            raise unreachable(
                f"{self.uri}: {self._host} asks for {challenge[:100]!r}, which no registry does"
            )
        query = {"scope": values.get("scope", self._scope)}
        query |= {"service": values["service"]} if "service" in values else {}
        with _client().stream("GET", realm, params=query, auth=auth, follow_redirects=False) as response:
            self._check_status(response)
            answer = parse_object(f"{self.uri}: the token", self._whole(response, _TOKEN_LIMIT))
        token = answer.get("token") or answer.get("access_token")
        if not isinstance(token, str):
            raise unreachable(f"{self.uri}: {httpx2.URL(realm).host} gives no token; the request is repeated")
        return f"Bearer {token}"

    def _whole(self, response: httpx2.Response, limit: int) -> bytes:
        content = bytearray()
        for piece in response.iter_bytes():
            content += piece
            if len(content) > limit:
                raise invalid(f"{self.uri}: {self._host} answers with more than {limit} bytes")
        return bytes(content)

    @contextmanager
    def _explains(self) -> Iterator[None]:
        try:
            yield
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            cause = str(error) or type(error).__name__
            text = f"{self.uri}: {self._host} cannot be reached ({cause})"
            raise unreachable(f"{text}: check the network, the proxy and the name of the registry") from None

    def _check_status(self, response: httpx2.Response) -> None:
        status = response.status_code
        if status in (HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT):
            return
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            raise self._denied()
        if status == HTTPStatus.NOT_FOUND:
            advice = "check the name and the tag" if self._access.credentials else "for a private one, set "
            advice += "" if self._access.credentials else self._access.place
            raise SourceError(SourceReason.NOT_FOUND, f"{self.uri} has no such tag or blob: {advice}")
        if status == HTTPStatus.TOO_MANY_REQUESTS:
            text = response.headers.get("Retry-After", "")
            after_s = min(float(text), _MOST_RETRY_AFTER_S) if text.isdigit() else 0.0
            raise unreachable(f"{self.uri}: the registry limits requests (429), which are repeated", after_s)
        if status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise changed(f"{self.uri}: a blob is shorter than its manifest says: push it again")
        raise unreachable(f"{self.uri}: the registry answers {status}; the request is repeated")

    def _denied(self) -> SourceError:
        place = self._access.place
        why = f"the credentials of {place} may not read it: allow them to pull"
        if self._access.credentials is None:
            why = f"it may not be read without credentials: set {place}, with an entry for {self._host}"
        return SourceError(SourceReason.ACCESS_DENIED, f"{self.uri}: {why}")


@dataclass(frozen=True, slots=True)
class ModelImage:
    """An image or artifact at a digest."""

    revision: str  # sha256:hexadecimal, of the manifest or index that the reference named
    layers: tuple[Blob, ...]  # the lowest first
    repository: ImageRepository

    @property
    def uri(self) -> str:
        """The URI with the digest."""
        return f"{self.repository.uri}@{self.revision}"


def open_image(repository: ImageRepository, reference: str) -> ModelImage:
    """Return what a tag or digest names now. Raises SourceError."""
    content, revision = repository.manifest(reference)
    document = _document(repository.uri, content)
    if document.get("mediaType") in INDEXES or "manifests" in document:
        content, _ = repository.manifest(platform_digest(repository.uri, document))
        document = _document(repository.uri, content)
    return ModelImage(revision, layers(repository.uri, document), repository)


def _document(uri: str, content: bytes) -> dict[str, Any]:
    if content.lstrip()[:1] == b"<":
        raise unreachable(f"{uri}: a web page came in place of a manifest: look for a proxy in between")
    return parse_object(f"{uri}: its manifest", content)
