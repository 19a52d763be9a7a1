"""Devices of the nodes of a simulated cluster: which are free, and the node that the scheduler picks."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from tangram.fleet import Claim, LeftOut, Node
from tangram.simulator.cluster.deployment_state import DeploymentState

NODE_LOST = "NotReady"


class DeviceSupply:
    """Nodes, their devices in use, and the instants from which they have the engine's image."""

    def __init__(self, nodes: Iterable[Node], foreign_claims: Iterable[Claim]) -> None:
        self.nodes = {node.name: node for node in sorted(nodes, key=lambda node: node.name)}
        self.foreign_claims = tuple(foreign_claims)
        self.image_at: dict[str, float] = {}  # by node; absent: it has no image and pulls none
        self.failed: set[str] = set()  # nodes that have stopped
        self.missed: set[str] = set()  # of these, the ones that the control plane knows of
        self._used: dict[tuple[str, str], int] = defaultdict(int)
        for claim in self.foreign_claims:
            self._used[claim.node, claim.resource] += claim.count

    def node_for(self, deployment: DeploymentState) -> str | None:
        """Return the node that the scheduler picks: of those with enough free devices the one with most."""
        shape = deployment.shape
        free_by_node = [
            (-free, name)
            for name, node in self.nodes.items()
            if node.sku == shape.sku
            and node.usable
            and name not in self.missed
            and (free := self._free(node, shape.resource)) >= shape.gpus
            and deployment.may_run_on(node)
        ]
        return min(free_by_node)[1] if free_by_node else None

    def take(self, node: str, resource: str, count: int) -> None:
        """Give devices to a pod, or take them back where `count` is negative."""
        self._used[node, resource] += count

    @property
    def observed_nodes(self) -> tuple[Node, ...]:
        """The nodes as the control plane sees them."""
        reason = (LeftOut(NODE_LOST, "the node does not answer"),)
        return tuple(
            replace(node, usable=False, left_out=reason) if name in self.missed else node
            for name, node in self.nodes.items()
        )

    def _free(self, node: Node, resource: str) -> int:
        return dict(node.allocatable).get(resource, 0) - self._used[node.name, resource]
