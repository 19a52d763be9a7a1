"""A model hub on loopback, and the store that it sends readers of large files to, for huggingface_hub.

Repositories are dictionaries of files by commit. `faults` make answers wrong: each is a function of a request
that returns True where it has answered.
"""

import hashlib
import json
import re
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

LARGE = (".safetensors", ".bin", ".gguf")  # in Git LFS: the hub redirects to the store


@dataclass
class Repository:
    """Files by commit; names that move."""

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)  # main and other branches and tags -> commit
    is_gated: bool = False
    is_private: bool = False

    def push(self, files: dict[str, bytes], branch: str = "main") -> str:
        """Add a commit, and return its hash."""
        text = json.dumps([[name, hashlib.sha256(content).hexdigest()] for name, content in files.items()])
        commit = hashlib.sha1(text.encode()).hexdigest()  # noqa: S324
        self.commits[commit] = files
        self.names[branch] = commit
        return commit

    def resolve(self, revision: str) -> str | None:
        """Return the commit of a branch, tag or commit."""
        return revision if revision in self.commits else self.names.get(revision)


@dataclass
class Hub:
    """The hub and its store; what was asked of both."""

    repositories: dict[str, Repository] = field(default_factory=dict)
    tokens: set[str] = field(default_factory=set)
    requests: list[tuple[str, str, dict[str, str]]] = field(
        default_factory=list
    )  # (hub | store, path, headers)
    faults: list[Callable[["Request"], bool]] = field(default_factory=list)
    has_ranges: bool = True
    endpoint: str = ""
    store: str = ""

    def repository(self, name: str = "org/model") -> Repository:
        """Return a repository, made at its first use."""
        return self.repositories.setdefault(name, Repository())

    def bytes_asked(self) -> int:
        """Return how many bytes of files were asked for, by their ranges."""
        total = 0
        for _, _, headers in self.requests:
            if found := re.fullmatch(r"bytes=(\d+)-(\d+)", headers.get("range", "")):
                total += int(found[2]) + 1 - int(found[1])
        return total


class Request(BaseHTTPRequestHandler):
    """One request to the hub or the store."""

    protocol_version = "HTTP/1.1"
    hub: Hub
    place: str

    def do_GET(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.path = unquote(urlsplit(self.path).path)
        self.hub.requests.append((self.place, self.path, headers))
        if any(fault(self) for fault in self.hub.faults):
            return
        if self.place == "store":
            self.content(self._stored(self.path.strip("/")), "application/octet-stream")
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", self.path):
            self._info(found[1], found[2] or "main")
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", self.path):
            self._file(*found.groups())
        else:
            self.answer(404, {"error": "no such page"})

    def answer(self, status: int, document: object, **headers: str) -> None:
        """Answer with JSON."""
        self.content(json.dumps(document).encode(), "application/json", status, **headers)

    def content(
        self, body: bytes, kind: str, status: int = 200, cut: int | None = None, **headers: str
    ) -> None:
        """Answer with (the wanted range of) a body; `cut`: end the connection after so many bytes."""
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if found and status == 200 and self.hub.has_ranges:
            start, end = int(found[1]), min(int(found[2]) + 1, len(body))
            if start >= len(body):
                status, headers, body = 416, {"Content-Range": f"bytes */{len(body)}"}, b""
            else:
                headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(body)}"
                status, body = 206, body[start:end]
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        try:
            self.wfile.write(body[:cut])
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the client has what it needs
        if cut is not None:
            self.close_connection = True

    def _may_read(self, name: str) -> bool:
        repository = self.hub.repositories.get(name)
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        known = token in self.hub.tokens
        if token and not known:
            self.answer(
                401, {"error": "Invalid"}, X_Error_Message="Invalid credentials in Authorization header"
            )
        elif repository is None or (repository.is_private and not known):
            self.answer(404 if known else 401, {"error": "not found"}, X_Error_Code="RepoNotFound")
        elif repository.is_gated and not known:
            self.answer(403, {"error": "gated"}, X_Error_Code="GatedRepo")
        else:
            return True
        return False

    def _info(self, name: str, revision: str) -> None:
        if not self._may_read(name):
            return
        repository = self.hub.repositories[name]
        commit = repository.resolve(revision)
        if commit is None:
            self.answer(404, {"error": "no revision"}, X_Error_Code="RevisionNotFound")
            return
        siblings = [_listed(file, content) for file, content in repository.commits[commit].items()]
        self.answer(200, {"id": name, "sha": commit, "siblings": siblings})

    def _file(self, name: str, revision: str, file: str) -> None:
        if not self._may_read(name):
            return
        files = self.hub.repositories[name].commits.get(revision, {})
        if file not in files:
            self.answer(404, {"error": "no file"}, X_Error_Code="EntryNotFound")
        elif file.endswith(LARGE):
            place = f"{self.hub.store}/{hashlib.sha256(files[file]).hexdigest()}"
            self.content(b"", "text/plain", 302, Location=place, X_Repo_Commit=revision)
        else:
            self.content(files[file], "text/plain", X_Repo_Commit=revision)

    def _stored(self, digest: str) -> bytes:
        commits = (
            commit for repository in self.hub.repositories.values() for commit in repository.commits.values()
        )
        contents = (content for files in commits for content in files.values())
        return next(content for content in contents if hashlib.sha256(content).hexdigest() == digest)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def _listed(name: str, content: bytes) -> dict[str, object]:
    blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()  # noqa: S324
    listed: dict[str, object] = {"rfilename": name, "size": len(content), "blobId": blob}
    if name.endswith(LARGE):
        digest = hashlib.sha256(content).hexdigest()
        listed["lfs"] = {"sha256": digest, "size": len(content), "pointerSize": 134}
    return listed


@contextmanager
def hub_server(hub: Hub | None = None, tls: ssl.SSLContext | None = None) -> Iterator[Hub]:
    """Serve a hub and its store, each on a port of its own."""
    hub = hub or Hub()
    servers = []
    for place in ("hub", "store"):
        handler = type("Handler", (Request,), {"hub": hub, "place": place})
        # The store has another name: no token may go there.
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        server.daemon_threads = True
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        servers.append(server)
    scheme = "http" if tls is None else "https"
    hub.endpoint = f"{scheme}://127.0.0.1:{servers[0].server_port}"
    hub.store = f"{scheme}://localhost:{servers[1].server_port}"
    try:
        yield hub
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()
