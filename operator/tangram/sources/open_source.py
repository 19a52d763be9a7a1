"""Open the repository of a `model.uri` with the credentials of a mounted Secret."""

from dataclasses import dataclass
from pathlib import Path

from tangram.api import ModelSource
from tangram.sources.checkpoint_files import RemoteCheckpoint
from tangram.sources.errors import SourceError, SourceReason
from tangram.sources.hub import open_hub
from tangram.sources.hub_errors import ENDPOINT, HubAccess
from tangram.sources.store import StoreAccess, open_store

TOKEN_KEYS = ("token", "HF_TOKEN")  # of a Secret with the token of a hub, one of them
STORE_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")  # the last one is optional
_LONGEST_VALUE = 4096  # bytes


@dataclass(frozen=True, slots=True)
class SourceAddresses:
    """Where repositories are, instead of at their public addresses: mirrors of an air-gapped cluster."""

    hub: str = ENDPOINT
    s3: str = ""
    s3_region: str = "us-east-1"


def open_source(
    source: ModelSource, addresses: SourceAddresses, secret: Path | None = None, secret_name: str = ""
) -> RemoteCheckpoint:
    """Return the repository at the revision that its URI names now. Raises SourceError.

    `secret`: the directory of the keys of the Secret called `secret_name`; None: there is none.
    """
    keys = _Secret(secret, secret_name)
    if source.scheme == "hf":
        token = keys.value(TOKEN_KEYS)
        access = HubAccess(addresses.hub, token, keys.place)
        return open_hub(source.repository, source.revision or None, access)
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
            value = file.read(_LONGEST_VALUE + 1).decode("latin-1").strip()
        is_token = value.isascii() and value.isprintable() and " " not in value
        if not is_token or not 0 < len(value) <= _LONGEST_VALUE:
            raise _denied(f"key {key} of {self.place} holds no token: put the token alone there")
        return value


def _denied(message: str) -> SourceError:
    return SourceError(SourceReason.ACCESS_DENIED, message)
