"""Carry out the step function's actions: GPUNodes, holds on Nodes, FleetPlans of changes.

Level-triggered: each round computes the step from the mirrors anew and writes it. Each write is idempotent
and carries a version or UID precondition; one that is refused is logged once and tried again after a delay.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tangram.eligibility.devices.tolerations import held_resource, hold_taint
from tangram.fleet import FleetSnapshot, MIGLayout, ParsedIntent, PartitionView, id_on_node
from tangram.fleet.labels import MANAGED_BY, MANAGED_BY_LABEL
from tangram.fleet.times import rfc3339
from tangram.kube.client import ApiClient, ApiError, Guard
from tangram.kube.kinds import (
    DELETION_COST,
    FLEET_PLANS,
    GPU_NODES,
    NODES,
    OPERATOR_LABEL,
    PODS,
    Object,
    key_of,
    uid_of,
)
from tangram.kube.mirror import Mirror
from tangram.kube.retry_delays import RetrySchedule
from tangram.plan.repartition import (
    FleetState,
    HoldNode,
    MarkPod,
    PlanProgress,
    PlanRecord,
    PlanState,
    ReleaseNode,
    RepartitionLimits,
    RepartitionStep,
    SetLayouts,
    UnmarkPod,
    next_step,
)
from tangram.shell.repartition.fleet_state import (
    MARK,
    FleetPlanObjects,
    Recommended,
    failed_changes,
    fleet_state,
    hold_value,
    plan_objects,
    waiting_for_consent,
)
from tangram.shell.repartition.plan_objects import gpu_indices, layout_fields, plan_object, plan_status
from tangram.shell.report.fleet_plans import is_of_changes
from tangram.shell.report.status_writer import apply_status
from tangram.shell.watch.expectations import Expectations
from tangram.shell.watch.mirror_view import MirrorView

log = logging.getLogger(__name__)

MANAGER = "tangram-partition"
KEPT = 20  # FleetPlans of changes that are final, and as many that a person rejected
ROUND_S = 30.0  # after which what a round decided is not written any more: a hold could end in between


@dataclass(frozen=True, slots=True)
class RepartitionRound:
    """One round: the state of the fleet, and what is to be done in it."""

    snapshot: FleetSnapshot
    fleet: FleetState
    step: RepartitionStep
    nodes: dict[str, Object]  # by name
    gpu_nodes: Mapping[str, Object]  # by name
    pods: Mapping[str, Object]  # by NAMESPACE/NAME
    gpu_node_names: frozenset[str]  # of nodes that are to have one
    plans: FleetPlanObjects
    recommended: Recommended

    @property
    def waiting_gpus(self) -> frozenset[str]:
        """The GPUs of plans that wait for consent, or for their turn."""
        waiting = {
            progress.name
            for progress in self.step.progress
            if progress.state in (PlanState.RECOMMENDED, PlanState.APPROVED)
        }
        plans = (record.changes for record in self.fleet.plans if record.name in waiting)
        return frozenset(change.gpu for changes in plans for change in changes.changes)


@dataclass(slots=True)
class Executor:
    """Carries out FleetPlans of changes."""

    client: ApiClient
    guard: Guard
    plan_mirror: Mirror  # of FleetPlans
    expectations: Expectations  # of Nodes and GPUNodes
    operator: str  # label value of this operator, of several in the cluster
    clock: Callable[[], float]
    now: Callable[[], float]  # seconds since the epoch
    limits: RepartitionLimits
    retries: RetrySchedule = field(default_factory=RetrySchedule)
    immovable: Mapping[str, str] = field(default_factory=dict)  # as the last plan has it
    _plan_expectations: Expectations = field(init=False)
    _logged: dict[str, str] = field(default_factory=dict)  # the last refusal of each write
    _settled_at: float | None = None  # monotonic: when a hold will have lasted long enough

    def __post_init__(self) -> None:
        self._plan_expectations = Expectations(lambda _kind, _namespace: self.plan_mirror.store)

    def observe(
        self,
        snapshot: FleetSnapshot,
        intents: Iterable[ParsedIntent],
        view: MirrorView,
        recommended: Recommended,
        now: float,
    ) -> RepartitionRound:
        """Return the round that `perform` writes, with the snapshot that knows what is being changed."""
        plans = plan_objects(p for p in self.plan_mirror.store if is_of_changes(p) and self._ours(p))
        fleet = fleet_state(
            snapshot, intents, view.nodes, view.pods, plans, recommended, self.limits, now, self.immovable
        )
        step = next_step(fleet)
        settled = fleet.next_settled()
        self._settled_at = None if settled is None else self.clock() + settled - now
        partition = PartitionView(
            nodes=snapshot.partition.nodes,
            coming=step.coming,
            going=step.going,
            targets=step.targets,
            failed=failed_changes(plans, now),
            promised=snapshot.partition.promised,
            moves=step.moves,
            arriving=step.arriving,
            waiting=waiting_for_consent(plans.live),
        )
        return RepartitionRound(
            snapshot=replace(snapshot, partition=partition),
            fleet=fleet,
            step=step,
            nodes={key_of(node)[1]: node for node in view.nodes},
            gpu_nodes={key_of(obj)[1]: obj for obj in view.gpu_nodes},
            pods={"/".join(key_of(pod)): pod for pod in view.pods},
            gpu_node_names=frozenset(node.name for node in snapshot.nodes if node.sku is not None),
            plans=plans,
            recommended=recommended,
        )

    async def perform(self, current: RepartitionRound) -> None:
        """Write what the step decides. Raises NotLeader; other refusals are logged and tried again."""
        await self._ensure_gpu_nodes(current)
        if not self.plan_mirror.synced:
            return  # what is underway is not known: a hold would be lifted that a plan needs
        if self._may_write_plans():
            await self._write_plans(current)
        for action in current.step.actions:
            if self.now() > current.fleet.now + ROUND_S:
                log.warning("the writes of a round take long: the next one decides what is left of them")
                return
            match action:
                case HoldNode() | ReleaseNode():
                    await self._try(f"node {action.node}", self._change_hold, action, current)
                case MarkPod() | UnmarkPod():
                    cost = MARK if isinstance(action, MarkPod) else None
                    pod = current.pods[action.pod]
                    await self._try(f"pod {action.pod}", self._set_deletion_cost, pod, cost)
                case SetLayouts():
                    await self._try(f"gpunode {action.node}", self._set_layouts, action, current)

    def next_due(self) -> float | None:
        """Return the monotonic instant at which there is something to do, although nothing changed.

        A refused write may be tried again, or a hold has lasted long enough.
        """
        instants = (self.retries.next_due(self.clock()), self._settled_at)
        return min((at for at in instants if at is not None), default=None)

    async def _try(self, key: str, write: Callable[..., Any], *arguments: Any) -> None:
        if self.retries.blocked(key, self.clock()):
            return
        try:
            await write(*arguments)
        except ApiError as error:
            self.retries.record_failure(key, self.clock(), error.retry_after_s)
            text = f"{key}: not written: {error}"
            if self._logged.get(key) != text:
                self._logged[key] = text
                log.warning("%s", text)
        else:
            self.retries.record_success(key)
            self._logged.pop(key, None)

    async def _ensure_gpu_nodes(self, current: RepartitionRound) -> None:
        for name in sorted(current.gpu_node_names - current.gpu_nodes.keys()):
            await self._try(f"gpunode {name}", self._create_gpu_node, name)
        for name in sorted(current.gpu_nodes.keys() - current.nodes.keys()):
            await self._try(f"gpunode {name}", self._delete_gpu_node, current.gpu_nodes[name])

    async def _create_gpu_node(self, name: str) -> None:
        obj = {
            "apiVersion": GPU_NODES.api_version,
            "kind": GPU_NODES.kind,
            "metadata": {"name": name, "labels": self._labels()},
            "spec": {},
        }
        try:
            created = await self.client.create(GPU_NODES, obj, manager=MANAGER, guard=self.guard)
        except ApiError as error:
            if error.status == 409:
                return  # the mirror will show it
            raise
        self.expectations.expect_write(GPU_NODES, created, self.clock())

    async def _delete_gpu_node(self, obj: Object) -> None:
        """Delete the GPUNode of a node that is gone, unless a GPU of it is in quarantine."""
        name = key_of(obj)[1]
        if _is_quarantined(obj) or obj["metadata"].get("deletionTimestamp"):
            return
        live = await self.client.get(GPU_NODES, "", name)
        if live is None or not self._ours(live) or _is_quarantined(live):
            return
        if await self.client.get(NODES, "", name) is not None:
            return
        await self.client.delete(
            GPU_NODES,
            "",
            name,
            uid=uid_of(live),
            resource_version=live["metadata"]["resourceVersion"],
            guard=self.guard,
        )
        self.expectations.expect_deletion(GPU_NODES, ("", name), uid_of(live), self.clock())

    def _may_write_plans(self) -> bool:
        if not self.plan_mirror.synced or self.plan_mirror.unavailable:
            return False
        if self._plan_expectations.overdue(self.clock()):
            self.plan_mirror.request_relist()
        return not self._plan_expectations.open()

    async def _write_plans(self, current: RepartitionRound) -> None:
        objects = {key_of(plan)[1]: plan for plan in current.plans.live}
        for record, progress in zip(current.fleet.plans, current.step.progress, strict=True):
            await self._try(
                f"fleetplan {record.name}",
                self._write_plan,
                record,
                progress,
                objects.get(record.name),
                current,
            )
        final = [plan for plans in current.plans.final.values() for plan in plans]
        for plan in _forgotten(final):
            await self._try(f"fleetplan {key_of(plan)[1]}", self._delete_plan, plan)

    async def _write_plan(
        self, record: PlanRecord, progress: PlanProgress, plan: Object | None, current: RepartitionRound
    ) -> None:
        if plan is None:
            indices, fleet_plan = gpu_indices(current.gpu_nodes), current.recommended.fleet_plan
            obj = plan_object(record.name, record.changes, fleet_plan, self._labels(), indices)
            try:
                plan = await self.client.create(FLEET_PLANS, obj, manager=MANAGER, guard=self.guard)
            except ApiError as error:
                if error.status == 409:
                    return  # the mirror will show it
                raise
            self._plan_expectations.expect_write(FLEET_PLANS, plan, self.clock())
        status, before = plan_status(progress, record, current.fleet.now), plan.get("status") or {}
        is_early = str(before.get("since") or "") <= status["since"]  # else by another clock, or by hand
        if _timeless(status) == _timeless(before) and is_early:
            return
        stored = await apply_status(self.client, self.guard, FLEET_PLANS, plan, status, MANAGER)
        if stored is not None:
            self._plan_expectations.expect_write(FLEET_PLANS, stored, self.clock())
            if before.get("state") != status["state"]:
                log.info("FleetPlan %s is %s: %s", record.name, progress.state, progress.message)

    async def _delete_plan(self, plan: Object) -> None:
        await self.client.delete(FLEET_PLANS, *key_of(plan), uid=uid_of(plan), guard=self.guard)
        self._plan_expectations.expect_deletion(FLEET_PLANS, key_of(plan), uid_of(plan), self.clock())

    async def _change_hold(self, action: HoldNode | ReleaseNode, current: RepartitionRound) -> None:
        """Place or lift one hold. The version of the Node makes sure that no other taint is lost."""
        node = current.nodes[action.node]
        taints = [taint for taint in node["taints"] if held_resource(taint) != action.resource]
        if isinstance(action, HoldNode):
            # It closes the node from now on: the round may have taken long since it observed the fleet.
            value = hold_value(max(action.since, self.now()), action.until)
            key = hold_taint(action.resource)
            taints.append({"key": key, "value": value, "effect": "NoSchedule"})
        patch = {
            "metadata": {"resourceVersion": node["metadata"]["resourceVersion"]},
            "spec": {"taints": taints},
        }
        stored = await self.client.merge(NODES, "", action.node, patch, manager=MANAGER, guard=self.guard)
        self.expectations.expect_write(NODES, stored, self.clock())
        # Further holds on this node in this round start from the node as it is now; the mirror's is shared.
        meta = {**node["metadata"], "resourceVersion": stored["metadata"]["resourceVersion"]}
        current.nodes[action.node] = {**node, "metadata": meta, "taints": taints}

    async def _set_deletion_cost(self, pod: Object, cost: str | None) -> None:
        """Make a pod the first to go, or one like others, by its UID: another one of that name is left."""
        namespace, name = key_of(pod)
        patch = {
            "metadata": {"uid": uid_of(pod), "annotations": {DELETION_COST: cost}},
        }
        stored = await self.client.merge(PODS, namespace, name, patch, manager=MANAGER, guard=self.guard)
        self.expectations.expect_write(PODS, stored, self.clock())

    async def _set_layouts(self, action: SetLayouts, current: RepartitionRound) -> None:
        obj = current.gpu_nodes[action.node]
        node = current.fleet.node(action.node)
        layouts: dict[str, MIGLayout] = dict(node.partition.wanted) if node is not None else {}
        for gpu, layout in action.layouts:
            if layout is None:
                layouts.pop(gpu, None)
            else:
                layouts[gpu] = layout
        spec: Object = {
            "gpus": [{"id": id_on_node(g)} | layout_fields(layout) for g, layout in sorted(layouts.items())]
        }
        if action.plan:
            spec["planHash"] = action.plan
        body = {
            "apiVersion": GPU_NODES.api_version,
            "kind": GPU_NODES.kind,
            "metadata": {"name": action.node, "resourceVersion": obj["metadata"]["resourceVersion"]},
            "spec": spec,
        }
        stored = await self.client.apply(GPU_NODES, body, manager=MANAGER, force=True, guard=self.guard)
        self.expectations.expect_write(GPU_NODES, stored, self.clock())
        log.info("GPUNode %s: wanted layouts of FleetPlan %s", action.node, action.plan or "(none)")

    def _labels(self) -> dict[str, str]:
        return {MANAGED_BY_LABEL: MANAGED_BY, OPERATOR_LABEL: self.operator}

    def _ours(self, obj: Object) -> bool:
        return self._labels().items() <= (obj["metadata"].get("labels") or {}).items()


def _is_quarantined(gpu_node: Object) -> bool:
    return bool((gpu_node.get("status") or {}).get("quarantine"))


def _timeless(status: Object) -> Object:
    """Return a status without the instants that are computed anew in each round."""
    return {key: value for key, value in status.items() if key not in ("since", "deadline")}


def _forgotten(final: list[Object]) -> list[Object]:
    """Return the oldest plans, which are deleted. A rejection is kept for longer: it is remembered in it."""
    rejected = [plan for plan in final if (plan.get("status") or {}).get("state") == PlanState.REJECTED]
    others = [plan for plan in final if plan not in rejected]
    return [plan for plans in (rejected, others) for plan in sorted(plans, key=_since, reverse=True)[KEPT:]]


def _since(plan: Object) -> str:
    return str((plan.get("status") or {}).get("since") or rfc3339(0.0))
