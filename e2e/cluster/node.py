"""The life of one node: a set of namespaces with four daemons inside."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from e2e.cluster import binaries, network, packages, paths
from e2e.cluster.base import ClusterError, run, wait_until, write_atomically
from e2e.cluster.certificates import Authority
from e2e.cluster.locks import locked
from e2e.cluster.network import Plan
from e2e.cluster.nodeconfig import (
    Node,
    cni_config,
    containerd_config,
    corefile,
    kube_proxy_config,
    kubelet_config,
    may_lower_oom_score,
    upstream_servers,
)
from e2e.cluster.processes import Identity, end, identify, log_tail, marked, recall, remember, spawn

# The kubelet would set these for the whole machine (it asks the kernel to reboot on a panic, for one).
# It finds them as it wants them in files of ours instead, and leaves the machine's alone.
KERNEL_SETTINGS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
# Folders that programs have compiled in; the node sees its own instead of the machine's.
PRIVATE_FOLDERS = (
    "/var/lib/kubelet",
    "/var/lib/cni",
    "/var/log/containers",
    "/run/containerd",
    "/opt/containerd",
)


def start(node: Node, authority: Authority, api_port: int) -> Identity:
    """Start the node's namespaces and daemons; returns its process 1. The caller waits for Ready."""
    server = f"https://{node.plan.host}:{api_port}"
    _make_cgroups(node)
    network_ready = node.folder / "network-ready"
    network_ready.unlink(missing_ok=True)
    spec = {
        "binds": _binds(node),
        "network_ready": str(network_ready),
        "daemons": _daemons(node, authority, server),
    }
    write_atomically(node.folder / "spec.json", json.dumps(spec, indent=1))
    namespaces = [
        "--net",
        "--mount",
        "--propagation=private",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
    ]
    init = [
        sys.executable,
        "-I",
        "-S",
        str(Path(__file__).with_name("nodeinit.py")),
        str(node.folder / "spec.json"),
    ]
    parent = spawn(
        [packages.need("unshare"), *namespaces, *init],
        log=node.log("init"),
        pid_file=node.parent_pid_file,
        env={**packages.environment(), **marked(node.folder.parent)},
    )
    who = _first_child(parent.pid, node.log("init"))
    remember(node.pid_file, who)
    network.connect_node(node.plan, node.index, who.pid)
    _masquerade(node, who.pid)
    network_ready.touch()
    return who


def stop(node: Node, *, grace_s: float = 2.0) -> None:
    """End process 1 and so everything inside; returns when the kernel has torn it all down."""
    for pid_file in (node.pid_file, node.parent_pid_file):  # the parent ends with its child
        end(recall(pid_file), grace_s=grace_s)
        pid_file.unlink(missing_ok=True)


def enter(node: Node, *command: str | Path) -> list[str]:
    """A command line that runs ``command`` inside the node (its mounts and network)."""
    who = recall(node.pid_file)
    if who is None:
        raise ClusterError(f"{node.name} is not running", "python3 -m e2e.cluster up")
    return [
        str(packages.need("nsenter")),
        f"--target={who.pid}",
        "--mount",
        "--net",
        "--",
        *map(str, command),
    ]


def running(node: Node) -> bool:
    return recall(node.pid_file) is not None


def _first_child(pid: int, log: Path) -> Identity:
    """unshare forks process 1 of the new pid namespace; its pid out here is what we keep."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    found: list[Identity] = []

    def born() -> bool:
        listed = children.read_text().split() if children.exists() else []
        who = identify(int(listed[0])) if listed else None
        if who is None and identify(pid) is None:
            raise ClusterError(f"cannot make the node's namespaces:\n{log_tail(log)}")
        found.extend([who] if who else [])
        return bool(found)

    wait_until("the node's first process", born, timeout_s=10, every_s=0.01)
    return found[0]


def _binds(node: Node) -> list[tuple[str, str]]:
    """Make the sources, and the mount points that this machine lacks (``down`` takes those away again)."""
    binds = []
    made = []
    for path in PRIVATE_FOLDERS:
        node.private(path).mkdir(parents=True, exist_ok=True)
        made += make_folder(Path(path))
        binds.append((str(node.private(path)), path))
    for key, value in KERNEL_SETTINGS.items():
        source = node.folder / "kernel" / key
        write_atomically(source, f"{value}\n")
        if Path("/proc/sys", key).exists():
            binds.append((str(source), f"/proc/sys/{key}"))
    resolver = Path("/etc/resolv.conf")
    if resolver.exists():
        binds.append((str(node.folder / "node-resolv.conf"), str(resolver.resolve())))
    if made:
        with locked(paths.host_lock(), timeout_s=60):
            memory = paths.host_folders()
            before = json.loads(memory.read_text()) if memory.exists() else []
            write_atomically(memory, json.dumps(before + [str(path) for path in made]))
    return binds


def make_folder(path: Path) -> list[Path]:
    """``mkdir -p`` that tells which folders were not there, outermost first."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()][::-1]
    for folder in missing:
        folder.mkdir()
    return missing


