"""Open the repository of a `model.uri` with the credentials of a mounted Secret."""

from dataclasses import dataclass
from pathlib import Path

from tangram.api import ModelSource
from tangram.sources.checkpoint.errors import SourceError, SourceReason
from tangram.sources.checkpoint.files import RemoteCheckpoint, parse_object
from tangram.sources.hub import open_hub
from tangram.sources.hub_errors import ENDPOINT, HubAccess
from tangram.sources.oci.docker_config import RegistryUser, credentials_of
from tangram.sources.oci.registry import ImageRepository, ModelImage, RegistryAccess, open_image
from tangram.sources.store import StoreAccess, open_store

TOKEN_KEYS = ("token", "HF_TOKEN")  # of a Secret with the token of a hub, one of them
STORE_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")  # the last one is optional
REGISTRY_KEYS = (".dockerconfigjson",)
_LONGEST_CONFIG = 1 << 20  # bytes, of a whole Secret
_LONGEST_VALUE = 4096  # bytes


@dataclass(frozen=True, slots=True)
class SourceAddresses:
    """Where repositories are, instead of at their public addresses: mirrors of an air-gapped cluster."""

    hub: str = ENDPOINT
    s3: str = ""
    s3_region: str = "us-east-1"
    plain_http: frozenset[str] = frozenset()  # registries (host:port) without TLS


def open_source(
    source: ModelSource, addresses: SourceAddresses, secret: Path | None = None, secret_name: str = ""
) -> RemoteCheckpoint | ModelImage:
    """Return the repository at the revision that its URI names now. Raises SourceError.

    `secret`: the directory of the keys of the Secret called `secret_name`; None: there is none.
    """
    keys = _Secret(secret, secret_name)
    if source.scheme == "hf":
        token = keys.value(TOKEN_KEYS)
        access = HubAccess(addresses.hub, token, keys.place)
        return open_hub(source.repository, source.revision or None, access)
    if source.scheme == "oci":
        host, _, repository = source.repository.partition("/")
        credentials = keys.credentials(host, repository)
        registry_access = RegistryAccess(credentials, keys.place, addresses.plain_http)
        return open_image(ImageRepository(host, repository, registry_access), source.revision or "latest")
    key_id, secret_key = (keys.value((name,)) for name in STORE_KEYS[:2])
    session = keys.value(STORE_KEYS[2:], required=False)
    store = StoreAccess(addresses.s3, addresses.s3_region, key_id, secret_key, session, keys.place)
    return open_store(source.repository, source.revision or None, store)


@dataclass(frozen=True, slots=True)
class _Secret:
    """A mounted Secret; None: there is none, and no value is required."""

    folder: Path | None
    name: str

    @property
    def place(self) -> str:
        return f"Secret {self.name}" if self.folder else "model.secretRef"

    def value(self, keys: tuple[str, ...], *, required: bool = True) -> str | None:
        """Return the value of the first key that is there. Raises SourceError."""
        found = self._read(keys, _LONGEST_VALUE, required=required)
        if found is None:
            return None
        key, content = found
        value = content.decode("latin-1").strip()
        is_token = value.isascii() and value.isprintable() and " " not in value
        if not is_token or not 0 < len(value) <= _LONGEST_VALUE:
            raise _denied(f"key {key} of {self.place} holds no token: put the token alone there")
        return value

    def credentials(self, host: str, repository: str) -> RegistryUser | None:
        """Return the credentials for a repository of a registry. Raises SourceError."""
        found = self._read(REGISTRY_KEYS, _LONGEST_CONFIG, required=True)
        if found is None:
            return None
        try:
            config = parse_object(REGISTRY_KEYS[0], found[1])
            credentials = credentials_of(config, host, repository)
        except (SourceError, ValueError) as error:
            raise _denied(f"key {found[0]} of {self.place}: {error}: create it anew") from None
        if credentials is None:
            raise _denied(f"key {found[0]} of {self.place} has no entry for {host}: add one")
        return credentials

    def _read(self, keys: tuple[str, ...], limit: int, *, required: bool) -> tuple[str, bytes] | None:
        """Return the first key that is there, and one byte more than `limit` at most. Raises SourceError."""
        if self.folder is None:
            return None
        folder = self.folder
        key = next((key for key in keys if (folder / key).is_file()), None)
        if key is None:
            if not required:
                return None
            text = f"{self.place} of model.secretRef is not there, or has no key {' or '.join(keys)}"
            raise _denied(f"{text}: create it in this namespace")
        with (folder / key).open("rb") as file:
            return key, file.read(limit + 1)


def _denied(message: str) -> SourceError:
    return SourceError(SourceReason.ACCESS_DENIED, message)
