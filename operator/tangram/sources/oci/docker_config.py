"""The user of a registry in a `.dockerconfigjson`. Pure."""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

DOCKER_HUB = "docker.io"
_HUB_KEYS = ("https://index.docker.io/v1", "index.docker.io", DOCKER_HUB)  # as `docker login` writes them


@dataclass(frozen=True, slots=True)
class RegistryUser:
    """A user of a registry."""

    user: str = field(repr=False)
    password: str = field(repr=False)


def credentials_of(config: Mapping[str, Any], host: str, repository: str) -> RegistryUser | None:
    """Return the credentials of the longest key that names `host`, or it and a beginning of `repository`.

    As the kubelet reads it: keys are `host`, `host/path`, perhaps with `https://`. None: there are none.
    Raises ValueError where the document or the entry is none.
    """
    auths = config.get("auths")
    if not isinstance(auths, Mapping):
        raise ValueError("has no object auths")  # noqa: TRY004 - what a Secret has
    place = f"{host}/{repository}"
    for key, entry in sorted(auths.items(), key=lambda item: -len(item[0])):
        name = key.removeprefix("https://").removeprefix("http://").rstrip("/")
        is_hub = host == DOCKER_HUB and key.rstrip("/") in _HUB_KEYS
        if is_hub or place == name or place.startswith(f"{name}/"):
            return _entry(entry, key)
    return None


def _entry(entry: object, key: str) -> RegistryUser:
    where = f"auths[{key[:100]!r}]"
    if not isinstance(entry, Mapping):
        raise ValueError(f"{where} is no object")  # noqa: TRY004
    user, password = entry.get("username"), entry.get("password")
    if "auth" in entry:
        try:
            text = base64.b64decode(str(entry["auth"]), validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            raise ValueError(f"{where}.auth is not the base64 of user:password") from None
        user, _, password = text.partition(":")
    if not (isinstance(user, str) and isinstance(password, str) and user and password):
        raise ValueError(f"{where} has no user and password (identity tokens are not supported)")
    return RegistryUser(user, password)
