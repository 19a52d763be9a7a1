"""The replicas that leave the GPUs of a plan, make before break."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tangram.fleet import ReplicaMove, ShapeKey, resource_name
from tangram.repartition.observed_plan import ObservedChange, ObservedPlan, SliceUser
from tangram.repartition.world import MarkPod


@dataclass(frozen=True, slots=True)
class Moving:
    """The replicas that have to leave the GPUs of a plan."""

    plan: ObservedPlan
    shapes: Mapping[str, ShapeKey]  # that the replicas of an LLMDeployment are to have
    leaving: Mapping[str, tuple[tuple[ObservedChange, SliceUser], ...]]  # by LLMDeployment

    def may_leave(self, user: SliceUser) -> bool:
        """Whether the pod is one of an LLMDeployment that the plan moves."""
        return user.pod is not None and user.pod.owner in self.shapes

    def stays_on_shape(self, owner: str) -> bool:
        """Whether replicas move to other devices of the resource that they hold."""
        shape = self.shapes[owner]
        return all(
            (item.gpu.sku, user.resource) == (shape.sku, resource_name(shape.profile))
            for item, user in self.leaving.get(owner, ())
        )

    def has_surged(self, owner: str) -> bool:
        """Whether as many replicas as leave serve beside the desired ones."""
        state = self.plan.world.owners.get(owner)
        staying = [user for _, user in self.leaving.get(owner, ()) if user.pod and not user.pod.is_leaving]
        return state is not None and state.available >= state.desired + len(staying)

    def may_close(self, item: ObservedChange, resource: str) -> bool:
        """Whether the node may be closed for a resource: no replica of the plan still has to start there."""
        arriving = (
            o
            for o, s in self.shapes.items()
            if resource_name(s.profile) == resource and s.sku == item.gpu.sku
        )
        return all(self.has_surged(owner) for owner in arriving if self.leaving.get(owner))

    def wait_for(self, item: ObservedChange) -> tuple[str, str, str]:
        """Return what is waited for while replicas leave a GPU."""
        user = item.users[0]
        pod = user.pod.name if user.pod else user.place
        if user.pod is not None and user.pod.is_leaving:
            return "Draining", f"Pod {pod} finishes its requests on {user.place}", f"Pod {pod}"
        return "Moving", f"Pod {pod} on {user.place} is replaced by another one", f"Pod {pod}"

    def marks(self, item: ObservedChange) -> Iterable[MarkPod]:
        """Yield the marks of pods that are to go, whose replacements serve."""
        for user in item.users:
            pod = user.pod
            if pod is None or pod.is_marked or pod.is_leaving:
                continue
            if self.stays_on_shape(pod.owner) and self.has_surged(pod.owner):
                yield MarkPod(pod.name)

    @property
    def underway(self) -> tuple[ReplicaMove, ...]:
        """The moves, as the planner has to know them."""
        moves = []
        for owner, shape in sorted(self.shapes.items()):
            state, users = self.plan.world.owners.get(owner), self.leaving.get(owner, ())
            if state is None or not (users or state.shapes - {shape}):
                continue
            staying = [user.pod for _, user in users if user.pod and not user.pod.is_leaving]
            goes = bool(staying) and all(pod.is_marked for pod in staying)
            surge = len(staying) if self.stays_on_shape(owner) and not goes else 0
            moves.append(ReplicaMove(state.uid, shape, surge))
        return tuple(moves)


def moving(plan: ObservedPlan) -> Moving:
    """Return what is moved for a plan."""
    leaving: dict[str, list[tuple[ObservedChange, SliceUser]]] = {}
    shapes = dict(plan.record.changes.moves)
    for item in plan.observed:
        for user in () if item.is_written else item.users:
            if user.pod is not None and user.pod.owner in shapes:
                leaving.setdefault(user.pod.owner, []).append((item, user))
    return Moving(plan, shapes, {owner: tuple(users) for owner, users in leaving.items()})
