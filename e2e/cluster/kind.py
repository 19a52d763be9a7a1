"""Provider ``kind``: a cluster in one privileged Docker container, where Docker may run such.

Its node image comes from a registry; where that cannot be had, whether kind works stays unverified.
"""

from __future__ import annotations

from e2e.cluster import binaries, paths
from e2e.cluster.base import ClusterError, Progress, run, silent, which, write_atomically
from e2e.cluster.images import docker_answers
from e2e.cluster.provider import Cluster, Status

CLUSTER = "tangram"
NODE_IMAGE = "kindest/node:v1.34.0"
UP_TIMEOUT_S, PULL_TIMEOUT_S = 300.0, 600.0


class Kind:
    """See ``provider.Provider``."""

    name = "kind"

    def __init__(self) -> None:
        self.kubeconfig = paths.cache() / "kind.kubeconfig"

    def unusable_because(self) -> str:
        """Probes in the order of cost: engine, image, and last what only a privileged container tells."""
        if which("docker") is None:
            return "there is no docker program"
        if not docker_answers():
            return "no Docker engine answers (docker version)"
        if not _has_node_image():
            return f"its node image {NODE_IMAGE} cannot be pulled; so whether it would work is unverified"
        return _privileged_refusal()

    def prepare(self, progress: Progress = silent) -> None:
        binaries.ensure_binaries(["kubectl", "helm", "kind"], progress)

    def up(self, progress: Progress = silent) -> Cluster:
        if reason := self.unusable_because():
            raise ClusterError(f"kind cannot run here: {reason}", "use --provider local")
        self.prepare(progress)
        if CLUSTER not in self._clusters():
            progress(f"kind create cluster (image {NODE_IMAGE})")
            create = ["create", "cluster", "--name", CLUSTER, "--image", NODE_IMAGE, "--wait", "120s"]
            self._kind(*create, "--kubeconfig", str(self.kubeconfig), timeout_s=UP_TIMEOUT_S)
        exported = self._kind("get", "kubeconfig", "--name", CLUSTER)
        write_atomically(self.kubeconfig, exported, mode=0o600)
        nodes = tuple(self._kind("get", "nodes", "--name", CLUSTER).split())
        return Cluster(self.name, self.kubeconfig, nodes, f"kind ({NODE_IMAGE}) in Docker")

    def down(self, progress: Progress = silent) -> None:
        if self._there():
            progress("kind delete cluster")
            self._kind("delete", "cluster", "--name", CLUSTER, timeout_s=120)
        self.kubeconfig.unlink(missing_ok=True)

    def load_image(self, reference: str, progress: Progress = silent) -> None:
        progress(f"kind load docker-image {reference}")
        self._kind("load", "docker-image", reference, "--name", CLUSTER, timeout_s=PULL_TIMEOUT_S)

    def status(self) -> Status:
        there = self._there()
        return Status(up=there, parts={"kind cluster": "there" if there else "not there"})

    def _clusters(self) -> list[str]:
        return self._kind("get", "clusters").split()

    def _there(self) -> bool:
        return binaries.find("kind") is not None and docker_answers() and CLUSTER in self._clusters()

    @staticmethod
    def _kind(*words: str, timeout_s: float = 30) -> str:
        return run([binaries.need("kind"), *words], timeout_s=timeout_s).stdout


def _has_node_image() -> bool:
    if run(["docker", "image", "inspect", NODE_IMAGE], timeout_s=30, check=False).returncode == 0:
        return True
    return (
        run(["docker", "pull", "--quiet", NODE_IMAGE], timeout_s=PULL_TIMEOUT_S, check=False).returncode == 0
    )


def _privileged_refusal() -> str:
    """Run the node image with the rights that kind needs; what Docker says when it may not, else nothing."""
    probe = ["docker", "run", "--rm", "--privileged", "--entrypoint", "true", NODE_IMAGE]
    done = run(probe, timeout_s=60, check=False)
    if done.returncode == 0:
        return ""
    return f"Docker may not run privileged containers here ({done.stderr.strip().splitlines()[-1][:200]})"
