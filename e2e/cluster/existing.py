"""Provider ``existing``: the cluster that KUBECONFIG names. Nothing is started and nothing is ended."""

from __future__ import annotations

import os
from pathlib import Path

from e2e.cluster import binaries
from e2e.cluster.base import ClusterError, Progress, run, silent
from e2e.cluster.provider import Cluster, Status


class Existing:
    """See ``provider.Provider``."""

    name = "existing"

    def __init__(self) -> None:
        named = os.environ.get("KUBECONFIG", "").split(":")[0]
        self.kubeconfig = Path(named) if named else None

    def unusable_because(self) -> str:
        if self.kubeconfig is None:
            return "KUBECONFIG is not set"
        return "" if self.kubeconfig.is_file() else f"KUBECONFIG names {self.kubeconfig}, which is not a file"

    def prepare(self, progress: Progress = silent) -> None:
        binaries.ensure_binaries(["kubectl", "helm"], progress)

    def up(self, progress: Progress = silent) -> Cluster:
        if self.kubeconfig is None or (reason := self.unusable_because()):
            raise ClusterError(f"there is no existing cluster to use: {reason}", "export KUBECONFIG=…")
        self.prepare(progress)
        nodes = tuple(self._kubectl("get", "nodes", "--output=jsonpath={.items[*].metadata.name}").split())
        return Cluster(self.name, self.kubeconfig, nodes, f"the cluster that {self.kubeconfig} names")

    def down(self, progress: Progress = silent) -> None:
        progress("the cluster is yours; it stays")

    def load_image(self, reference: str, progress: Progress = silent) -> None:
        raise ClusterError(
            f"{reference} cannot be loaded into a cluster that is not ours",
            "make images push REGISTRY=… with a registry that its nodes can pull from",
        )

    def status(self) -> Status:
        if reason := self.unusable_because():
            return Status(up=False, parts={"KUBECONFIG": reason})
        try:
            answer = self._kubectl("get", "--raw=/readyz")
        except ClusterError as error:
            return Status(up=False, parts={"API server": error.problem})
        return Status(up=answer == "ok", parts={"API server": answer})

    def _kubectl(self, *words: str) -> str:
        command = [binaries.need("kubectl"), f"--kubeconfig={self.kubeconfig}", "--request-timeout=10s"]
        return run([*command, *words], timeout_s=30).stdout
