"""Provider ``local``: control plane and node as plain processes of this machine. Needs root, not Docker."""

from __future__ import annotations

import json
import os
import platform
import shutil
import socket
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path

from e2e.cluster import binaries, images, network, node, oci, packages, paths
from e2e.cluster.apiserver import ControlPlane, free_port
from e2e.cluster.base import ClusterError, Progress, run, silent, wait_until, write_atomically
from e2e.cluster.flags import Endpoints
from e2e.cluster.locks import locked
from e2e.cluster.network import Plan
from e2e.cluster.nodeconfig import PAUSE_IMAGE, Node
from e2e.cluster.processes import log_tail, sweep
from e2e.cluster.provider import Cluster, Status

API_PORT = 16443  # of the first cluster, the next one of the second; any other where it is taken
UP_TIMEOUT_S, NODE_TIMEOUT_S = 180.0, 90.0
SOCKET_PATH_LIMIT = 107


class Local:
    """See ``provider.Provider``. ``state``: everything that ``down`` removes.

    Several run beside each other, each with a number, a bridge, a control plane and nodes of its own.
    """

    name = "local"

    def __init__(self, number: int | None = None) -> None:
        self.number = paths.cluster_number() if number is None else number
        self.state = paths.state_dir(self.number)
        self.store = paths.cluster_dir(self.number) / "containerd"
        self._unplanned = Plan(network.CANDIDATES[0], self.number)  # where addresses do not matter
        self._facts = self.state / "cluster.json"
        self._lock = self.state.with_name("cluster.lock")

    def unusable_because(self) -> str:
        if platform.system() != "Linux" or platform.machine() != "x86_64":
            return f"it needs Linux on x86-64, this is {platform.system()} on {platform.machine()}"
        if os.geteuid() != 0:
            return "it needs root (namespaces, cgroups, a bridge): run the same command with sudo"
        socket = self._node(self._unplanned).socket
        if len(str(socket)) > SOCKET_PATH_LIMIT:
            return f"the path {socket} is too long for a socket: set TANGRAM_CACHE to a shorter one"
        return ""

    def prepare(self, progress: Progress = silent) -> None:
        packages.ensure_packages(packages.NODE, progress)
        binaries.ensure_binaries(binaries.CLUSTER, progress)

    def up(self, progress: Progress = silent) -> Cluster:
        if reason := self.unusable_because():
            raise ClusterError(f"the local cluster cannot run here: {reason}")
        with locked(self._lock, timeout_s=UP_TIMEOUT_S, progress=progress):
            if not self._healthy():
                self._fresh(progress)
            return self._cluster()

    def down(self, progress: Progress = silent) -> None:
        with locked(self._lock, timeout_s=UP_TIMEOUT_S, progress=progress):
            self._clear(progress)

    def load_image(self, reference: str, progress: Progress = silent) -> None:
        for member in self._members():
            images.load_into_containerd(self._ctr_of(member), member.store, reference, progress)

    def add_node(self, index: int = 1, progress: Progress = silent) -> str:
        """A further node, with its own kubelet and network; returns its name. It holds no images yet."""
        with locked(self._lock, timeout_s=UP_TIMEOUT_S, progress=progress):
            plan, endpoints = self._recorded()
            member = self._node(plan, index)
            if not node.running(member):
                self._join(member, self._plane(plan, endpoints), _Clock(progress))
            return member.name

    def lose_node(self, index: int = 1) -> None:
        """A power cut: every process of the node ends at once, and the API server is not told."""
        if index == 0:
            raise ClusterError("the first node carries the way to Services; lose another one")
        node.stop(self._node(self._plan(), index), grace_s=0)

    def folder_of_node(self, path: str) -> Path:
        """The folder that the first node sees at `path` instead of the machine's: /var/lib/kubelet."""
        return self._node(self._plan()).private(path)

    def status(self) -> Status:
        if not self._facts.exists():
            return Status(up=False, parts={"cluster": "not there"})
        parts = {name: ("runs" if ok else "does not run") for name, ok in self._parts().items()}
        return Status(up=all(self._parts().values()), parts=parts)

    def ctr(self, *words: str | Path, stdin: bytes | Path | None = None, timeout_s: float = 60) -> str:
        """containerd's own client on the first node, in the namespace that the kubelet uses."""
        return self._ctr_of(self._node(self._plan()))(*words, stdin=stdin, timeout_s=timeout_s)

    @staticmethod
    def _ctr_of(member: Node) -> Callable[..., str]:
        def ctr(*words: str | Path, stdin: bytes | Path | None = None, timeout_s: float = 60) -> str:
            command = [packages.need("ctr"), "--address", member.socket, "--namespace", "k8s.io", *words]
            return run(command, stdin=stdin, timeout_s=timeout_s, env=packages.environment()).stdout

        return ctr

    def kubectl(self, *words: str, stdin: str | None = None, timeout_s: float = 30) -> str:
        command = [binaries.need("kubectl"), "--kubeconfig", self.state / "admin.kubeconfig"]
        return run([*command, *words], stdin=stdin, timeout_s=timeout_s).stdout

    # ---- steps of up -------------------------------------------------------------------------------

    def _fresh(self, progress: Progress) -> None:
        """Clear what a dead cluster left, then start; a failure leaves the logs but nothing running."""
        self._clear(progress)
        self.prepare(progress)
        self.state.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            with self._host(progress):
                plan, endpoints = self._invent()
                network.set_up(plan, endpoints.api, paths.host_network())
            self._start(plan, endpoints, progress)
        except BaseException:
            self._end_processes()
            self._give_back(progress)
            raise

    def _start(self, plan: Plan, endpoints: Endpoints, progress: Progress) -> None:
        clock = _Clock(progress)
        plane = self._plane(plan, endpoints)
        plane.start()
        clock.tell("control plane ready")
        self._grant()
        self._join(self._node(plan), plane, clock)
        wait_until("the default service account", self._has_default_account, timeout_s=30)

    def _join(self, member: Node, plane: ControlPlane, clock: _Clock) -> None:
        node.start(member, plane.authority, plane.endpoints.api)
        self._prepare_containerd(member)
        clock.tell("containerd ready")
        wait_until(f"{member.name} Ready", lambda: self._ready(member), timeout_s=NODE_TIMEOUT_S, every_s=0.2)
        clock.tell(f"{member.name} Ready")

    def _invent(self) -> tuple[Plan, Endpoints]:
        """Addresses and ports of a new cluster, written down so that every later command finds them."""
        plan = network.find_free(self.number)
        network.reserve(plan)
        usual = API_PORT + self.number
        api = usual if _is_free(usual) else free_port()
        others = [free_port() for _ in range(4)]
        endpoints = Endpoints(
            *(others[0], others[1], api, others[2], others[3]),
            advertise=plan.host,
            bind="0.0.0.0",
            service_cidr=plan.services,
            pod_cidr=plan.pods,
        )
        write_atomically(self._facts, json.dumps({"plan": asdict(plan), "endpoints": asdict(endpoints)}))
        return plan, endpoints

    def _prepare_containerd(self, member: Node) -> None:
        """Wait for containerd, forget containers of an earlier cluster, bring the sandbox image."""
        ctr = self._ctr_of(member)
        wait_until("containerd's socket", lambda: self._try(lambda: ctr("version")) is not None, timeout_s=30)
        if leftovers := ctr("containers", "list", "--quiet").split():
            ctr("containers", "delete", *leftovers)
        if PAUSE_IMAGE not in ctr("images", "list", "--quiet").split():
            archive = oci.single_program_archive(binaries.need("pause"), PAUSE_IMAGE)
            ctr("images", "import", "-", stdin=archive)
        (member.private("/run/containerd") / "tangram-ready").touch()

    def _grant(self) -> None:
        """The two rights that no bootstrap policy of Kubernetes holds."""
        self.kubectl("apply", "--server-side", "--filename=-", stdin=json.dumps(bootstrap_rights()))

    # ---- facts -------------------------------------------------------------------------------------

    def _plan(self) -> Plan:
        return self._recorded()[0]

    def _recorded(self) -> tuple[Plan, Endpoints]:
        try:
            facts = json.loads(self._facts.read_text())
        except FileNotFoundError as error:
            raise ClusterError("no local cluster is up", "python3 -m e2e.cluster up") from error
        return Plan(**facts["plan"]), Endpoints(**facts["endpoints"])

    def _plane(self, plan: Plan, endpoints: Endpoints) -> ControlPlane:
        return ControlPlane(
            self.state,
            controller_manager=True,
            scheduler=True,
            endpoints=endpoints,
            service_ip=plan.api_service,
            persistent=True,
        )

    def _node(self, plan: Plan, index: int = 0) -> Node:
        store = self.store if index == 0 else self.store.with_name(f"{self.store.name}-{index}")
        return Node(self.state / f"node-{index}", store, plan, index)

    def _members(self) -> list[Node]:
        """The nodes that run now."""
        everyone = (self._node(self._plan(), index) for index in range(network.MOST_NODES))
        return [member for member in everyone if node.running(member)]

    def _cluster(self) -> Cluster:
        member = self._node(self._plan())
        description = f"Kubernetes {binaries.KUBERNETES} as processes of this machine, logs in {self.state}"
        return Cluster(self.name, self.state / "admin.kubeconfig", (member.name,), description)

    def _parts(self) -> dict[str, bool]:
        plan, endpoints = self._recorded()
        plane, member = self._plane(plan, endpoints).adopt(), self._node(plan)
        parts = plane.health()
        parts[member.name] = node.running(member) and parts["kube-apiserver"] and self._ready(member)
        return parts

    def _healthy(self) -> bool:
        """Every part answers; a short patience, because a node may be about to become Ready."""
        if not self._facts.exists() or not node.running(self._node(self._plan())):
            return False
        deadline = time.monotonic() + 10
        while not all(self._parts().values()):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.5)
        return True

    def _ready(self, member: Node) -> bool:
        if not node.running(member):
            raise ClusterError(f"{member.name} ended:\n{log_tail(member.log('init'))}")
        path = "jsonpath={.status.conditions[?(@.type=='Ready')].status}"
        shown = self._try(lambda: self.kubectl("get", "node", member.name, "--ignore-not-found", "-o", path))
        return shown == "True"

    def _has_default_account(self) -> bool:
        return bool(self._try(lambda: self.kubectl("get", "serviceaccount", "default", "--output=name")))

    @staticmethod
    def _try(question: Callable[[], str]) -> str | None:
        try:
            return question()
        except ClusterError:
            return None

    # ---- steps of down -----------------------------------------------------------------------------

    def _clear(self, progress: Progress) -> None:
        if not self.state.exists():
            return
        progress("ending the node, the control plane, and taking back links and firewall chains")
        self._end_processes()
        node.remove_cgroups(self._unplanned)
        self._give_back(progress)
        shutil.rmtree(self.state)

    def _give_back(self, progress: Progress) -> None:
        """Take this cluster's network back, and what all clusters share if this one was the last."""
        with self._host(progress):
            network.teardown(self._unplanned)
            if not network.bridges():
                network.restore(paths.host_network())
                _remove_made_folders(paths.host_folders())

    @staticmethod
    def _host(progress: Progress) -> AbstractContextManager[None]:
        return locked(paths.host_lock(), timeout_s=UP_TIMEOUT_S, progress=progress)

    def _end_processes(self) -> None:
        """By pid file alone: also works when the facts were never written or are damaged."""
        for folder in sorted(self.state.glob("node-*")):
            node.stop(Node(folder, self.store, self._unplanned))
        placeholder = Endpoints(0, 0, 0, 0, 0)
        self._plane(self._unplanned, placeholder).adopt().stop()
        sweep(self.state)


