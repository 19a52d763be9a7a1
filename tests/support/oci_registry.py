"""A registry on loopback with as much of the OCI Distribution API as a reader needs, and layers to put there.

`faults` make answers wrong: each is a function of a request that returns True where it has answered. `push`
pushes to a real one.
"""

import base64
import gzip
import hashlib
import io
import json
import re
import tarfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx2
from backports import zstd

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
TAR = "application/vnd.oci.image.layer.v1.tar"
RAW = "application/vnd.cncf.model.weight.v1.raw"


@dataclass(frozen=True)
class Layer:
    """One layer as it is pushed."""

    content: bytes
    media_type: str = TAR
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        return digest(self.content)

    @property
    def descriptor(self) -> dict:
        return {
            "mediaType": self.media_type,
            "digest": self.digest,
            "size": len(self.content),
            "annotations": dict(self.annotations),
        }


def digest(content: bytes) -> str:
    """Return the digest of a blob."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def tar(files: Mapping[str, bytes], compression: str = "", folder: str = "models/") -> Layer:
    """Return a layer as `COPY files /models/` makes it."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"{folder}{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    content = packed.getvalue()
    if compression == "gzip":
        return Layer(gzip.compress(content, 1), f"{TAR}+gzip")
    return Layer(zstd.compress(content), f"{TAR}+zstd") if compression else Layer(content)


def raw(files: Mapping[str, bytes], annotation: str = "org.cncf.model.filepath") -> list[Layer]:
    """Return one layer for each file, as a ModelPack or oras has them."""
    media_type = RAW if "cncf" in annotation else TAR  # oras: that of a tar
    return [Layer(content, media_type, {annotation: name}) for name, content in files.items()]


def manifest(layers: list[Layer]) -> bytes:
    """Return the manifest of an image."""
    config = Layer(b"{}", "application/vnd.oci.image.config.v1+json").descriptor
    document = {"schemaVersion": 2, "mediaType": MANIFEST, "config": config}
    return json.dumps(document | {"layers": [layer.descriptor for layer in layers]}).encode()


@dataclass
class Registry:
    """Manifests and blobs by digest, and tags."""

    blobs: dict[str, bytes] = field(default_factory=dict)
    manifests: dict[str, bytes] = field(default_factory=dict)
    user: str = ""  # user:password, who gets a token; empty: requests need none
    challenge: str = "Bearer"
    token: str = "token-1"
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    faults: list[Callable[["Request"], bool]] = field(default_factory=list)
    has_ranges: bool = True
    host: str = ""

    def push(self, layers: list[Layer], tag: str = "latest") -> str:
        """Add an image, and return its digest."""
        self.blobs |= {layer.digest: layer.content for layer in layers}
        return self.put(manifest(layers), tag)

    def put(self, content: bytes, tag: str) -> str:
        """Add a manifest or an index."""
        self.manifests[tag] = self.manifests[digest(content)] = content
        return digest(content)

    def bytes_asked(self) -> int:
        """Return the sum of the ranges of blobs that were asked for."""
        ranges = (headers.get("range", "") for path, headers in self.requests if "/blobs/" in path)
        found = [re.fullmatch(r"bytes=(\d+)-(\d+)", text) for text in ranges]
        return sum(int(match[2]) - int(match[1]) + 1 for match in found if match)


class Request(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"
    registry: Registry

    def do_GET(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.registry.requests.append((self.path, headers))
        if any(fault(self) for fault in self.registry.faults):
            return
        if self.path.startswith("/token"):
            self._token(headers.get("authorization", ""))
        elif not self._is_allowed(headers.get("authorization", "")):
            realm = f'realm="http://{self.registry.host}/token",service="registry"'
            scope = ',scope="repository:team/model:pull"'
            self.answer(401, b"{}", WWW_Authenticate=f"{self.registry.challenge} {realm}{scope}")
        else:
            self._stored()

    def _is_allowed(self, authorization: str) -> bool:
        registry = self.registry
        expected = f"Bearer {registry.token}" if registry.challenge == "Bearer" else basic(registry.user)
        return not registry.user or authorization == expected

    def _token(self, authorization: str) -> None:
        if authorization == basic(self.registry.user):
            self.answer(200, json.dumps({"token": self.registry.token}).encode())
        else:
            self.answer(401, b"{}")

    def _stored(self) -> None:
        _, kind, name = self.path.removeprefix("/v2/").rsplit("/", 2)
        content = (self.registry.manifests if kind == "manifests" else self.registry.blobs).get(name)
        if content is None:
            self.answer(404, b"{}")
            return
        self.content(content)

    def content(self, content: bytes, cut: int | None = None) -> None:
        """Answer with the range that was asked for; `cut`: end the connection after so many bytes."""
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        status, headers, part = 200, {}, content
        if found and self.registry.has_ranges:
            start, end = int(found[1]), int(found[2]) + 1
            status, part = 206, content[start:end]
            headers["Content_Range"] = f"bytes {start}-{start + len(part) - 1}/{len(content)}"
        self.answer(status, part, cut=cut, **headers)

    def answer(self, status: int, body: bytes, cut: int | None = None, **headers: str) -> None:
        """Answer with a body."""
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body[:cut])
        self.close_connection = self.close_connection or cut is not None

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def basic(user: str) -> str:
    """Return the header of a user and a password."""
    return f"Basic {base64.b64encode(user.encode()).decode()}"


@contextmanager
def oci_registry() -> Iterator[Registry]:
    """Serve a registry."""
    registry = Registry()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Request,), {"registry": registry}))
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # readers leave streams that they have enough of
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    registry.host = f"127.0.0.1:{server.server_port}"
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()


def push(host: str, repository: str, layers: list[Layer], tag: str = "latest") -> str:
    """Push an image to a real registry, and return its digest."""
    base = f"http://{host}/v2/{repository}"
    config = Layer(b"{}", "application/vnd.oci.image.config.v1+json")
    for layer in (*layers, config):
        place = _send("POST", f"{base}/blobs/uploads/", b"").headers["Location"]
        address = place if place.startswith("http") else f"http://{host}{place}"
        mark = "&" if "?" in address else "?"
        _send("PUT", f"{address}{mark}digest={layer.digest}", layer.content)
    content = manifest(layers)
    _send("PUT", f"{base}/manifests/{tag}", content, MANIFEST)
    return digest(content)


def _send(method: str, url: str, content: bytes, media_type: str = "application/octet-stream"):
    headers = {"Content-Type": media_type}
    return httpx2.request(method, url, content=content, headers=headers).raise_for_status()
