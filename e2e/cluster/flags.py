"""Command lines of the control plane's programs: pure functions, so that a test can read them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.certificates import Authority

API_SERVICE = "kubernetes.default.svc.cluster.local"


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Ports of one control plane, and where pods find it.

    ``advertise``: the address that Service ``kubernetes`` names; a loopback address where there are no pods.
    """

    etcd: int
    etcd_peer: int
    api: int
    controllers: int
    scheduler: int
    advertise: str = "127.0.0.1"
    bind: str = "127.0.0.1"
    service_cidr: str = "10.96.0.0/16"
    pod_cidr: str = ""

    @property
    def url(self) -> str:
        """Where clients outside pods find the API server."""
        return f"https://127.0.0.1:{self.api}"


def etcd(authority: Authority, at: Endpoints, data: Path) -> list[str]:
    client, peer = f"https://127.0.0.1:{at.etcd}", f"https://127.0.0.1:{at.etcd_peer}"
    return [
        "--name=tangram",
        f"--data-dir={data}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=tangram={peer}",
        f"--cert-file={authority.cert('etcd')}",
        f"--key-file={authority.key('etcd')}",
        f"--trusted-ca-file={authority.certificate}",
        "--client-cert-auth",
        f"--peer-cert-file={authority.cert('etcd')}",
        f"--peer-key-file={authority.key('etcd')}",
        f"--peer-trusted-ca-file={authority.certificate}",
        "--peer-client-cert-auth",
        # The data lives as long as the cluster: a power cut may take both.
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]


def apiserver(authority: Authority, at: Endpoints) -> list[str]:
    return [
        f"--etcd-servers=https://127.0.0.1:{at.etcd}",
        f"--etcd-cafile={authority.certificate}",
        f"--etcd-certfile={authority.cert('etcd')}",
        f"--etcd-keyfile={authority.key('etcd')}",
        f"--bind-address={at.bind}",
        f"--secure-port={at.api}",
        f"--advertise-address={at.advertise}",
        # Endpoints may not be loopback addresses, and without pods nobody misses those of Service kubernetes.
        f"--endpoint-reconciler-type={'none' if at.advertise.startswith('127.') else 'lease'}",
        f"--service-cluster-ip-range={at.service_cidr}",
        f"--client-ca-file={authority.certificate}",
        f"--tls-cert-file={authority.cert('apiserver')}",
        f"--tls-private-key-file={authority.key('apiserver')}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        f"--service-account-key-file={authority.key('service-accounts')}",
        f"--service-account-signing-key-file={authority.key('service-accounts')}",
        f"--service-account-issuer=https://{API_SERVICE}",
        f"--kubelet-certificate-authority={authority.certificate}",
        f"--kubelet-client-certificate={authority.cert('apiserver-kubelet')}",
        f"--kubelet-client-key={authority.key('apiserver-kubelet')}",
        # Nothing resolves the node's name outside the cluster.
        "--kubelet-preferred-address-types=InternalIP",
        f"--requestheader-client-ca-file={authority.certificate}",
        "--requestheader-allowed-names=front-proxy",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={authority.cert('front-proxy')}",
        f"--proxy-client-key-file={authority.key('front-proxy')}",
        "--allow-privileged=true",
        "--profiling=false",
    ]


def controller_manager(authority: Authority, at: Endpoints, kubeconfig: Path) -> list[str]:
    return [
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        "--bind-address=127.0.0.1",
        f"--secure-port={at.controllers}",
        f"--root-ca-file={authority.certificate}",
        f"--service-account-private-key-file={authority.key('service-accounts')}",
        f"--cluster-signing-cert-file={authority.certificate}",
        f"--cluster-signing-key-file={authority.key('ca')}",
        "--use-service-account-credentials",
        "--leader-elect=false",
        *(["--cluster-cidr=" + at.pod_cidr] if at.pod_cidr else []),
        f"--service-cluster-ip-range={at.service_cidr}",
        "--profiling=false",
    ]


def scheduler(at: Endpoints, kubeconfig: Path) -> list[str]:
    return [
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        "--bind-address=127.0.0.1",
        f"--secure-port={at.scheduler}",
        "--leader-elect=false",
        "--profiling=false",
    ]


def issue_control_plane(authority: Authority, at: Endpoints, service_ip: str) -> None:
    """Every key and certificate that the control plane's programs name above."""
    authority.ensure()
    authority.ensure_key("service-accounts")
    local = {"addresses": ["127.0.0.1"], "dns": ["localhost"]}
    authority.ensure_pair("etcd", user="etcd", **local)
    authority.ensure_pair(
        "apiserver",
        user="kube-apiserver",
        addresses=sorted({"127.0.0.1", at.advertise, service_ip}),
        dns=["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", API_SERVICE],
    )
    authority.ensure_pair(
        "apiserver-kubelet", user="kube-apiserver-kubelet-client", groups=["tangram:kubelet-clients"]
    )
    authority.ensure_pair("front-proxy", user="front-proxy")
    authority.ensure_pair("admin", user="tangram-admin", groups=["system:masters"])
    authority.ensure_pair("controllers", user="system:kube-controller-manager")
    authority.ensure_pair("scheduler", user="system:kube-scheduler")
