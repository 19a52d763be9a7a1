"""A round of the backend over mig-manager: one step for each of its nodes, and its effect.

Level-triggered: each round decides from what is there. A label is set only where the same step comes out of
the GPUNode, the Node and the pods of the node as the API server has them now: mirrors may be behind. The
status is written after the action, in the version of the GPUNode that was read, so that it never says more
than was done; after a crash in between, the next round finds the action done.
"""

import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime

from tangram.kube.client import ApiClient, ApiError, Guard
from tangram.kube.kinds import GPU_NODES, NODES, PODS, Object, key_of, labels_of
from tangram.kube.retry_delays import RetrySchedule
from tangram.partition.mig_manager.config_entries import ConfigTooLarge, MIGConfig
from tangram.partition.mig_manager.decision import MIGManagerTimes, SetLabels, WriteEntry
from tangram.partition.mig_manager.managed_node import gpu_pods, managed_node
from tangram.partition.mig_manager.step import MIGManagerStep, step
from tangram.partition.status.operator_labels import MIG_CONFIG_LABEL
from tangram.shell.lead.lease import NotLeader
from tangram.shell.lead.round_writes import write_in_turn
from tangram.shell.measure.fault_log import FaultHandler
from tangram.shell.mig_manager.config_map import MANAGER, MIGConfigMap

log = logging.getLogger(__name__)

DELAYS_S = (5.0, 30.0, 120.0, 600.0)  # after refusals
_CONFIG = "mig-manager configuration"  # key of the penalty


@dataclass(frozen=True, slots=True)
class _DueStep:
    """A node with the objects of which its step was made."""

    gpu_node: Object
    node: Object
    pods: tuple[Object, ...]
    done: MIGManagerStep


