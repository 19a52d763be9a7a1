"""A model repository of the Hugging Face Hub, or of a mirror, at a commit.

`huggingface_hub` resolves the revision, lists the files, builds requests and knows the hub's errors. The
bytes themselves are read by ranges of its session: its own downloads begin anew after a cut
(`file_download._download_to_tmp_and_move`), and some of its requests have no time limit. Xet storage is read
through the hub's HTTP bridge.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from types import MappingProxyType
from typing import cast

import httpx2
from huggingface_hub import HfApi, constants, get_session, hf_hub_url, set_client_factory
from huggingface_hub.hf_api import RepoSibling
from huggingface_hub.utils import build_hf_headers, hf_raise_for_status  # type: ignore[attr-defined]

from tangram.sources.checkpoint.answers import asked_part
from tangram.sources.checkpoint.errors import changed, invalid, unreachable
from tangram.sources.checkpoint.files import Digest, RemoteFile
from tangram.sources.hub_errors import HubAccess, web_page

# Else the client asks huggingface.co for a list of coding agents, with whatever hub it is to speak.
constants.HF_HUB_DISABLE_TELEMETRY = True

TIMEOUT_S = 30.0  # of a connection, and between two pieces of an answer
_CHUNK = 1 << 20
ANSWER_LIMIT = 64 << 20  # bytes of a listing: that of 100,000 files has half
_MOST_LISTED = 100_000  # files, folders included: the hub itself advises to stay below
_CLIENT = "tangram"


class _BoundedAnswer(httpx2.SyncByteStream):
    """The body of a listing, which ends with an error behind ANSWER_LIMIT."""

    def __init__(self, response: httpx2.Response) -> None:
        self._host = response.url.host
        self._stream = response.stream

    def __iter__(self) -> Iterator[bytes]:
        left = ANSWER_LIMIT
        for piece in cast("httpx2.SyncByteStream", self._stream):
            left -= len(piece)
            if left < 0:
                text = f"{self._host} answers with more than {ANSWER_LIMIT} bytes"
                raise invalid(f"{text}: name a repository of one checkpoint")
            yield piece

    def close(self) -> None:
        cast("httpx2.SyncByteStream", self._stream).close()


def _bound_listing(response: httpx2.Response) -> None:
    if "/api/" in response.url.path:
        response.stream = _BoundedAnswer(response)


def _client() -> httpx2.Client:
    """Return the client of all requests: also those that `huggingface_hub` gives no time limit end."""
    hooks = {"response": [_bound_listing]}
    return httpx2.Client(follow_redirects=True, timeout=TIMEOUT_S, event_hooks=hooks)


set_client_factory(_client)


@dataclass(frozen=True, slots=True)
class HubCheckpoint:
    """A `RemoteCheckpoint` of a hub."""

    repository: str  # organisation/name
    revision: str  # commit
    files: Mapping[str, RemoteFile]
    access: HubAccess

    @property
    def uri(self) -> str:
        """The URI with the commit."""
        return f"hf://{self.repository}@{self.revision}"

    def read(self, file: RemoteFile, start: int, end: int) -> Iterator[bytes]:
        """Yield the bytes from `start` up to `end` of a file, of servers with ranges and without."""
        url = hf_hub_url(self.repository, file.name, revision=self.revision, endpoint=self.access.endpoint)
        headers = build_hf_headers(token=self.access.token or False, library_name=_CLIENT) | {
            "Range": f"bytes={start}-{end - 1}",
            "Accept-Encoding": "identity",  # sizes are those of the stored bytes
        }
        with (
            self.access.explains(self.uri),
            get_session().stream("GET", url, headers=headers, timeout=TIMEOUT_S) as response,
        ):
            hf_raise_for_status(response)
            if response.headers.get("Content-Type", "").startswith("text/html"):
                raise web_page(self.uri, response.url.host, file.name)
            skipped = start
            if response.status_code == HTTPStatus.PARTIAL_CONTENT:
                self._check_range(response.headers.get("Content-Range", ""), file, start)
                skipped = 0
            yield from asked_part(response.iter_bytes(_CHUNK), skipped, end - start)

    def _check_range(self, content_range: str, file: RemoteFile, start: int) -> None:
        place, _, total = content_range.partition("/")
        if not place.startswith(f"bytes {start}-") or total not in {str(file.size), "*"}:
            text = f"{self.uri}: {file.name} has no longer {file.size} bytes"
            raise changed(f"{text}: start again from a new revision; a mirror may be stale")


def open_hub(repository: str, revision: str | None, access: HubAccess) -> HubCheckpoint:
    """Return a repository at the commit that `revision` (a branch, tag or commit; None: main) names now.

    Raises SourceError.
    """
    uri = f"hf://{repository}" + (f"@{revision}" if revision else "")
    with access.explains(uri):
        api = HfApi(endpoint=access.endpoint, token=access.token or False, library_name=_CLIENT)
        info = api.model_info(repository, revision=revision, files_metadata=True, timeout=TIMEOUT_S)
        siblings = info.siblings or []
        if len(siblings) > _MOST_LISTED:
            raise invalid(f"{uri} has more than {_MOST_LISTED} files: name a repository of one checkpoint")
        if not info.sha:
            raise unreachable(f"{uri}: the answer of {access.endpoint} names no commit: is it a hub?")
        files = (_remote_file(sibling) for sibling in siblings if "/" not in sibling.rfilename)
        return HubCheckpoint(
            repository, info.sha, MappingProxyType({file.name: file for file in files}), access
        )


def _remote_file(sibling: RepoSibling) -> RemoteFile:
    """Return a file as the hub lists it. Files in Git LFS and Xet have a SHA-256, others that of git."""
    if sibling.lfs is not None:
        return RemoteFile(sibling.rfilename, sibling.lfs.size, Digest("sha256", sibling.lfs.sha256))
    digest = Digest("git", sibling.blob_id) if sibling.blob_id else None
    return RemoteFile(sibling.rfilename, sibling.size or 0, digest)