def _daemons(node: Node, authority: Authority, server: str) -> list[dict[str, Any]]:
    """Certificates, configuration files and command lines of the four programs of a node."""
    for pair, user, groups in (
        ("kubelet", f"system:node:{node.name}", ["system:nodes"]),
        ("proxy", "system:kube-proxy", []),
        ("dns", "system:coredns", []),
    ):
        authority.ensure_pair(f"{node.name}-{pair}", user=user, groups=groups)
    authority.ensure_pair(
        f"{node.name}-serving",
        user=f"system:node:{node.name}",
        groups=["system:nodes"],
        addresses=[node.address],
        dns=[node.name],
    )
    config = {
        pair: authority.kubeconfig(
            node.folder / f"{pair}.kubeconfig", server=server, name=f"{node.name}-{pair}"
        )
        for pair in ("kubelet", "proxy", "dns")
    }
    cni_bin = packages.need("bridge").parent
    restrict = not may_lower_oom_score(Path("/proc/self/status").read_text())
    upstreams = upstream_servers(_host_resolver())
    files = {
        "containerd.toml": containerd_config(
            node, cni_bin=cni_bin, runc=packages.need("runc"), restrict_oom=restrict
        ),
        "cni/10-tangram.conflist": json.dumps(cni_config(node)),
        "kubelet.json": json.dumps(kubelet_config(node, authority)),
        "proxy.json": json.dumps(kube_proxy_config(node, config["proxy"])),
        "Corefile": corefile(node, config["dns"], upstreams),
        "resolv.conf": "".join(f"nameserver {server}\n" for server in upstreams),
        "node-resolv.conf": f"nameserver {node.address}\n",
    }
    for name, content in files.items():
        write_atomically(node.folder / name, content)
    for folder in ("certs.d", "logs", "pod-logs", "ipam"):
        (node.folder / folder).mkdir(parents=True, exist_ok=True)
    node.store.mkdir(parents=True, exist_ok=True)
    kubelet = [
        *(binaries.need("kubelet"), f"--config={node.folder / 'kubelet.json'}", f"--node-ip={node.address}"),
        *(f"--kubeconfig={config['kubelet']}", f"--hostname-override={node.name}", "--v=1"),
    ]
    return [
        daemon(
            node, "containerd", [packages.need("containerd"), "--config", node.folder / "containerd.toml"]
        ),
        # kubelet starts once old containers are cleared away and the sandbox image is there (``local.py``).
        daemon(node, "kubelet", kubelet, after=["/run/containerd/tangram-ready"]),
        daemon(node, "kube-proxy", [binaries.need("kube-proxy"), f"--config={node.folder / 'proxy.json'}"]),
        daemon(node, "coredns", [binaries.need("coredns"), "-conf", node.folder / "Corefile"]),
    ]


def daemon(node: Node, name: str, command: Sequence[str | Path], after: Sequence[str] = ()) -> dict[str, Any]:
    environment: Mapping[str, str] = packages.environment()
    return {
        "name": name,
        "command": [str(word) for word in command],
        "environment": dict(environment),
        "log": str(node.log(name)),
        "after": list(after),
    }


def _host_resolver() -> str:
    """systemd-resolved keeps the true servers beside the loopback stub that it offers."""
    for path in (Path("/run/systemd/resolve/resolv.conf"), Path("/etc/resolv.conf")):
        if path.exists():
            return path.read_text()
    return ""


def _masquerade(node: Node, pid: int) -> None:
    """Pods reach the outside under the node's address; inside the cluster under their own."""
    inside = [str(packages.need("nsenter")), f"--net=/proc/{pid}/ns/net"]
    rule = f"-t nat -A POSTROUTING -s {node.plan.pods_of(node.index)} ! -d {node.plan.base} -j MASQUERADE"
    run(
        [*inside, packages.need("iptables"), "--wait=5", *rule.split()],
        timeout_s=20,
        env=packages.environment(),
    )


def cgroup_roots(plan: Plan) -> list[Path]:
    """The folder of one cluster's cgroup in every hierarchy: one on cgroup v2, one per controller on v1."""
    top = Path("/sys/fs/cgroup")
    if (top / "cgroup.controllers").exists():
        return [top / plan.bridge]
    return [h / plan.bridge for h in sorted(top.iterdir()) if (h / "cgroup.procs").exists()]


def _make_cgroups(node: Node) -> None:
    for root in cgroup_roots(node.plan):
        for folder in (root, root / node.name):
            folder.mkdir(exist_ok=True)
            if root.parent.name == "cpuset":  # v1: an empty set takes no process
                for name in ("cpuset.cpus", "cpuset.mems"):
                    if not (folder / name).read_text().strip():
                        (folder / name).write_text((folder.parent / name).read_text())


def remove_cgroups(plan: Plan) -> None:
    """Remove a cluster's cgroups, innermost first; they are empty once its nodes are gone."""
    for root in cgroup_roots(plan):
        for folder, _, _ in os.walk(root, topdown=False):
            wait_until(f"cgroup {folder} to be empty", lambda f=folder: _removed(Path(f)), timeout_s=5)


def _removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