@dataclass(slots=True)
class ManagedLayouts:
    """Brings the nodes of mig-manager to the layouts of their GPUNodes. Needs the rights to get, create and
    patch the ConfigMap, to get the ClusterPolicy (with `edits_cluster_policy` to patch it), to get and patch
    Nodes, to list pods, to get GPUNodes and to patch their status.
    """

    client: ApiClient
    guard: Guard
    clock: Callable[[], float]  # seconds, monotonic
    now: Callable[[], datetime]
    namespace: str  # of the GPU Operator
    version: str  # of this program
    config_map: str = "tangram-mig-config"
    cluster_policy: str = "cluster-policy"
    edits_cluster_policy: bool = False
    times: MIGManagerTimes = field(default_factory=MIGManagerTimes)
    retries: RetrySchedule = field(default_factory=lambda: RetrySchedule(DELAYS_S))
    failed: FaultHandler = lambda _step, _name, _uid, _error: None  # called with each bug that a node meets
    unfinished: bool = False  # the last round left nodes to the next one
    _refused: dict[str, str] = field(default_factory=dict)  # by node: the refusal as it was logged
    _config_map: MIGConfigMap = field(init=False)

    def __post_init__(self) -> None:
        self._config_map = MIGConfigMap(
            self.client, self.guard, self.namespace, self.config_map, self.cluster_policy
        )

    async def round(
        self,
        gpu_nodes: Iterable[Object],
        nodes: Iterable[Object],
        pods: Iterable[Object],
        managed: Collection[str],
    ) -> None:
        """Do one step for each node of `managed` that has a GPUNode and a Node, as mirrored or as read.

        `nodes`, `pods`: all of the cluster. Raises NotLeader; other refusals are logged once and retried.
        """
        self.unfinished = False
        by_name = {node["metadata"]["name"]: node for node in nodes}
        due = [obj for obj in gpu_nodes if key_of(obj)[1] in managed and key_of(obj)[1] in by_name]
        self._forget(set(by_name))
        if not due or self.retries.blocked(_CONFIG, self.clock()):
            return
        try:
            config = await self._config_map.read(by_name.values())
            if self.edits_cluster_policy and await self._config_map.name_in_policy():
                log.info("ClusterPolicy %s names the ConfigMap %s now", config.policy, config.name)
                self.unfinished = True
                return  # the next round reads it
        except ApiError as error:
            self._record(_CONFIG, error)
            return
        self._succeeded(_CONFIG)
        steps = self._steps(due, by_name, tuple(pods), config)
        used = {labels_of(node).get(MIG_CONFIG_LABEL, "") for node in by_name.values()}
        used |= {str((obj.get("status") or {}).get("migConfig", "")) for obj in due}
        used |= {each.done.target or "" for each in steps}
        is_written = await self._add_entries(steps, used)
        if not is_written:
            steps = [each for each in steps if not isinstance(each.done.action, WriteEntry)]
        _, finished = await write_in_turn(steps, lambda _step: "", self._perform, self.clock)
        self.unfinished |= not finished

    def _steps(
        self, due: list[Object], nodes: dict[str, Object], pods: tuple[Object, ...], config: MIGConfig
    ) -> list[_DueStep]:
        """Return the steps of the nodes."""
        by_node: dict[str, list[Object]] = {}
        for pod in pods:
            where = pod.get("nodeName") or (pod.get("spec") or {}).get("nodeName") or ""
            by_node.setdefault(where, []).append(pod)
        found = list[_DueStep]()
        for obj in sorted(due, key=key_of):
            name = key_of(obj)[1]
            there = tuple(by_node.get(name, ()))
            try:
                done = self._step(obj, nodes[name], there, config)
            except Exception as error:  # noqa: BLE001 - a bug of ours stops this node alone
                self.failed("mig-manager", name, "", error)
                continue
            if done is not None:
                found.append(_DueStep(obj, nodes[name], there, done))
        return found

    async def _add_entries(self, steps: list[_DueStep], used: set[str]) -> bool:
        """Add all entries that are due in one write; whether they are there now."""
        adding = {
            key_of(each.gpu_node)[1]: each.done.action.counts
            for each in steps
            if isinstance(each.done.action, WriteEntry)
        }
        if not adding:
            return await self._create_config_map()
        try:
            await self._config_map.add(dict.fromkeys(adding.values()), used)
        except (ApiError, ConfigTooLarge) as error:
            if not isinstance(error, ApiError) or error.status != 409:
                for name in adding:
                    self._record(_action_key(name), error)
            return False
        log.info("ConfigMap %s: added the entries of %s", self.config_map, ", ".join(adding))
        for name in adding:
            self._succeeded(_action_key(name))
        return True

    async def _create_config_map(self) -> bool:
        """Create the ConfigMap before any layout is wanted, so that a ClusterPolicy may name it."""
        try:
            if await self._config_map.create():
                log.info("ConfigMap %s/%s is created", self.namespace, self.config_map)
                self.unfinished = True
        except ApiError as error:
            if error.status != 409:
                self._record(_CONFIG, error)
        return True

    def _step(
        self, gpu_node: Object, node: Object, pods: Iterable[Object], config: MIGConfig
    ) -> MIGManagerStep | None:
        name = key_of(gpu_node)[1]
        is_refused = self.retries.blocked(_action_key(name), self.clock())
        return step(
            gpu_node,
            managed_node(node),
            gpu_pods(pods, name),
            config,
            self.now(),
            self.version,
            self.times,
            self._refused.get(name, "refused before") if is_refused else "",
        )

    async def _perform(self, due: _DueStep) -> None:
        """Do the action of a step and write its status."""
        name = key_of(due.gpu_node)[1]
        if due.done.action is None and due.done.status == (due.gpu_node.get("status") or {}):
            return
        if self.retries.blocked(name, self.clock()):
            return
        try:
            current = await self._act(due)
            if current is not None:
                await self._write_status(current)
        except NotLeader:
            raise
        except ApiError as error:
            if error.status not in (404, 409):  # else it has changed: the next round decides again
                self._record(name, error)
            return
        except Exception as error:  # noqa: BLE001 - a bug of ours stops this node alone
            self.retries.record_failure(name, self.clock())
            self.failed("mig-manager", name, "", error)
            return
        self.retries.record_success(name)

    async def _act(self, due: _DueStep) -> _DueStep | None:
        """Set the labels that are due, and return the step whose status holds now; None: nothing was done."""
        if not isinstance(due.done.action, SetLabels):
            return due
        current = await self._read_again(due)
        if current is None:
            return None
        key = _action_key(key_of(due.gpu_node)[1])
        try:
            await self._set_labels(current.node, due.done.action)
        except ApiError as error:
            if error.status in (404, 409):
                raise
            self._record(key, error)
            return None
        self._succeeded(key)
        return current

    async def _read_again(self, due: _DueStep) -> _DueStep | None:
        """Return the same step from objects as the API server has them now; None: another one is due."""
        name = key_of(due.gpu_node)[1]
        gpu_node = await self.client.get(GPU_NODES, "", name)
        node = await self.client.get(NODES, "", name)
        if gpu_node is None or node is None:
            return None
        listing = await self.client.list(
            PODS, field_selector=f"spec.nodeName={name}"
        )  # last: they change fastest
        pods = tuple(listing.items)
        done = self._step(gpu_node, node, pods, self._config_map.config)
        if done is None or done.action != due.done.action:
            return None
        return _DueStep(gpu_node, node, pods, done)

    async def _set_labels(self, node: Object, action: SetLabels) -> None:
        name, labels = node["metadata"]["name"], dict(action.labels)
        patch = {
            "metadata": {
                "uid": node["metadata"]["uid"],
                "resourceVersion": node["metadata"]["resourceVersion"],
                "labels": labels,
            }
        }
        await self.client.merge(NODES, "", name, patch, manager=MANAGER, guard=self.guard)
        log.info("%s: %s: set %s", name, action.purpose, ", ".join(f"{k}={v}" for k, v in labels.items()))

    async def _write_status(self, due: _DueStep) -> None:
        """Write the status, if the GPUNode still has the version that was read."""
        meta = due.gpu_node["metadata"]
        if due.done.status == (due.gpu_node.get("status") or {}):
            return
        body = {
            "apiVersion": GPU_NODES.api_version,
            "kind": GPU_NODES.kind,
            "metadata": {"name": meta["name"], "resourceVersion": meta["resourceVersion"]},
            "status": due.done.status,
        }
        await self.client.apply(
            GPU_NODES, body, manager=MANAGER, force=True, subresource="status", guard=self.guard
        )

    def _record(self, key: str, error: ApiError | ConfigTooLarge) -> None:
        """Delay the next attempt; log a refusal, unless it is the same as the last one."""
        after_s = error.retry_after_s if isinstance(error, ApiError) else 0.0
        self.retries.record_failure(key, self.clock(), after_s)
        name = key.removeprefix(_action_key(""))
        if self._refused.get(name) != str(error):
            self._refused[name] = str(error)
            log.warning("%s: %s", name, error)

    def _succeeded(self, key: str) -> None:
        self.retries.record_success(key)
        self._refused.pop(key.removeprefix(_action_key("")), None)

    def _forget(self, names: set[str]) -> None:
        for name in self._refused.keys() - names - {_CONFIG}:
            del self._refused[name]
        self.retries.retain({*names, *map(_action_key, names), _CONFIG})


def _action_key(node: str) -> str:
    return f"action {node}"
