"""A store on loopback with as much of S3 as `obstore` needs: listings of a prefix, ranges, ETags, keys."""

import hashlib
import re
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

WHEN = "2026-01-01T00:00:00.000Z"


@dataclass
class Bucket:
    """Objects of the bucket `models`, by key."""

    objects: dict[str, bytes] = field(default_factory=dict)
    key_id: str | None = None  # whose requests are answered; None: everybody's
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    faults: list[Callable[["Request"], bool]] = field(default_factory=list)
    page: int = 1000  # objects of one answer of a listing
    endpoint: str = ""


class Request(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"
    bucket: Bucket

    def do_GET(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        parts = urlsplit(self.path)
        path, query = unquote(parts.path), parse_qs(parts.query)
        self.bucket.requests.append((path, headers))
        if any(fault(self) for fault in self.bucket.faults):
            return
        signature = headers.get("authorization", "")
        if self.bucket.key_id is not None and f"Credential={self.bucket.key_id}/" not in signature:
            self.refuse(403, "AccessDenied")
        elif not re.match(r"/models(/|$)", path):
            self.refuse(404, "NoSuchBucket")
        elif "list-type" in query:
            self._list(query["prefix"][0], int(query.get("continuation-token", ["0"])[0]))
        else:
            self._get(path.removeprefix("/models/"))

    def refuse(self, status: int, code: str) -> None:
        """Answer with an error."""
        self.answer(status, f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode())

    def answer(self, status: int, body: bytes, **headers: str) -> None:
        """Answer with a body."""
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def _list(self, prefix: str, start: int) -> None:
        keys = sorted(key for key in self.bucket.objects if key.startswith(prefix))
        keys = [key for key in keys if "/" not in key.removeprefix(prefix)]
        shown, more = keys[start : start + self.bucket.page], len(keys) > start + self.bucket.page
        contents = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>{WHEN}</LastModified>"
            f"<ETag>{etag(self.bucket.objects[key])}</ETag><Size>{len(self.bucket.objects[key])}</Size></Contents>"
            for key in shown
        )
        token = f"<NextContinuationToken>{start + len(shown)}</NextContinuationToken>" if more else ""
        self.answer(
            200,
            f"<ListBucketResult><Name>models</Name><Prefix>{prefix}</Prefix><KeyCount>{len(shown)}</KeyCount>"
            f"<IsTruncated>{str(more).lower()}</IsTruncated>{token}{contents}</ListBucketResult>".encode(),
        )

    def _get(self, key: str) -> None:
        content = self.bucket.objects.get(key)
        if content is None:
            self.refuse(404, "NoSuchKey")
            return
        wanted = self.headers.get("If-Match", etag(content))
        if wanted != etag(content):
            self.refuse(412, "PreconditionFailed")
            return
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        start, end = (int(found[1]), int(found[2]) + 1) if found else (0, len(content))
        part = content[start:end]
        self.answer(
            206,
            part,
            Content_Range=f"bytes {start}-{start + len(part) - 1}/{len(content)}",
            ETag=etag(content),
            Last_Modified="Thu, 01 Jan 2026 00:00:00 GMT",
        )

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def etag(content: bytes) -> str:
    """Return the ETag of an object that was put at once."""
    return f'"{hashlib.md5(content).hexdigest()}"'  # noqa: S324


@contextmanager
def object_store(tls: ssl.SSLContext | None = None) -> Iterator[Bucket]:
    """Serve a bucket."""
    bucket = Bucket()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Request,), {"bucket": bucket}))
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    scheme = "http" if tls is None else "https"
    bucket.endpoint = f"{scheme}://127.0.0.1:{server.server_port}"
    try:
        yield bucket
    finally:
        server.shutdown()
        server.server_close()
