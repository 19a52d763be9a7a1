"""A checkpoint below a prefix of an S3 bucket, or of a compatible store, pinned by the ETags of its objects.

A store has no revisions. The pin is a hash of names, sizes and ETags, and each read asks for the listed ETag:
what is fetched is what was inspected, or the fetch is refused. ETags are no digests of the content (RFC 9110,
8.8.3; S3 itself says so of parts and of KMS), so contents are not compared with them.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

import obstore
from obstore.exceptions import (
    BaseError,
    NotFoundError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import S3Store

from tangram.sources.checkpoint.errors import SourceError, SourceReason, changed, invalid, unreachable
from tangram.sources.checkpoint.files import MOST_FILES, RemoteFile
from tangram.sources.network import trusted_certificates

if TYPE_CHECKING:  # they are not there at run time
    from obstore import GetOptions
    from obstore.store import ClientConfig, S3Config

_PIECE = 16 << 20  # bytes of one request, which has TIMEOUT of time: some 280 kB/s at least
_TIMEOUT, _CONNECT_TIMEOUT = "60s", "15s"
_STATUS = re.compile(r"status code: (\d{3})")
_LONGEST_CAUSE = 200  # characters


@dataclass(frozen=True, slots=True)
class StoreAccess:
    """Address and region of a store, and keys for it, None for none."""

    endpoint: str = ""  # empty: that of AWS in the region
    region: str = "us-east-1"
    access_key_id: str | None = field(default=None, repr=False)
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    place: str = "model.secretRef"  # what people call the place that the keys are from

    def bucket(self, name: str) -> S3Store:
        """Return the client of one bucket."""
        config: S3Config = {"region": self.region, "virtual_hosted_style_request": False}
        if self.endpoint:
            config["endpoint"] = self.endpoint
        if self.access_key_id is None or self.secret_access_key is None:
            config["skip_signature"] = True
        else:
            config["access_key_id"] = self.access_key_id
            config["secret_access_key"] = self.secret_access_key
        if self.session_token is not None:
            config["session_token"] = self.session_token
        client: ClientConfig = {
            "timeout": _TIMEOUT,
            "connect_timeout": _CONNECT_TIMEOUT,
            "allow_http": self.endpoint.startswith("http://"),
        }
        certificates = trusted_certificates()
        if certificates is not None:
            client["root_certificate"] = certificates
        # `download` repeats, and watches.
        return S3Store(name, config=config, client_options=client, retry_config={"max_retries": 0})

    @contextmanager
    def explains(self, uri: str) -> Iterator[None]:
        """Turn the errors of the client about `uri` into SourceErrors."""
        try:
            yield
        except PreconditionError:
            raise changed(
                f"{uri}: an object was replaced: set model.revision to what is to be served"
            ) from None
        except BaseError as error:
            raise self._of_answer(error, uri) from None

    def _of_answer(self, error: BaseError, uri: str) -> SourceError:
        line = str(error).splitlines()[0]
        found = _STATUS.search(line)  # of listings, the client has no errors of their own
        status = int(found[1]) if found else 0
        if isinstance(error, PermissionDeniedError | UnauthenticatedError) or status in (401, 403):
            has_keys = self.access_key_id is not None
            who = (
                f"the keys of {self.place} may not read it" if has_keys else "it may not be read without keys"
            )
            advice = "allow them ListBucket and GetObject" if has_keys else f"set {self.place}"
            return SourceError(SourceReason.ACCESS_DENIED, f"{uri}: {who}: {advice}")
        if isinstance(error, NotFoundError) or status in (301, 404):
            text = f"{uri}: there is no such bucket or object in region {self.region}: check both"
            return SourceError(SourceReason.NOT_FOUND, text)
        cause = line.rpartition(" - ")[2][:_LONGEST_CAUSE]
        return unreachable(f"{uri}: the store did not answer ({cause}); the request is repeated")


@dataclass(frozen=True, slots=True)
class StoreCheckpoint:
    """A `RemoteCheckpoint` of a store."""

    repository: str  # bucket/prefix
    revision: str  # hash of names, sizes and ETags
    files: Mapping[str, RemoteFile]
    etags: Mapping[str, str]
    access: StoreAccess

    @property
    def uri(self) -> str:
        """The URI with the pin."""
        return f"s3://{self.repository}@{self.revision}"

    def read(self, file: RemoteFile, start: int, end: int) -> Iterator[bytes]:
        """Yield the bytes from `start` up to `end` of an object that has still the listed ETag."""
        bucket, prefix = self.repository.split("/", 1)
        store = self.access.bucket(bucket)
        for position in range(start, end, _PIECE):
            piece = (position, min(position + _PIECE, end))
            with self.access.explains(self.uri):
                options: GetOptions = {"range": piece, "if_match": self.etags[file.name]}
                content = bytes(obstore.get(store, f"{prefix}/{file.name}", options=options).bytes())
            yield content


def open_store(repository: str, revision: str | None, access: StoreAccess) -> StoreCheckpoint:
    """Return what lies directly below `repository` (bucket/prefix) now.

    Raises SourceError; where it is not `revision`, with what it is.
    """
    bucket, prefix = repository.split("/", 1)
    uri = f"s3://{repository}"
    with access.explains(uri):
        listed = obstore.list_with_delimiter(access.bucket(bucket), prefix)["objects"]
    if not listed:
        text = f"{uri} has no objects: name the prefix of a checkpoint"
        raise SourceError(SourceReason.NOT_FOUND, text)
    if len(listed) > MOST_FILES:
        raise invalid(
            f"{uri} has {len(listed)} objects; at most {MOST_FILES} are read: name a prefix of fewer"
        )
    objects = {meta["path"].rsplit("/", 1)[1]: meta for meta in listed}
    etags = {name: meta["e_tag"] or "" for name, meta in objects.items()}
    text = json.dumps(sorted([name, objects[name]["size"], etag] for name, etag in etags.items()))
    pin = f"etags-{hashlib.sha256(text.encode()).hexdigest()[:32]}"
    if revision not in (None, pin):
        raise changed(
            f"{uri} is no longer {revision}: to serve what is there now, set model.revision to {pin}"
        )
    files = {name: RemoteFile(name, meta["size"]) for name, meta in objects.items()}
    return StoreCheckpoint(repository, pin, MappingProxyType(files), MappingProxyType(etags), access)
