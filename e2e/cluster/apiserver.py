"""A real API server in a folder: etcd and kube-apiserver, with the controllers and the scheduler if asked.

For tests and benchmarks that need the true API but no kubelet. Loopback only, own certificates, free ports.

>>> with ControlPlane(tmp_path) as plane:                                   # doctest: +SKIP
...     subprocess.run([need("kubectl"), "--kubeconfig", plane.kubeconfig, "get", "namespaces"])
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import socket
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from e2e.cluster import flags, processes
from e2e.cluster.base import ClusterError, Progress, silent
from e2e.cluster.binaries import need
from e2e.cluster.certificates import Authority
from e2e.cluster.flags import Endpoints
from e2e.cluster.processes import (
    Guard,
    Identity,
    alive,
    end,
    identify,
    log_tail,
    recall,
    remember,
    send,
    spawn,
)

START_TIMEOUT_S = 60.0
PORT_ATTEMPTS = 2


class PortTaken(ClusterError):
    """Somebody took a port between our looking and our listening."""


# Below the ports of outgoing connections on Linux (32768 and more) and of NodePorts (30000 and more).
FIRST_PORT, PORTS = 20000, 10000
# Each process starts elsewhere and hands out one port after another, so that two test processes beside each
# other do not choose the same port between looking and listening. 7919 is prime: neighbouring pids lie apart.
_turns = itertools.count(os.getpid() * 7919)


def free_port() -> int:
    """A loopback port that no program listens on at this moment.

    Raises:
        ClusterError: every port of the range is taken.
    """
    for turn in itertools.islice(_turns, PORTS):
        port = FIRST_PORT + turn % PORTS
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise ClusterError(f"no port of {FIRST_PORT} to {FIRST_PORT + PORTS - 1} is free", "ss -tln")


def free_endpoints() -> Endpoints:
    return Endpoints(*(free_port() for _ in range(5)))


class ControlPlane:
    """The programs of one control plane in ``folder`` (pki/, logs/, etcd/, pids/, admin.kubeconfig).

    ``persistent``: outlive this process (the cluster); else a guard ends them with it (tests).
    ``apiserver_flags`` and ``controller_flags``: appended, so they win over ours.
    """

    def __init__(
        self,
        folder: Path | str,
        *,
        controller_manager: bool = False,
        scheduler: bool = False,
        apiserver_flags: Sequence[str] = (),
        controller_flags: Sequence[str] = (),
        endpoints: Endpoints | None = None,
        service_ip: str = "10.96.0.1",
        persistent: bool = False,
        progress: Progress = silent,
    ) -> None:
        self.folder = Path(folder).absolute()
        self.authority = Authority(self.folder / "pki")
        self.endpoints = endpoints or free_endpoints()
        self._own_ports = endpoints is None
        self.kubeconfig = self.folder / "admin.kubeconfig"
        self._extra = tuple(apiserver_flags)
        self._controller_flags = tuple(controller_flags)
        self._service_ip = service_ip
        self._progress = progress
        self._names = ["etcd", "kube-apiserver"]
        self._names += ["kube-controller-manager"] if controller_manager else []
        self._names += ["kube-scheduler"] if scheduler else []
        self._running: dict[str, Identity] = {}
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._persistent = persistent
        self._guard: Guard | None = None

    @property
    def url(self) -> str:
        """``https://127.0.0.1:PORT``."""
        return self.endpoints.url

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> Self:
        """Start everything and wait until the API answers ready; what was started is ended if that fails."""
        for _ in range(PORT_ATTEMPTS if self._own_ports else 1):
            try:
                return self._start_once()
            except PortTaken:
                self.endpoints = free_endpoints()
        return self._start_once()

    def _start_once(self) -> Self:
        self._guard = None if self._persistent else Guard()
        try:
            flags.issue_control_plane(self.authority, self.endpoints, self._service_ip)
            self.authority.kubeconfig(self.kubeconfig, server=self.url, name="admin")
            self._start("etcd")
            self.start_apiserver()
            for name in self._names[2:]:
                self._start(name)
            for name in self._names[2:]:
                self._wait_healthy(name)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End every program, clients first; safe to call twice."""
        for name in reversed(self._names):
            self._end(name)
        if self._guard:
            self._guard.close()
            self._guard = None

    def adopt(self) -> Self:
        """Take charge of the programs that an earlier process started in this folder (``persistent``)."""
        for name in self._names:
            if who := recall(self._pid_file(name)):
                self._running[name] = who
        return self

    def health(self) -> dict[str, bool]:
        """By program: it runs and, where it has a health check, passes it."""
        return {
            name: name in self._running
            and alive(self._running[name])
            and (name == "etcd" or self.healthy(name))
            for name in self._names
        }

    def start_apiserver(self) -> None:
        """Start kube-apiserver (again, on the same port) and wait until it is ready."""
        self._start("kube-apiserver")
        self._wait_healthy("kube-apiserver")

    def stop_apiserver(self, *, grace_s: float = 10.0) -> None:
        """End kube-apiserver; ``grace_s=0`` kills it. etcd keeps the data."""
        self._end("kube-apiserver", grace_s=grace_s)

    def restart_apiserver(self, *, down_s: float = 0.0, grace_s: float = 10.0) -> None:
        """An outage: the API server is gone for ``down_s`` seconds and comes back where it was."""
        self.stop_apiserver(grace_s=grace_s)
        time.sleep(down_s)
        self.start_apiserver()

    def pause(self) -> None:
        """Freeze the API server: connections stay open and nothing answers. ``resume()`` thaws it."""
        send(self._running["kube-apiserver"], signal.SIGSTOP)

    def resume(self) -> None:
        send(self._running["kube-apiserver"], signal.SIGCONT)

    def kubeconfig_for(self, user: str, groups: Sequence[str] = ()) -> Path:
        """A kubeconfig of another user, to try what RBAC lets them do."""
        name = "user-" + "".join(c if c.isalnum() else "-" for c in user)
        self.authority.ensure_pair(name, user=user, groups=groups)
        return self.authority.kubeconfig(self.folder / f"{name}.kubeconfig", server=self.url, name=name)

    def compact(self) -> int:
        """Compact etcd up to now and return the revision.

        After ``restart_apiserver`` (which empties the watch cache) a watch from before it gets 410 Gone.
        """
        key = {"key": "AA=="}  # any read tells the current revision; \x00 is never a key
        revision = int(self._etcd("kv/range", key)["header"]["revision"])
        self._etcd("kv/compaction", {"revision": revision, "physical": True})
        return revision

    def _etcd(self, method: str, body: Mapping[str, object]) -> dict[str, dict[str, str]]:
        request = urllib.request.Request(
            f"https://127.0.0.1:{self.endpoints.etcd}/v3/{method}",
            data=json.dumps(body).encode(),
            method="POST",
        )
        with urllib.request.urlopen(request, timeout=10, context=self._tls("etcd")) as answer:  # noqa: S310
            return dict(json.load(answer))

    def _tls(self, client: str = "admin") -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.authority.certificate))
        context.load_cert_chain(self.authority.cert(client), self.authority.key(client))
        return context

    def _command(self, name: str) -> list[str]:
        at, pki = self.endpoints, self.authority
        if name == "etcd":
            return flags.etcd(pki, at, self.folder / "etcd")
        if name == "kube-apiserver":
            return [*flags.apiserver(pki, at), *self._extra]
        pair = "controllers" if name == "kube-controller-manager" else "scheduler"
        kubeconfig = pki.kubeconfig(self.folder / f"{pair}.kubeconfig", server=self.url, name=pair)
        if name == "kube-controller-manager":
            return [*flags.controller_manager(pki, at, kubeconfig), *self._controller_flags]
        return flags.scheduler(at, kubeconfig)

    def _start(self, name: str) -> None:
        process = spawn(
            [need(name), *self._command(name)], log=self._log(name), env=processes.marked(self.folder)
        )
        who = identify(process.pid)
        if who is None:
            raise ClusterError(f"{name} ended at once:\n{log_tail(self._log(name))}")
        self._running[name], self._children[name] = who, process
        if self._guard:
            self._guard.watch(who)
        else:
            remember(self._pid_file(name), who)

    def _end(self, name: str, *, grace_s: float = 5.0) -> None:
        who, child = self._running.pop(name, None), self._children.pop(name, None)
        end(who, grace_s=grace_s)
        if child:
            child.wait(timeout=10)

    def _wait_healthy(self, name: str) -> None:
        start = time.monotonic()
        while not self.healthy(name):
            if not alive(self._running[name]):
                log = log_tail(self._log(name))
                failure = PortTaken if "address already in use" in log else ClusterError
                raise failure(f"{name} ended while starting:\n{log}")
            if time.monotonic() - start > START_TIMEOUT_S:
                raise ClusterError(f"{name} is not ready after {START_TIMEOUT_S:g} s; see {self._log(name)}")
            time.sleep(0.05)
        self._progress(f"{name} ready after {time.monotonic() - start:.1f} s")

    def healthy(self, name: str) -> bool:
        """Does this program answer its own health check now?"""
        path, port = {
            "kube-apiserver": ("readyz", self.endpoints.api),
            "kube-controller-manager": ("healthz", self.endpoints.controllers),
            "kube-scheduler": ("healthz", self.endpoints.scheduler),
        }[name]
        context = self._tls()
        if name != "kube-apiserver":  # these two serve certificates that they sign themselves
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        try:
            with urllib.request.urlopen(
                f"https://127.0.0.1:{port}/{path}", timeout=2, context=context
            ) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def _pid_file(self, name: str) -> Path:
        return self.folder / "pids" / f"{name}.json"

    def _log(self, name: str) -> Path:
        return self.folder / "logs" / f"{name}.log"
