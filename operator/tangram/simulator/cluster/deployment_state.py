"""One Deployment of the simulated cluster: the replicas of one LLMDeployment on one shape."""

from dataclasses import dataclass, field

from tangram.fleet import Intent, Node, NodeSelector, Shape
from tangram.simulator.cluster.simulated_pod import PodPhase, SimulatedPod


@dataclass(slots=True, eq=False)
class DeploymentState:
    """A Deployment and its pods. Its pods may run where `ApplyDeployment` says."""

    owner: Intent
    shape: Shape
    replicas: int = 0
    products: tuple[str, ...] = ()
    node_selectors: tuple[NodeSelector, ...] = ()
    declared: tuple[NodeSelector, ...] = ()
    pods: list[SimulatedPod] = field(default_factory=list)  # that are not gone
    refused: str = ""  # why pods cannot be created, in the API server's words
    removed: bool = False  # it is deleted; its last pods may still drain

    @property
    def name(self) -> str:
        """The name of the Deployment."""
        return f"{self.owner.name}-{self.shape.variant}"

    @property
    def uid(self) -> str:
        """The uid of the Deployment."""
        return f"deployment:{self.owner.uid}:{self.shape.variant}"

    @property
    def counted(self) -> list[SimulatedPod]:
        """The pods that are its replicas."""
        return [pod for pod in self.pods if pod.counts]

    @property
    def ready(self) -> int:
        """Pods that are ready, as the API server knows: a lost one is until its node is missed."""
        return sum(
            pod.phase is PodPhase.READY or (pod.phase is PodPhase.LOST and pod.in_endpoints)
            for pod in self.pods
        )

    def may_run_on(self, node: Node) -> bool:
        """Whether the node affinity of its pods matches the node."""
        labels = set(node.labels)
        if self.node_selectors and not any(labels.issuperset(s) for s in self.node_selectors):
            return False
        if node.product in self.products:
            return True
        return not node.product and any(labels.issuperset(selector) for selector in self.declared)
