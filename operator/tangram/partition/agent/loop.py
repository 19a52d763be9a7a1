"""One round of the agent: observe, publish, and do at most one operation.

An operation begins only after the status that announces it was written, and after its GPU and the holders of
its devices were read again. Whatever ends the process, the next one goes on from the status and the driver.
Where a watch shows both objects, a round in which nothing is due makes no call of the API.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NoReturn, Protocol

import pynvml

from tangram.api.gpu_node import GPUNodeCondition, InstanceHolder
from tangram.kube.client import ApiError
from tangram.partition.agent.cluster import NodeObjects
from tangram.partition.agent.device_plugin import (
    APPLYING,
    RESTARTING,
    DevicePluginPod,
    offers,
    outdated,
    restart,
)
from tangram.partition.agent.driver_thread import DriverHangs, DriverThread, GPUDriver
from tangram.partition.agent.layout_work import LayoutWork, layout_work
from tangram.partition.agent.metrics import AgentMetrics
from tangram.partition.agent.node_labels import conflict
from tangram.partition.agent.node_status import node_identity, node_status
from tangram.partition.agent.pod_resources import DeviceAllocations, PodResourcesFailure
from tangram.partition.device_usage import DeviceUsage, device_usage
from tangram.partition.difference import LayoutOperation, difference
from tangram.partition.layouts import ObservedLayout, WantedLayout
from tangram.partition.nvml import NVMLFailure
from tangram.partition.status.attempts import (
    GPURecord,
    OperationFailure,
    after_failure,
    after_success,
)
from tangram.partition.status.conditions import NodeConditionState, named
from tangram.partition.status.node_record import (
    FormerStatus,
    NodeStates,
    former_status,
    parse_wanted,
)
from tangram.partition.status.times import parse_api_time

log = logging.getLogger(__name__)

GPM_WINDOW_S = 0.2  # between two samples; at least 0.1
RESTART_ROUND_S = 3.0  # between rounds while the device plugin restarts: its pod is not watched
FREED_TRIES, FREED_PAUSE_S = 40, 0.5  # for the MIG mode, once the device plugin was told to end

_READY = NodeConditionState("True", "Running", "the agent knows the GPUs of this node")


class DeviceHolders(Protocol):
    """Which pods hold which devices."""

    def allocations(self) -> DeviceAllocations:
        """Return the pods that hold devices. Raises `PodResourcesFailure`."""


@dataclass(frozen=True, slots=True)
class NodeObservation:
    """What the driver and the kubelet said in one round; `ready` says what they did not."""

    ready: NodeConditionState = _READY
    layouts: Mapping[str, ObservedLayout] = field(default_factory=dict)
    holders: Mapping[str, InstanceHolder] = field(default_factory=dict)
    failures: Mapping[str, NVMLFailure] = field(default_factory=dict)  # by GPU that could not be observed
    driver_version: str | None = None

    @property
    def is_known(self) -> bool:
        """Whether anything may be decided from it."""
        return bool(self.layouts) or self.ready.status == "True"


@dataclass(frozen=True, slots=True)
class AgentRound:
    """What one round observed, and what it decided."""

    version: str  # resourceVersion of the GPUNode
    wanted: tuple[WantedLayout, ...]
    records: Mapping[str, GPURecord]
    work: LayoutWork
    status: dict[str, Any]
    observation: NodeObservation
    plugin_pods: tuple[DevicePluginPod, ...] = ()

    def due_s(self, now: datetime) -> float | None:
        """Return the seconds until a wait of this node is over; None where it waits for no time."""
        waits = [record.back_off_left_s(now) for record in self._waiting_records()]
        applied = named(former_status(self.status).conditions, "Applied")
        deadline = parse_api_time(applied.deadline) if applied and applied.reason == RESTARTING else None
        if deadline is not None and now < deadline:
            waits.append(RESTART_ROUND_S)
        return min((wait for wait in waits if wait is not None), default=None)

    def _waiting_records(self) -> Iterator[GPURecord]:
        return (self.records[layout.gpu] for layout in self.wanted if layout.gpu in self.records)


@dataclass(slots=True)
class NodeAgent:
    """The agent of one node. Clock, driver, kubelet and API are passed in.

    `copies`: GPUNode and Node as watches show them; None where they do not.
    """

    objects: NodeObjects
    driver: DriverThread
    pods: DeviceHolders
    clock: Callable[[], datetime]
    copies: Callable[[], tuple[dict[str, Any], dict[str, Any]] | None] = lambda: None
    metrics: AgentMetrics = field(default_factory=AgentMetrics)
    pause: Callable[[float], None] = time.sleep
    due_s: float | None = field(default=None, init=False)  # from the end of the last round; None: no time
    # Operations were done and the device plugin was not restarted since. The status says it, too; it is gone
    # where the GPUNode was deleted.
    _has_changed: bool = field(default=False, init=False)

    def round(self, *, from_copies: bool = False) -> bool:
        """Do one round; return whether the next one may follow at once.

        `from_copies`: nothing is known to have changed, so that watched copies may stand in for the objects.
        Raises `ApiError` where the API fails, and `DriverHangs`, published unless the API fails.
        """
        self.due_s = None
        agent_round = self._unchanged() if from_copies else None
        agent_round = agent_round or self._decide({})
        if agent_round is None:
            self.metrics.show((), {}, {})
            return False
        if agent_round.work.operation is None:
            applied = named(former_status(agent_round.status).conditions, "Applied")
            self._has_changed &= applied is not None and applied.reason == RESTARTING
            self._delete_outdated(agent_round)
            self._measure(agent_round)
            self.due_s = agent_round.due_s(self.clock())
            return False
        records = self._perform(agent_round.work.operation, agent_round)
        if records is not None:
            self._decide(records)
        return True

    def _unchanged(self) -> AgentRound | None:
        """Return a round by the watched copies if it has nothing to write or to do; else None.

        Whatever a round writes or does rests on the objects as the API server holds them now.
        """
        copies = self.copies()
        if copies is None:
            return None
        obj, node = copies
        former = former_status(obj.get("status") or {})
        last = named(former.conditions, "Applied")
        if former.backend != "NVML" or last is None or last.reason in (APPLYING, RESTARTING):
            return None
        try:
            observation = self._observe(tuple(former.gpus))
        except DriverHangs as hang:
            self._end({}, hang)
        agent_round = self._decided_round(obj, node, former, observation, dict(former.records), self.clock())
        is_idle = agent_round.work.operation is None and agent_round.status == obj.get("status")
        return agent_round if is_idle else None

    def _decide(self, changed: Mapping[str, GPURecord], hang: DriverHangs | None = None) -> AgentRound | None:
        """Observe, decide and publish; `changed`: records that are newer than those of the status.

        `hang`: of a call before, after which the driver is not called again. None where there is nothing to
        write a status of.
        """
        obj, node = self.objects.gpu_node(), self.objects.node()
        if obj is None or node is None:
            log.info("waiting for the %s of this node", "GPUNode" if obj is None else "Node")
            return None
        stored = obj.get("status") or {}
        former = former_status(stored)
        if former.backend not in (None, "NVML"):
            log.warning("the status of the GPUNode is written by the backend %s: waiting", former.backend)
            return None
        now = self.clock()
        if hang is None:
            try:
                observation = self._observe(tuple(former.gpus))
            except DriverHangs as error:
                self._end(changed, error)
        else:
            observation = NodeObservation(NodeConditionState("False", "DriverHangs", str(hang)))
        agent_round = self._decided_round(obj, node, former, observation, {**former.records, **changed}, now)
        if agent_round.status != stored:
            self.objects.apply_status(agent_round.version, agent_round.status)
        return agent_round

    def _end(self, changed: Mapping[str, GPURecord], hang: DriverHangs) -> NoReturn:
        """Publish that the driver hangs, if possible, and raise it: only another process calls again."""
        try:
            self._decide(changed, hang)
        except ApiError as error:
            log.warning("%s: not published: %s", hang, error)
        raise hang

    def _observe(self, known: tuple[str, ...]) -> NodeObservation:
        """Return what is there. `known`: GPUs of the status, for a driver that cannot list them."""
        try:
            allocations = self.pods.allocations()
        except PodResourcesFailure as error:
            return NodeObservation(NodeConditionState("False", "PodResourcesUnavailable", str(error)))
        try:
            return self.driver.run(lambda driver: _observed(driver, known, allocations))
        except NVMLFailure as failure:
            return NodeObservation(NodeConditionState("False", "DriverUnavailable", str(failure)))

    def _decided_round(
        self,
        obj: dict[str, Any],
        node: dict[str, Any],
        former: FormerStatus,
        observation: NodeObservation,
        records: dict[str, GPURecord],
        now: datetime,
    ) -> AgentRound:
        """Decide, and make the status; nothing is written yet."""
        parsed = parse_wanted(obj.get("spec"))
        wanted = parsed if isinstance(parsed, tuple) else ()
        records = _updated(records, wanted, observation, now)
        last = named(former.conditions, "Applied")
        work, state, pods = self._work(parsed, last, node, observation, records, now)
        status = node_status(
            node_identity(obj, node, observation.driver_version),
            observation.layouts.values(),
            observation.holders,
            wanted,
            former,
            records,
            NodeStates(observation.ready, state),
            observation.failures if observation.is_known else former.gpus,
            now,
        )
        version = str(obj["metadata"]["resourceVersion"])
        return AgentRound(version, wanted, records, work, status, observation, pods)

    def _work(
        self,
        parsed: tuple[WantedLayout, ...] | NodeConditionState,
        last: GPUNodeCondition | None,
        node: dict[str, Any],
        observation: NodeObservation,
        records: dict[str, GPURecord],
        now: datetime,
    ) -> tuple[LayoutWork, NodeConditionState, tuple[DevicePluginPod, ...]]:
        """Return what is due on the GPUs, the state Applied, and the pods of the device plugin where they
        count. `last`: Applied as it was.
        """
        if not observation.is_known:
            return LayoutWork(), _not_observed(last, observation.ready), ()
        refusal = conflict(node["metadata"].get("labels") or {})
        if refusal is not None:  # where components were paused, the device plugin starts again after it
            return LayoutWork(), refusal, ()
        wanted = parsed if isinstance(parsed, tuple) else ()
        work = layout_work(wanted, observation.layouts, observation.holders, records, now)
        state = work.state() if isinstance(parsed, tuple) else parsed
        if work.operation is not None or not (last is None or last.reason in (APPLYING, RESTARTING)):
            return work, state, ()
        pods = tuple(self.objects.device_plugin_pods())
        return work, self._restart(last, pods, observation, node, is_cut=bool(wanted)) or state, pods

    def _restart(
        self,
        last: GPUNodeCondition | None,
        pods: tuple[DevicePluginPod, ...],
        observation: NodeObservation,
        node: dict[str, Any],
        *,
        is_cut: bool,
    ) -> NodeConditionState | None:
        """Return the state while the device plugin restarts; None: it need not."""
        allocatable = (node.get("status") or {}).get("allocatable") or {}
        offers_all = offers(observation.layouts.values(), allocatable)
        return restart(last, pods, offers_all=offers_all, is_cut=is_cut, has_changed=self._has_changed)

    def _measure(self, agent_round: AgentRound) -> None:
        """Show the GPUs, and what they use: once nothing is left to do, so that no operation waits for it."""
        layouts, usages = agent_round.observation.layouts.values(), dict[str, DeviceUsage]()
        if layouts:
            try:
                usages.update(
                    self.driver.run(
                        lambda driver: device_usage(driver, layouts, lambda: self.pause(GPM_WINDOW_S))
                    )
                )
            except NVMLFailure as failure:
                log.info("the usage of the GPUs is not known: %s", failure)
            except DriverHangs as hang:
                self._end({}, hang)
        known = {layout.gpu: False for layout in layouts}
        quarantined = {gpu: record.quarantine is not None for gpu, record in agent_round.records.items()}
        self.metrics.show(layouts, agent_round.observation.holders, {**known, **quarantined}, usages)

    def _delete_outdated(self, agent_round: AgentRound) -> None:
        current = named(former_status(agent_round.status).conditions, "Applied")
        for pod in outdated(current, agent_round.plugin_pods):
            if not pod.is_ending:
                log.info("restarting the device plugin: deleting %s", pod)
                self.objects.delete_pod(pod)

    def _perform(self, operation: LayoutOperation, agent_round: AgentRound) -> dict[str, GPURecord] | None:
        """Do the operation, if it still is the next one; return the records that it changes."""
        wanted = next(layout for layout in agent_round.wanted if layout.gpu == operation.gpu)
        record = agent_round.records.get(operation.gpu, GPURecord())
        log.info("%s", operation)
        self._has_changed = True
        try:
            with self.metrics.operation(operation.kind) as timing:
                is_done = self._applied(operation, wanted)
                timing.result = "done" if is_done else "obsolete"
        except NVMLFailure as error:
            failure = _failure(str(operation), error)
        except PodResourcesFailure as error:
            log.warning("%s: not done: %s", operation, error)
            return None
        except DriverHangs as error:
            failure = OperationFailure(str(operation), "TIMEOUT", str(error))
            self._end({operation.gpu: after_failure(operation.gpu, record, failure, self.clock())}, error)
        else:
            is_first_success = is_done and record.attempts is not None
            return {operation.gpu: after_success(record)} if is_first_success else None
        log.warning("%s", failure.message)
        return {operation.gpu: after_failure(operation.gpu, record, failure, self.clock())}

    def _applied(self, operation: LayoutOperation, wanted: WantedLayout) -> bool:
        """Apply the operation; where another client holds a GPU whose mode changes, without device plugin."""
        try:
            return self.driver.run(lambda driver: self._apply(driver, operation, wanted))
        except NVMLFailure as failure:
            pods = self.objects.device_plugin_pods() if _is_held_open(operation, failure) else []
            if not pods:
                raise
            return self._applied_without_plugin(operation, wanted, pods)

    def _applied_without_plugin(
        self, operation: LayoutOperation, wanted: WantedLayout, pods: Iterable[DevicePluginPod]
    ) -> bool:
        """End the device plugin, and apply the operation before another pod of it holds the GPU again.

        It watches the GPUs for errors, and the driver changes the mode of no GPU that a client holds
        (docs.nvidia.com/datacenter/tesla/mig-user-guide, Enable MIG Mode). Its DaemonSet starts another pod.
        """
        for pod in pods:
            log.info("%s is held by another client: deleting %s", operation.gpu, pod)
            self.objects.delete_pod(pod)
        for _ in range(FREED_TRIES - 1):
            self.pause(FREED_PAUSE_S)
            try:
                return self.driver.run(lambda driver: self._apply(driver, operation, wanted))
            except NVMLFailure as failure:
                if not _is_held_open(operation, failure):
                    raise
        self.pause(FREED_PAUSE_S)
        return self.driver.run(lambda driver: self._apply(driver, operation, wanted))

    def _apply(self, driver: GPUDriver, operation: LayoutOperation, wanted: WantedLayout) -> bool:
        """Apply the operation to what is there now; False where it is not the next one any more."""
        observed = driver.observe(operation.gpu)
        held = self.pods.allocations().among((observed,)).keys()  # last: it changes fastest
        left = difference(observed, wanted, held)
        if left.operations[:1] != (operation,):
            return False
        driver.apply(operation)
        return True


def _observed(driver: GPUDriver, known: tuple[str, ...], allocations: DeviceAllocations) -> NodeObservation:
    """Observe all GPUs; one that cannot be observed does not hide the others."""
    try:
        gpus = driver.gpus()
    except NVMLFailure:
        if not known:
            raise
        gpus = known
    layouts: dict[str, ObservedLayout] = {}
    failures: dict[str, NVMLFailure] = {}
    for gpu in gpus:
        try:
            layouts[gpu] = driver.observe(gpu)
        except NVMLFailure as failure:
            failures[gpu] = failure
    ready = _READY
    unexplained = {gpu: failure for gpu, failure in failures.items() if not _is_lost(failure)}
    if unexplained:
        text = "; ".join(f"{gpu}: {failure}" for gpu, failure in sorted(unexplained.items()))
        ready = NodeConditionState("False", "GPUNotObserved", text)
    holders = allocations.among(layouts.values())
    return NodeObservation(ready, layouts, holders, failures, driver.version())


def _updated(
    records: dict[str, GPURecord],
    wanted: tuple[WantedLayout, ...],
    observation: NodeObservation,
    now: datetime,
) -> dict[str, GPURecord]:
    """Return the records with lost GPUs in quarantine, and without failures on GPUs that are as wanted."""
    updated = dict(records)
    for gpu, error in observation.failures.items():
        if _is_lost(error):
            failure = _failure(f"observing {gpu}", error)
            updated[gpu] = after_failure(gpu, updated.get(gpu, GPURecord()), failure, now)
    for layout in wanted:
        observed, record = observation.layouts.get(layout.gpu), updated.get(layout.gpu)
        if observed and record and layout.is_applied(observed):
            updated[layout.gpu] = after_success(record)
    return updated


def _failure(tried: str, error: NVMLFailure) -> OperationFailure:
    return OperationFailure(tried, error.error, str(error), error.code, error.is_retryable, _is_lost(error))


def _is_held_open(operation: LayoutOperation, failure: NVMLFailure) -> bool:
    """Whether the mode of a GPU does not change because another client of the driver has it open."""
    return operation.kind == "set-mode" and failure.code == pynvml.NVML_ERROR_IN_USE


def _is_lost(error: NVMLFailure) -> bool:
    return bool(error.code == pynvml.NVML_ERROR_GPU_IS_LOST)


def _not_observed(last: GPUNodeCondition | None, ready: NodeConditionState) -> NodeConditionState:
    """Return the condition Applied where nothing is known: a restart of the device plugin stays due."""
    if last is not None and last.reason in (APPLYING, RESTARTING):
        return NodeConditionState(last.status, last.reason, last.message, last.waits_for)
    return replace(ready, status="Unknown", reason="NotObserved")
