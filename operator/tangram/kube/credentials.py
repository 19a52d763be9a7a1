"""Where the API server is, and how a process proves its identity: the service account of its pod."""

import os
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN_REREAD_S = 60.0  # projected tokens are rotated by the kubelet; client-go re-reads each minute as well


class AuthError(Exception):
    """There are no usable credentials; the message names the searched files."""


class Credentials(Protocol):
    """The address of the API server, with the token and certificates for it."""

    server: str
    ca_path: str | None
    cert_path: str | None
    key_path: str | None
    insecure: bool

    def token(self, *, fresh: bool = False) -> str | None:
        """Return the bearer token; `fresh` (after a 401) reads it again."""


def ssl_context(credentials: Credentials) -> ssl.SSLContext | None:
    """Return the TLS context for `credentials`, None for plain HTTP."""
    if not credentials.server.startswith("https://"):
        return None
    context = ssl.create_default_context(cafile=credentials.ca_path)
    if credentials.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if credentials.cert_path:
        context.load_cert_chain(credentials.cert_path, credentials.key_path)
    return context


@dataclass(slots=True)
class InClusterCredentials:
    """The token and CA that the kubelet mounts; the token is read again as it rotates."""

    server: str
    directory: Path = SERVICE_ACCOUNT
    clock: Callable[[], float] = time.monotonic
    ca_path: str | None = field(init=False)
    cert_path: str | None = None
    key_path: str | None = None
    insecure: bool = False
    _token: str | None = None
    _read_at: float = field(default=float("-inf"))

    def __post_init__(self) -> None:
        self.ca_path = str(self.directory / "ca.crt")

    def token(self, *, fresh: bool = False) -> str | None:
        """Return the mounted token, at most a minute old."""
        now = self.clock()
        if fresh or self._token is None or now - self._read_at > TOKEN_REREAD_S:
            self._token = (self.directory / "token").read_text(encoding="utf-8").strip()
            self._read_at = now
        return self._token


def in_cluster_credentials() -> InClusterCredentials | None:
    """Return the credentials of the pod; None outside a pod with a service account."""
    host = os.environ.get("KUBERNETES_SERVICE_HOST")
    if not host or not (SERVICE_ACCOUNT / "token").exists():
        return None
    port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    bracketed = f"[{host}]" if ":" in host else host
    return InClusterCredentials(f"https://{bracketed}:{port}", SERVICE_ACCOUNT)
