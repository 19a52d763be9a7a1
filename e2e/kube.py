"""kubectl and helm as a person would type them; standard library only."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from e2e.cluster.apiserver import free_port
from e2e.cluster.base import ClusterError, run

T = TypeVar("T")


class PortForwardEnded(ClusterError):
    """`kubectl port-forward` gave up; the message is what it said."""


@dataclass(frozen=True, slots=True)
class Kube:
    """A cluster as seen from the command line."""

    kubeconfig: Path
    kubectl_path: str = "kubectl"
    helm_path: str = "helm"

    @property
    def env(self) -> dict[str, str]:
        """Environment in which both tools find this cluster and no other."""
        return {"KUBECONFIG": str(self.kubeconfig)}

    def kubectl(self, *args: str, stdin: str | None = None, timeout: float = 120) -> str:
        """Run kubectl and return what it printed."""
        return run([self.kubectl_path, *args], stdin=stdin, env=self.env, timeout_s=timeout).stdout

    def helm(self, *args: str, timeout: float = 180) -> str:
        """Run helm and return what it printed."""
        return run([self.helm_path, *args], env=self.env, timeout_s=timeout).stdout

    def get(self, *args: str) -> dict[str, Any]:
        """`kubectl get … -o json`, parsed."""
        found: dict[str, Any] = json.loads(self.kubectl("get", *args, "-o", "json"))
        return found

    def exists(self, *args: str) -> bool:
        """Tell whether `kubectl get …` finds something."""
        return bool(self.kubectl("get", *args, "--ignore-not-found", "-o", "name").strip())

    def apply(self, manifest: str | Path, *, namespace: str | None = None) -> None:
        """Server-side apply of a file or of YAML text."""
        where = ["-n", namespace] if namespace else []
        if isinstance(manifest, Path):
            self.kubectl("apply", "--server-side", "--force-conflicts", *where, "-f", str(manifest))
        else:
            self.kubectl("apply", "--server-side", "--force-conflicts", *where, "-f", "-", stdin=manifest)

    @contextmanager
    def port_forward(self, target: str, port: int, *, namespace: str = "default") -> Iterator[int]:
        """Forward a free port of 127.0.0.1 to `target`; yields it once it answers."""
        local = free_port()
        forward = subprocess.Popen(
            [self.kubectl_path, "port-forward", "-n", namespace, target, f"{local}:{port}"],
            env={**os.environ, **self.env}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            wait_until(lambda: _answers(local) or _ended(forward), 30, f"port-forward to {target}")
            yield local
        finally:
            forward.terminate()
            forward.wait(timeout=10)
            if forward.stderr:
                forward.stderr.close()


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def _ended(process: subprocess.Popen[str]) -> bool:
    if process.poll() is None:
        return False
    said = process.stderr.read().strip() if process.stderr else ""
    raise PortForwardEnded(said)


def instant(text: str) -> datetime:
    """Parse a time of the API, which are in whole seconds."""
    return datetime.fromisoformat(text)


def wait_until(check: Callable[[], T], timeout: float, what: str, *, every: float = 0.5) -> T:
    """Ask again until the answer is true; return it.

    A command that fails meanwhile counts as false: things may not exist yet.

    Raises:
        TimeoutError: it stayed false for `timeout` seconds; the message says what was awaited and seen last.
    """
    deadline = time.monotonic() + timeout
    last: object = None
    while time.monotonic() < deadline:
        try:
            last = answer = check()
        except PortForwardEnded:
            raise
        except ClusterError as error:
            last, answer = error, None
        if answer:
            return answer  # type: ignore[return-value]
        time.sleep(every)
    raise TimeoutError(f"waited {timeout:.0f} s for {what}; last seen: {str(last)[:500]}")
