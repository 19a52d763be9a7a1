"""Open the repository of a `model.uri` with the credentials of a mounted Secret."""

from dataclasses import dataclass
from pathlib import Path

from tangram.api import ModelSource
from tangram.sources.checkpoint_files import RemoteCheckpoint
from tangram.sources.errors import SourceError, SourceReason
from tangram.sources.hub import open_hub
from tangram.sources.hub_errors import ENDPOINT, HubAccess

TOKEN_KEYS = ("token", "HF_TOKEN")  # of a Secret with the token of a hub
_LONGEST_TOKEN = 4096  # bytes


@dataclass(frozen=True, slots=True)
class SourceAddresses:
    """Where repositories are, instead of at their public addresses: mirrors of an air-gapped cluster."""

    hub: str = ENDPOINT


def open_source(
    source: ModelSource, addresses: SourceAddresses, secret: Path | None = None, secret_name: str = ""
) -> RemoteCheckpoint:
    """Return the repository at the revision that its URI names now. Raises SourceError.

    `secret`: the directory of the keys of the Secret called `secret_name`; None: there is none.
    """
    access = HubAccess(addresses.hub)
    if secret is not None:
        access = HubAccess(addresses.hub, _token(secret, secret_name), f"Secret {secret_name}")
    return open_hub(source.repository, source.revision or None, access)


def _token(secret: Path, name: str) -> str:
    key = next((key for key in TOKEN_KEYS if (secret / key).is_file()), None)
    if key is None:
        keys = " or ".join(TOKEN_KEYS)
        text = f"Secret {name} of model.secretRef is not there, or has no key {keys}"
        raise SourceError(SourceReason.ACCESS_DENIED, f"{text}: create it in this namespace")
    with (secret / key).open("rb") as file:
        token = file.read(_LONGEST_TOKEN + 1).decode("latin-1").strip()
    if not token.isascii() or not token.isprintable() or " " in token or not 0 < len(token) <= _LONGEST_TOKEN:
        text = f"key {key} of Secret {name} holds no token: put the token alone there"
        raise SourceError(SourceReason.ACCESS_DENIED, text)
    return token
