"""What one node is called, where it keeps its files, and what stands in its configuration files. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.cluster.certificates import Authority
from e2e.cluster.network import Plan

PAUSE_IMAGE = "tangram.local/pause:1"
CAP_SYS_RESOURCE = 24


@dataclass(frozen=True, slots=True)
class Node:
    """Where one node keeps its files and what it is called.

    ``store``: containerd's images; outlives the cluster so that they are loaded once.
    """

    folder: Path
    store: Path
    plan: Plan
    index: int = 0

    @property
    def name(self) -> str:
        return "tangram-node" if self.index == 0 else f"tangram-node-{self.index + 1}"

    @property
    def address(self) -> str:
        return self.plan.node(self.index)

    @property
    def socket(self) -> Path:
        """containerd's socket, as the host sees it (the node sees it in /run/containerd)."""
        return self.folder / "private/run/containerd/containerd.sock"

    @property
    def cgroup(self) -> str:
        """Each node its own: a kubelet removes cgroups of pods that it does not know."""
        return f"/{self.plan.bridge}/{self.name}"

    @property
    def pid_file(self) -> Path:
        return self.folder / "init.json"

    @property
    def parent_pid_file(self) -> Path:
        """Of the program that made the namespaces and waits for the node's first process."""
        return self.folder / "unshare.json"

    def private(self, path: str) -> Path:
        """The folder of ours that the node sees at ``path``."""
        return self.folder / "private" / path.lstrip("/")

    def log(self, name: str) -> Path:
        return self.folder / "logs" / f"{name}.log"


def containerd_config(node: Node, *, cni_bin: Path, runc: Path, restrict_oom: bool) -> str:
    """TOML, version 2, which containerd 1.6 to 2.x read."""
    cri = "io.containerd.grpc.v1.cri"
    return f"""version = 2
root = "{node.store}"
state = "/run/containerd/state"
[grpc]
address = "/run/containerd/containerd.sock"
[plugins."{cri}"]
sandbox_image = "{PAUSE_IMAGE}"
# Without CAP_SYS_RESOURCE nobody may lower oom_score_adj, which every sandbox asks for.
restrict_oom_score_adj = {str(restrict_oom).lower()}
netns_mounts_under_state_dir = true
# Profiles would stay in the kernel after us.
disable_apparmor = true
tolerate_missing_hugetlb_controller = true
[plugins."{cri}".cni]
bin_dir = "{cni_bin}"
conf_dir = "{node.folder / "cni"}"
[plugins."{cri}".registry]
config_path = "{node.folder / "certs.d"}"
[plugins."{cri}".containerd]
snapshotter = "overlayfs"
[plugins."{cri}".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."{cri}".containerd.runtimes.runc.options]
BinaryName = "{runc}"
SystemdCgroup = false
"""


def cni_config(node: Node) -> dict[str, Any]:
    """A bridge for this node's pods. Masquerading is done once per node, not once per pod."""
    return {
        "cniVersion": "0.4.0",
        "name": "tangram",
        "plugins": [
            {
                "type": "bridge",
                "bridge": "tangram-cni",
                "isGateway": True,
                "hairpinMode": True,
                "ipMasq": False,
                "ipam": {
                    "type": "host-local",
                    "dataDir": str(node.folder / "ipam"),
                    "ranges": [[{"subnet": node.plan.pods_of(node.index)}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            }
        ],
    }


def kubelet_config(node: Node, authority: Authority) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(authority.certificate)},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(authority.cert(f"{node.name}-serving")),
        "tlsPrivateKeyFile": str(authority.key(f"{node.name}-serving")),
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": node.cgroup,
        "failCgroupV1": False,
        "failSwapOn": False,
        "localStorageCapacityIsolation": False,
        "clusterDNS": [node.address],
        "clusterDomain": "cluster.local",
        "resolvConf": str(node.folder / "resolv.conf"),
        "podLogsDir": str(node.folder / "pod-logs"),
        "oomScoreAdj": 0,
        # The images were brought here on purpose, and the disk is the user's.
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {},
        "serializeImagePulls": False,
        "healthzBindAddress": "127.0.0.1",
    }


def kube_proxy_config(node: Node, kubeconfig: Path) -> dict[str, Any]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "clientConnection": {"kubeconfig": str(kubeconfig)},
        "clusterCIDR": node.plan.pods,
        "hostnameOverride": node.name,
        "bindAddress": node.address,
        "oomScoreAdj": 0,
        # Connection tracking limits are the machine's and cannot be set from inside a namespace.
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        "iptables": {"minSyncPeriod": "100ms"},
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
    }


def corefile(node: Node, kubeconfig: Path, upstreams: Sequence[str]) -> str:
    """The cluster's names, everything else from the machine's name servers if it has any to offer."""
    forward = f"    forward . {' '.join(upstreams)}\n" if upstreams else ""
    return f""".:53 {{
    bind {node.address}
    errors
    health 127.0.0.1:8080
    ready 127.0.0.1:8181
    kubernetes cluster.local in-addr.arpa ip6.arpa {{
        kubeconfig {kubeconfig}
        fallthrough in-addr.arpa ip6.arpa
        ttl 5
    }}
    cache {{
        success 9984 5
        denial 9984 1
    }}
{forward}}}
"""


def upstream_servers(resolv_conf: str) -> list[str]:
    """Name servers that a network namespace of its own can reach: loopback ones are another's."""
    words = (line.split() for line in resolv_conf.splitlines())
    servers = [w[1] for w in words if len(w) > 1 and w[0] == "nameserver"]
    return [s for s in servers if not s.startswith(("127.", "::1")) and "%" not in s][:3]


def may_lower_oom_score(status: str) -> bool:
    """CAP_SYS_RESOURCE among the effective capabilities in /proc/self/status."""
    for line in status.splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> CAP_SYS_RESOURCE & 1)
    return False
