"""Steps as they are recorded one by one, each with the earlier steps for which it has to wait.

The order of recording works. `after` keeps what makes every other order work too: the history of a slice, the
operations on one GPU, a demand's budget, how many replicas start at once on a node. A drain waits for every
earlier arrival of its demand, so that never more replicas are unavailable than in the order of recording; a
start waits for every earlier drain, so that never more of them surge.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tangram.fleet import WHOLE_GPU
from tangram.packing.geometry.layouts import Layout, Placement
from tangram.packing.problem.statement import GPUState
from tangram.packing.transition.end_states import ReplicaPlacement
from tangram.packing.transition.steps import Kind, Step

Site = tuple[str, int]
STARTS_PER_NODE = 2  # replicas that start at once on one node


@dataclass(slots=True)
class StepRecorder:
    """The steps so far, and the last of them that touched each GPU, slice, node and demand."""

    gpus: Mapping[str, GPUState]
    by_node: Mapping[str, Iterable[str]]
    steps: list[Step] = field(default_factory=list)
    operated: dict[str, int] = field(default_factory=dict)  # GPU -> last operation on its slices
    created: dict[Site, int] = field(default_factory=dict)
    vacated: dict[Site, int] = field(default_factory=dict)
    emptied: dict[str, dict[Site, int]] = field(default_factory=dict)  # the same by GPU
    arrived: dict[Site, int] = field(default_factory=dict)
    node_starts: dict[str, list[tuple[int, int]]] = field(default_factory=dict)  # (start, arrival)
    node_geometry: dict[str, int] = field(default_factory=dict)
    arrivals: dict[str, list[int]] = field(default_factory=dict)  # of a demand, since its last drain
    drains: dict[str, int] = field(default_factory=dict)  # demand -> last

    def add_node(self, pool: str, node: str, gpus: tuple[str, ...]) -> None:
        """Record a new node of `pool`."""
        number = self._record("add-node", node, gpus, (), pool=pool)
        self.operated |= dict.fromkeys(gpus, number)

    def mode(self, gpu: str, *, on: bool) -> None:
        """Record the MIG mode of `gpu`, which is empty; under mig-manager its node is."""
        state = self.gpus[gpu]
        after = [*self._operation(gpu), *self._left([gpu])]
        cleared = []  # of the node: slices that NVML made are made again afterwards
        if state.backend == "mig-manager":
            after += self._left(self.by_node[state.node])
            after += self._quiet(state.node)
            cleared = [member for member in self.by_node[state.node] if self.gpus[member].backend == "nvml"]
            after += [step for member in cleared for step in self._operation(member)]
        number = self._record("set-mode", state.node, (gpu,), after, mig_enabled=on)
        self.operated |= dict.fromkeys((gpu, *cleared), number)
        if state.backend == "mig-manager":
            self.node_geometry[state.node] = number

    def create(self, gpu: str, placement: Placement) -> None:
        """Record one more slice."""
        number = self._slice("create-slice", gpu, placement, self._operation(gpu))
        self.created[gpu, placement.start] = number

    def destroy(self, gpu: str, placement: Placement) -> None:
        """Record one slice less; the replica on it has left."""
        left = self.vacated.get((gpu, placement.start))
        after = [*self._operation(gpu), *([] if left is None else [left])]
        self._slice("destroy-slice", gpu, placement, after)

    def geometry(self, gpu: str, layout: Layout) -> None:
        """Record that mig-manager clears `gpu` and creates `layout`."""
        node = self.gpus[gpu].node
        after = [*self._operation(gpu), *self._left([gpu]), *self._quiet(node)]
        number = self._record("set-geometry", node, (gpu,), after, layout=layout)
        self.operated[gpu] = self.node_geometry[node] = number
        self.created |= {(gpu, placement.start): number for placement in layout}

    def start(self, replica: ReplicaPlacement) -> None:
        """Record that a replica starts and is available."""
        node = self.gpus[replica.gpus[0]].node
        earlier = self.node_starts.setdefault(node, [])
        after = [self.vacated[site] for site in replica.sites if site in self.vacated]
        if replica.profile == WHOLE_GPU:
            after += [self.operated[gpu] for gpu in replica.gpus if gpu in self.operated]
        else:
            after += [self.created[site] for site in replica.sites if site in self.created]
        after += [step for step in (self.node_geometry.get(node), self.drains.get(replica.owner)) if step]
        after += [earlier[-1][0]] if earlier else []
        after += [earlier[-STARTS_PER_NODE][1]] if len(earlier) >= STARTS_PER_NODE else []
        start = self._replica("start-replica", replica, after)
        wait = self._replica("wait-available", replica, [start])
        earlier.append((start, wait))
        self.arrived |= dict.fromkeys(replica.sites, wait)
        self.arrivals.setdefault(replica.owner, []).append(wait)

    def drain(self, replica: ReplicaPlacement, kind: Kind = "drain-replica") -> None:
        """Record that a replica stops and its pod is gone."""
        after = self.arrivals.pop(replica.owner, [])
        after += [self.arrived[site] for site in replica.sites if site in self.arrived]
        after += [self.drains[replica.owner]] if replica.owner in self.drains else []
        number = self._replica(kind, replica, after)
        self.drains[replica.owner] = number
        for site in replica.sites:
            self.vacated[site] = self.emptied.setdefault(site[0], {})[site] = number

    def _operation(self, gpu: str) -> list[int]:
        return [self.operated[gpu]] if gpu in self.operated else []

    def _left(self, gpus: Iterable[str]) -> list[int]:
        return [number for gpu in gpus for number in self.emptied.get(gpu, {}).values()]

    def _quiet(self, node: str) -> list[int]:
        """No replica is starting on the node, no other geometry is being set."""
        waits = [wait for _, wait in self.node_starts.get(node, [])[-STARTS_PER_NODE:]]
        return waits + ([self.node_geometry[node]] if node in self.node_geometry else [])

    def _slice(self, kind: Kind, gpu: str, placement: Placement, after: Iterable[int]) -> int:
        number = self._record(
            kind,
            self.gpus[gpu].node,
            (gpu,),
            after,
            profile=placement.profile,
            start=placement.start,
        )
        self.operated[gpu] = number
        return number

    def _replica(self, kind: Kind, replica: ReplicaPlacement, after: Iterable[int]) -> int:
        node = self.gpus[replica.gpus[0]].node
        return self._record(
            kind,
            node,
            replica.gpus,
            after,
            profile=replica.profile,
            start=replica.start,
            owner=replica.owner,
        )

    def _record(
        self, kind: Kind, node: str, gpus: tuple[str, ...], after: Iterable[int], **more: object
    ) -> int:
        number = len(self.steps) + 1
        self.steps.append(Step(number, kind, node, gpus, after=tuple(sorted(set(after))), **more))  # type: ignore[arg-type]
        return number
