"""The replicas that leave the GPUs of a plan, make before break.

Where the shape stays, they leave in batches: as many replicas start beside the desired ones as find a device.
Once those serve, as many that have to leave are marked, and the Deployment shrinks by them. Then the next.
Replicas that a person allowed to restart are marked as soon as their node is closed, and stop without others.
"""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from tangram.fleet import ReplicaMove, ShapeKey, resource_name
from tangram.fleet.partition import ANY_NUMBER
from tangram.plan.repartition.fleet_state import DevicePod, MarkPod, ReplicaOwner
from tangram.plan.repartition.observed_plan import ObservedChange, ObservedPlan, SliceUser


@dataclass(frozen=True, slots=True)
class Moving:
    """The replicas that have to leave the GPUs of a plan."""

    plan: ObservedPlan
    shapes: Mapping[str, ShapeKey]  # that the replicas of an LLMDeployment are to have
    leaving: Mapping[str, tuple[tuple[ObservedChange, SliceUser], ...]]  # by LLMDeployment

    def may_leave(self, user: SliceUser) -> bool:
        """Whether the pod is one of an LLMDeployment that the plan moves.

        One that is not known may be: the backend names the pod of a slice for a while after it has gone.
        """
        return bool(self.shapes) and (user.pod is None or user.pod.owner in self.shapes)

    def stays_on_shape(self, owner: str) -> bool:
        """Whether replicas move to other devices of the resource that they hold."""
        shape = self.shapes[owner]
        return all(
            (item.gpu.sku, user.resource) == (shape.sku, resource_name(shape.profile))
            for item, user in self.leaving.get(owner, ())
        )

    def may_close(self, item: ObservedChange, resource: str) -> bool:
        """Whether the node may be closed for a resource, though slices of it that have to go are in use.

        Either a replica on it goes next, or no replica of the plan has to start there just now.
        """
        pods = [user.pod for user in item.users if user.resource == resource and user.pod is not None]
        if any(pod.is_leaving or (pod.is_marked and self._leaving_now(pod.owner)) for pod in pods):
            return True
        arriving = (
            owner
            for owner, shape in self.shapes.items()
            if resource_name(shape.profile) == resource and shape.sku == item.gpu.sku
        )
        return all(self._batch_size(owner) for owner in arriving if self._pods_to_leave(owner))

    def wait_for(self, item: ObservedChange) -> tuple[str, str, str]:
        """Return what is waited for while replicas leave a GPU."""
        user = item.users[0]
        if user.pod is None:
            return "Draining", f"{user.place} is still in use", f"GPUNode {item.node.name}"
        pod = user.pod.name
        if user.pod.is_leaving:
            return "Draining", f"Pod {pod} finishes its requests on {user.place}", f"Pod {pod}"
        return "Moving", f"Pod {pod} on {user.place} is replaced by another one", f"Pod {pod}"

    def marks(self, closed: Iterable[ObservedChange]) -> Iterable[MarkPod]:
        """Yield the marks of pods that go next, as many as are replaced. `closed`: GPUs whose nodes are."""
        gpus = {item.gpu.id for item in closed}
        for owner, users in sorted(self.leaving.items()):
            pods = {user.pod for item, user in users if item.gpu.id in gpus}
            ready = sorted(pod for pod in self._pods_to_leave(owner) if pod in pods and not pod.is_marked)
            if self._restarts(owner):
                yield from (MarkPod(pod.name) for pod in ready)
                continue
            if not self.stays_on_shape(owner):
                continue
            for pod in ready[: max(0, self._batch_size(owner) - self._marked_count(owner))]:
                yield MarkPod(pod.name)

    def underway(self, closed: Iterable[ObservedChange]) -> tuple[ReplicaMove, ...]:
        """Return the moves, as the planner has to know them. `closed`: GPUs whose nodes are.

        A replica that restarts is underway until it has its new shape.
        """
        gpus, moves = {item.gpu.id for item in closed}, list[ReplicaMove]()
        for owner, shape in sorted(self.shapes.items()):
            state = self.plan.fleet.owners.get(owner)
            if state is not None and self._is_underway(owner, state):
                others = self._continuing_replicas(owner, gpus) if self._restarts(owner) else ANY_NUMBER
                moves.append(ReplicaMove(state.uid, shape, self._surge(owner), others))
        return tuple(moves)

    def _is_underway(self, owner: str, state: ReplicaOwner) -> bool:
        """Whether a replica has to leave a GPU, has another shape, or has stopped to restart."""
        has_stopped = owner in self.plan.record.changes.restarts and not state.shapes
        return bool(self.leaving.get(owner) or state.shapes - {self.shapes[owner]}) or has_stopped

    @property
    def pods(self) -> frozenset[str]:
        """The pods that have to leave, as NAMESPACE/NAME."""
        users = (user for users in self.leaving.values() for _, user in users)
        return frozenset(user.pod.name for user in users if user.pod is not None)

    def _restarts(self, owner: str) -> bool:
        """Whether replicas may stop before others serve: only where they change their shape."""
        return owner in self.plan.record.changes.restarts and not self.stays_on_shape(owner)

    def _continuing_replicas(self, owner: str, gpus: Container[str]) -> int:
        """Return how many replicas on other shapes go on: not those marked on GPUs whose nodes are closed."""
        stopping = {user.pod for item, user in self.leaving.get(owner, ()) if item.gpu.id in gpus}
        arrived = resource_name(self.shapes[owner].profile)
        return sum(
            pod.owner == owner and not pod.is_leaving and not (pod.is_marked and pod in stopping)
            for node in self.plan.fleet.nodes
            for pod in node.pods
            if (arrived, pod.name) not in {claim[:2] for claim in node.claimed}
        )

    def _surge(self, owner: str) -> int:
        """Return how many replicas there have to be beside the desired ones.

        While a batch leaves, no further replica starts: its node is closed, and it would be waited for.
        """
        if not self.stays_on_shape(owner):
            return 0
        if self._batch_size(owner):
            return self._surplus(owner) - self._leaving_now(owner)
        return len(self._pods_to_leave(owner))

    def _leaving_now(self, owner: str) -> int:
        """Return how many marked pods go now. A mark does not last: a replacement may fail, or the Deployment
        end another pod.
        """
        return min(self._marked_count(owner), self._batch_size(owner))

    def _batch_size(self, owner: str) -> int:
        """Return how many of the replicas that stay may leave: their replacements serve, and none starts.

        A replica that starts is waited for: it would be the first one that the Deployment gives up.
        """
        state, surplus = self.plan.fleet.owners.get(owner), self._surplus(owner)
        is_starting = state is not None and state.replicas > state.available
        return 0 if is_starting else min(surplus, len(self._pods_to_leave(owner)))

    def _surplus(self, owner: str) -> int:
        """Return how many replicas serve beside the desired ones."""
        state = self.plan.fleet.owners.get(owner)
        return 0 if state is None else max(0, state.available - state.desired)

    def _marked_count(self, owner: str) -> int:
        return sum(pod.is_marked for pod in self._pods_to_leave(owner))

    def _pods_to_leave(self, owner: str) -> frozenset[DevicePod]:
        """Return the pods that have to leave and do not yet. A pod may hold several GPUs."""
        pods = {user.pod for _, user in self.leaving.get(owner, ())}
        return frozenset(pod for pod in pods if pod is not None and not pod.is_leaving)


def moving(plan: ObservedPlan) -> Moving:
    """Return what is moved for a plan."""
    leaving: dict[str, list[tuple[ObservedChange, SliceUser]]] = {}
    shapes = dict(plan.record.changes.moves)
    for item in plan.gpu_changes:
        for user in () if item.is_written else item.users:
            if user.pod is not None and user.pod.owner in shapes:
                leaving.setdefault(user.pod.owner, []).append((item, user))
    return Moving(plan, shapes, {owner: tuple(users) for owner, users in leaving.items()})
