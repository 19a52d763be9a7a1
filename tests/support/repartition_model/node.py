"""One node: its GPUs, its GPUNode, the agent, the device plugin, the kubelet, and the pods on it.

A pod is known by its device, for no two pods have the same; pods without a device are alike. Where the
GPUNode's status names a pod that has ended since, the pod of the status is another one than that which may
have the device now.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from tests.support.repartition_model.layouts import (
    NONE,
    LawBroken,
    devices_of,
    is_legal_layout,
    layout_of,
    next_layout,
    numbered,
)

QUARANTINE = 2  # failures of the driver
STARTING, AVAILABLE, TERMINATING = 0, 1, 2  # phases of a pod
UNMARKED, MARKED, SEEN = 0, 1, 2  # the mark of a pod; SEEN: the ReplicaSet controller knows it
T = TypeVar("T")


class PodKind(NamedTuple):
    """What pods have in common."""

    resource: int  # of its one device
    owner: int = NONE  # the LLMDeployment of which it is a replica


class GPUState(NamedTuple):
    """One GPU."""

    actual: int  # layout
    wanted: int = NONE  # by the GPUNode's spec
    reported: int = NONE  # by its status
    # Devices in use, by the status: (start, whether the pod that it names is the one that has the device now)
    held: tuple[tuple[int, bool], ...] = ()
    offered: int = NONE  # layout that the device plugin offers
    failures: int = 0
    backs_off: bool = False


class PodState(NamedTuple):
    """One pod that is bound to the node."""

    kind: int
    gpu: int = NONE  # NONE: the kubelet has given it no device yet
    start: int = NONE
    phase: int = STARTING
    mark: int = UNMARKED


class NodeState(NamedTuple):
    """One node with its GPUNode and its agent."""

    gpus: tuple[GPUState, ...]
    pods: tuple[PodState, ...] = ()  # sorted
    exists: bool = True
    is_current: bool = True  # the status is about the present spec and boot
    is_applied: bool = True
    plugin_due: bool = False  # the device plugin has to start anew
    plugin_down: bool = False  # its pod was deleted, and the next one has not started
    announced: tuple[int, int] = (NONE, 0)  # (GPU, its layout afterwards): what the agent does next
    # (resource, age in ticks, ticks left or NONE, whether the scheduler has seen a hold for it), sorted
    holds: tuple[tuple[int, int, int, bool], ...] = ()


class Changed(NamedTuple):
    """The objects that a step changes: a write that was decided before is refused."""

    node: bool = False
    gpu_node: bool = False
    ended: tuple[tuple[int, int], ...] = ()  # (GPU, start) of pods that are gone


class NodeStep(NamedTuple):
    """One step on a node."""

    name: str
    after: NodeState
    changed: Changed = Changed()


def put(items: tuple[T, ...], index: int, item: T) -> tuple[T, ...]:
    """Return the items with another one at an index."""
    return (*items[:index], item, *items[index + 1 :])


def on_gpu(node: NodeState, gpu: int) -> list[PodState]:
    """Return the pods that have devices of a GPU."""
    return [pod for pod in node.pods if pod.gpu == gpu]


def with_pod(node: NodeState, pod: PodState) -> NodeState:
    """Return the node with one more pod."""
    return node._replace(pods=tuple(sorted((*node.pods, pod))))


def without_pod(node: NodeState, pod: PodState) -> NodeState:
    """Return the node after the end of a pod."""
    pods = list(node.pods)
    pods.remove(pod)
    node = node._replace(pods=tuple(pods))
    if pod.gpu == NONE:
        return node
    gpu = node.gpus[pod.gpu]
    held = tuple((start, known and start != pod.start) for start, known in gpu.held)
    return node._replace(gpus=put(node.gpus, pod.gpu, gpu._replace(held=held)))


def with_other_pod(node: NodeState, pod: PodState, other: PodState) -> NodeState:
    """Return the node with a pod in another state."""
    pods = list(node.pods)
    pods[pods.index(pod)] = other
    return node._replace(pods=tuple(sorted(pods)))


def set_layouts(node: NodeState, layouts: tuple[tuple[int, int], ...]) -> NodeState:
    """Return the node after a write of wanted layouts: (GPU, layout) each."""
    gpus = node.gpus
    for gpu, wanted in layouts:
        gpus = put(gpus, gpu, gpus[gpu]._replace(wanted=wanted))
    return node._replace(gpus=gpus, is_current=False, is_applied=False)


def tick(node: NodeState) -> NodeState:
    """Let half a minute pass: holds grow older, back-offs end, controllers have seen what there is."""
    holds = tuple((r, 1, left if left == NONE else max(0, left - 1), True) for r, _, left, _ in node.holds)
    gpus = tuple(gpu._replace(backs_off=False) for gpu in node.gpus)
    pods = tuple(pod._replace(mark=SEEN) if pod.mark else pod for pod in node.pods)
    return node._replace(holds=holds, gpus=gpus, pods=pods)


def has_room(node: NodeState, kinds: tuple[PodKind, ...], resource: int) -> bool:
    """Whether the scheduler, which may not have seen a hold that is new, places a pod on a node."""
    if not node.exists or any(r == resource and seen for r, _, _, seen in node.holds):
        return False
    offered = sum(r == resource for gpu in node.gpus for _, r in devices_of(gpu.offered))
    return offered > sum(kinds[pod.kind].resource == resource for pod in node.pods)


def offer(node: NodeState, *, is_down: bool) -> tuple[NodeState, Changed]:
    """Let a node offer what its GPUs hold, or nothing while its device plugin is down."""
    nothing = numbered("empty")
    gpus = tuple(gpu._replace(offered=nothing if is_down else gpu.actual) for gpu in node.gpus)
    after = node._replace(gpus=gpus, plugin_due=False, plugin_down=is_down)
    return after, Changed(node=gpus != node.gpus)


def report(node: NodeState, *, is_applied: bool) -> NodeState:
    """Return the node after a report of its agent."""
    gpus = tuple(
        gpu._replace(
            reported=gpu.actual, held=tuple(sorted((pod.start, True) for pod in on_gpu(node, index)))
        )
        for index, gpu in enumerate(node.gpus)
    )
    return node._replace(gpus=gpus, is_current=True, is_applied=is_applied)


@dataclass(frozen=True)
class NodeSteps:
    """The steps that may follow on a node. `tampered`: what follows is not the operator's doing."""

    kinds: tuple[PodKind, ...]
    tampered: bool

    # ---- the agent ------------------------------------------------------------------------------------

    def agent(self, node: NodeState) -> Iterator[NodeStep]:
        """Yield what the agent may do next: announce, perform, restart the plugin, report."""
        if not node.exists:
            return
        operation = self._next_operation(node)
        if node.announced[0] != NONE:
            yield from self._perform(node)
        elif operation is not None:
            reported = report(node, is_applied=False)
            yield NodeStep(
                "the agent announces", reported._replace(announced=operation), _reported(node, reported)
            )
        elif node.plugin_due:
            yield NodeStep("the agent deletes the device plugin", *offer(node, is_down=True))
        elif node.plugin_down and not node.holds:  # it tolerates no hold
            yield NodeStep("the device plugin starts", *offer(node, is_down=False))
        else:
            is_cut = all(gpu.wanted in (NONE, gpu.actual) for gpu in node.gpus)
            reported = report(node, is_applied=is_cut and not node.plugin_down)
            if reported != node:
                yield NodeStep("the agent reports", reported, Changed(gpu_node=True))

    def agent_fails(self, node: NodeState) -> Iterator[NodeStep]:
        """Yield the ways in which the agent may fail at what it has announced."""
        gpu, after = node.announced
        if not node.exists or gpu == NONE:
            return
        item = node.gpus[gpu]
        idle = node._replace(announced=(NONE, 0), plugin_due=True)
        for name, failures in (("fails", item.failures + 1), ("quarantines a GPU", QUARANTINE)):
            failed = item._replace(failures=failures, backs_off=True)
            reported = report(idle._replace(gpus=put(node.gpus, gpu, failed)), is_applied=False)
            yield NodeStep(f"the agent {name}", reported, Changed(gpu_node=True))
        yield NodeStep("the agent cuts and ends", self._cut(node, gpu, after))
        yield NodeStep("the agent ends", idle)

    def _next_operation(self, node: NodeState) -> tuple[int, int] | None:
        for index, gpu in enumerate(node.gpus):
            if gpu.wanted != NONE and gpu.failures < QUARANTINE and not gpu.backs_off:
                held = frozenset(pod.start for pod in on_gpu(node, index))
                after = next_layout(gpu.actual, gpu.wanted, held)
                if after != NONE:
                    return index, after
        return None

    def _perform(self, node: NodeState) -> Iterator[NodeStep]:
        gpu, after = node.announced
        gone = set(devices_of(node.gpus[gpu].actual)) - set(devices_of(after))
        for pod in () if self.tampered else on_gpu(node, gpu):
            if (pod.start, self.kinds[pod.kind].resource) in gone:
                raise LawBroken("the agent destroys a slice under a pod")
        if not is_legal_layout(after):
            raise LawBroken(f"GPU {gpu} gets an illegal layout")
        cut = self._cut(node, gpu, after)
        reported = report(cut, is_applied=False)
        yield NodeStep(f"the agent cuts GPU {gpu}", reported, _reported(cut, reported))

    @staticmethod
    def _cut(node: NodeState, gpu: int, after: int) -> NodeState:
        cut = node.gpus[gpu]._replace(actual=after, failures=0, backs_off=False)
        return node._replace(gpus=put(node.gpus, gpu, cut), announced=(NONE, 0), plugin_due=True)

    # ---- the kubelet and the pods -----------------------------------------------------------------------

    def pods(self, node: NodeState) -> Iterator[NodeStep]:
        """Yield what may happen to the pods."""
        for pod in dict.fromkeys(node.pods):
            kind = self.kinds[pod.kind]
            if pod.gpu == NONE:
                yield from self.allocations(node, pod)
            if kind.owner == NONE:
                yield _ends(node, pod, "ends")
            elif pod.gpu != NONE:
                yield from self.replica(node, pod)

    def allocations(self, node: NodeState, pod: PodState) -> Iterator[NodeStep]:
        """Yield each choice of the kubelet among the devices that the plugin offers; without one, it ends."""
        resource = self.kinds[pod.kind].resource
        taken = {(other.gpu, other.start) for other in node.pods}
        free = [
            (index, start)
            for index, gpu in enumerate(node.gpus)
            for start, offered in devices_of(gpu.offered)
            if offered == resource and (index, start) not in taken
        ]
        if not free:
            yield _ends(node, pod, "finds no device")
        for gpu, start in free:
            if (start, resource) not in devices_of(node.gpus[gpu].actual):
                if self.tampered:  # the device plugin sees that the device is not healthy
                    failed = _ends(node, pod, f"fails on GPU {gpu}")
                    seen = failed.after.gpus[gpu]._replace(offered=node.gpus[gpu].actual)
                    after = failed.after._replace(gpus=put(failed.after.gpus, gpu, seen))
                    yield NodeStep(failed.name, after, Changed(node=True))
                    continue
                raise LawBroken(f"a pod gets a slice of GPU {gpu} that is gone")
            chosen = pod._replace(gpu=gpu, start=start)
            yield NodeStep(f"{_name(pod)} gets {start} of GPU {gpu}", with_other_pod(node, pod, chosen))

    @staticmethod
    def replica(node: NodeState, pod: PodState) -> Iterator[NodeStep]:
        """Yield what follows for a replica that has a device: it becomes available, or has terminated."""
        if pod.phase == STARTING:
            after = with_other_pod(node, pod, pod._replace(phase=AVAILABLE))
            yield NodeStep(f"{_name(pod)} is available", after)
        if pod.phase == TERMINATING:
            yield _ends(node, pod, "has finished its requests")

    def crashes(self, node: NodeState) -> Iterator[NodeStep]:
        """Yield the ways in which a replica may fail: its container starts anew, or the pod is over."""
        for pod in node.pods:
            if self.kinds[pod.kind].owner == NONE or pod.gpu == NONE or pod.phase == TERMINATING:
                continue
            if pod.phase == AVAILABLE:
                after = with_other_pod(node, pod, pod._replace(phase=STARTING))
                yield NodeStep(f"{_name(pod)} crashes", after)
            yield _ends(node, pod, "fails")

    # ---- the node ---------------------------------------------------------------------------------------

    @staticmethod
    def reboot(node: NodeState) -> NodeState:
        """Return the node after a reboot: its pods are over, its slices are gone."""
        gpus, empty = [], numbered("empty")
        for gpu in node.gpus:
            actual = empty if layout_of(gpu.actual).mig_enabled else gpu.actual
            offered = gpu.offered if node.plugin_down else actual
            held = tuple((start, False) for start, _ in gpu.held)
            gpus.append(gpu._replace(actual=actual, offered=offered, held=held))
        return node._replace(
            gpus=tuple(gpus),
            pods=(),
            is_current=False,
            is_applied=False,
            announced=(NONE, 0),
            plugin_due=False,
        )

    def vanish(self, node: NodeState) -> NodeState:
        """Return the node after its end."""
        after, _ = offer(self.reboot(node), is_down=False)
        return after._replace(exists=False, holds=())

    @staticmethod
    def comes_back(node: NodeState, *, kept: bool) -> NodeState:
        """Return a node that has vanished, created anew, and its GPUNode, too, unless it was kept."""
        gpus = node.gpus
        if not kept:
            gpus = tuple(gpu._replace(wanted=NONE, reported=NONE, held=(), failures=0) for gpu in gpus)
        return node._replace(gpus=gpus, exists=True)

    @staticmethod
    def by_hand(node: NodeState) -> Iterator[NodeStep]:
        """Yield what a person may do to the holds and the GPUs of a node."""
        for hold in node.holds:
            rest = node._replace(holds=tuple(other for other in node.holds if other != hold))
            yield NodeStep(f"hold {hold[0]} is lifted by hand", rest, Changed(node=True))
        for resource in (0, 2):
            others = tuple(hold for hold in node.holds if hold[0] != resource)
            placed = node._replace(holds=tuple(sorted((*others, (resource, 0, NONE, False)))))
            yield NodeStep(f"hold {resource} is placed by hand", placed, Changed(node=True))
        for gpu, item in enumerate(node.gpus):
            for text in ("empty", "4g.24gb@0"):
                edited = set_layouts(node, ((gpu, numbered(text)),))
                yield NodeStep(f"the GPUNode wants {text} of GPU {gpu}", edited, Changed(gpu_node=True))
                if not on_gpu(node, gpu) and node.announced[0] != gpu:
                    cut = put(node.gpus, gpu, item._replace(actual=numbered(text)))
                    yield NodeStep(f"GPU {gpu} is cut by hand: {text}", node._replace(gpus=cut))


def _reported(before: NodeState, after: NodeState) -> Changed:
    return Changed(gpu_node=before != after)


def _name(pod: PodState) -> str:
    place = "" if pod.gpu == NONE else f" at {pod.start} of GPU {pod.gpu}"
    return f"a pod of kind {pod.kind}{place}"


def _ends(node: NodeState, pod: PodState, how: str) -> NodeStep:
    ended = () if pod.gpu == NONE else ((pod.gpu, pod.start),)
    return NodeStep(f"{_name(pod)} {how}", without_pod(node, pod), Changed(ended=ended))