def _remove_made_folders(memory: Path) -> None:
    for path in reversed(json.loads(memory.read_text()) if memory.exists() else []):
        try:
            Path(path).rmdir()
        except OSError:
            continue  # another program uses it by now
    memory.unlink(missing_ok=True)


def bootstrap_rights() -> dict[str, object]:
    """API server -> kubelet (logs, exec), and CoreDNS -> Services."""
    group = "rbac.authorization.k8s.io"

    def binding(name: str, role: str, kind: str, subject: str) -> dict[str, object]:
        return {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": group, "kind": kind, "name": subject}],
        }

    reads = [
        {"apiGroups": [""], "resources": ["services", "namespaces", "endpoints"], "verbs": ["list", "watch"]},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
    ]
    role = {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "tangram:coredns"},
        "rules": reads,
    }
    return {
        "apiVersion": "v1",
        "kind": "List",
        "items": [
            binding(
                "tangram:kubelet-clients", "system:kubelet-api-admin", "Group", "tangram:kubelet-clients"
            ),
            role,
            binding("tangram:coredns", "tangram:coredns", "User", "system:coredns"),
        ],
    }


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return False
    return True


class _Clock:
    """Says how long each step took."""

    def __init__(self, progress: Progress) -> None:
        self._progress, self._since = progress, time.monotonic()

    def tell(self, what: str) -> None:
        now = time.monotonic()
        self._progress(f"{what} ({now - self._since:.1f} s)")
        self._since = now
