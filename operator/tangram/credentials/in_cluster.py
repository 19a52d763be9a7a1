"""The credentials of a pod: its service account."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN_REREAD_S = 60.0  # projected tokens are rotated by the kubelet; client-go re-reads each minute as well


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
