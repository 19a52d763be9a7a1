"""Where the API server is, and how the agent proves who it is: its service account, or a kubeconfig."""

import base64
import ssl
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tangram.kube.credentials import SERVICE_ACCOUNT, in_cluster_credentials, ssl_context


class APIAccessError(Exception):
    """There is no usable access; the message says where it was looked for."""


@dataclass(frozen=True, slots=True)
class APIAccess:
    """The address of the API server, the TLS context for it, and the bearer token of the moment."""

    server: str
    tls: ssl.SSLContext | None  # None: plain HTTP
    token: Callable[[], str | None]


def find_access(kubeconfig: Path | None) -> APIAccess:
    """Return the access of a kubeconfig, else that of the pod. Raises `APIAccessError`."""
    try:
        return _of_kubeconfig(kubeconfig) if kubeconfig is not None else _of_pod()
    except (OSError, ValueError, KeyError, TypeError, StopIteration, yaml.YAMLError) as error:
        where = kubeconfig or SERVICE_ACCOUNT
        raise APIAccessError(f"no access to the API server by {where}: {error!r}") from error


def _of_pod() -> APIAccess:
    credentials = in_cluster_credentials()
    if credentials is None:
        where = f"{SERVICE_ACCOUNT} and $KUBERNETES_SERVICE_HOST"
        raise APIAccessError(f"no access to the API server by {where}: this is no pod with a service account")
    # Read again for each call, of which there are few: the kubelet rotates it.
    return APIAccess(credentials.server, ssl_context(credentials), lambda: credentials.token(fresh=True))


def _of_kubeconfig(path: Path) -> APIAccess:
    """Read the current context: a token or a client certificate, no plug-ins."""
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    current = _entry(config["contexts"], config["current-context"])["context"]
    cluster = _entry(config["clusters"], current["cluster"])["cluster"]
    user = _entry(config["users"], current["user"])["user"]
    authority = _text(cluster, "certificate-authority", path)
    context = ssl.create_default_context(cadata=authority)
    certificate, key = _text(user, "client-certificate", path), _text(user, "client-key", path)
    if certificate is not None and key is not None:
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as both:  # ssl reads files only; mode 0600
            both.write(f"{certificate}\n{key}")
            both.flush()
            context.load_cert_chain(both.name)
    token = user.get("token")
    return APIAccess(str(cluster["server"]).rstrip("/"), context, lambda: token)


def _entry(entries: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(entry for entry in entries if entry["name"] == name)


def _text(section: dict[str, Any], name: str, path: Path) -> str | None:
    """Return a PEM text, which is in the kubeconfig or in a file that it names relative to itself."""
    if name in section:
        return (path.parent / str(section[name])).read_text(encoding="ascii")
    data = section.get(f"{name}-data")
    return None if data is None else base64.b64decode(data).decode("ascii")
