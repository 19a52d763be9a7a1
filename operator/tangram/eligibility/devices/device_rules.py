"""Rules that leave out a node or some of its devices, by labels, resources and taints.

What is left out is no whole, unshared, settled GPU or slice. Each rule names the label, resource
or taint with its value, and what to change. Sources of the labels:
NVIDIA/k8s-device-plugin (docs/gpu-feature-discovery, internal/lm), mig-parted (cmd/nvidia-mig-manager),
k8s-operator-libs (pkg/upgrade/consts.go), k8s-driver-manager, the DRA driver's chart, GKE's GPU sharing.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tangram.catalog import gpu, match_product, profile_of_resource
from tangram.eligibility.devices.tolerations import (
    GPU_TAINTS,
    Toleration,
    engine_tolerations,
    held_resource,
    tolerates,
)
from tangram.fleet import WHOLE_GPU, LeftOut, resource_name
from tangram.fleet.labels import COUNT_LABEL, PRODUCT_LABEL
from tangram.fleet.pod_requests import SHARED_SUFFIX

WHOLE = resource_name(WHOLE_GPU)
MEMORY_LABEL = f"{WHOLE}.memory"
PRESENT_LABEL = f"{WHOLE}.present"
DEPLOY_PREFIX = f"{WHOLE}.deploy."
WORKLOAD_LABEL = f"{WHOLE}.workload.config"
UPGRADE_LABEL = "nvidia.com/gpu-driver-upgrade-state"
STATE_LABEL = "nvidia.com/mig.config.state"
CONFIG_LABEL = "nvidia.com/mig.config"
STRATEGY_LABEL = "nvidia.com/mig.strategy"
VGPU_LABEL = "nvidia.com/vgpu.present"
DRA_LABEL = "nvidia.com/dra-kubelet-plugin"
GKE_STRATEGY_LABEL = "cloud.google.com/gke-gpu-sharing-strategy"
GKE_CLIENTS_LABEL = "cloud.google.com/gke-max-shared-clients-per-gpu"
GKE_PARTITION_LABEL = "cloud.google.com/gke-gpu-partition-size"

SHARING_STRATEGIES = ("time-slicing", "mps")
"""Values of the label `RESOURCE.sharing-strategy` of devices that several pods share."""

MAX_GPUS = 1024  # of a node; a label may hold any number
MAX_DEVICES = 16 * MAX_GPUS  # of one resource on a node
_BLOCKING_EFFECTS = ("NoSchedule", "NoExecute")  # of taints
_MIG_PREFIX = "nvidia.com/mig-"
# The node accepts pods in these states; `upgrade-required` may wait for days.
_IDLE_UPGRADE_STATES = ("", "upgrade-done", "upgrade-required")
_MIN_MEMORY_SHARE = 0.85  # boards of one SKU differ by a few per cent with ECC and drivers; vGPUs by half


class LeftOutReason(StrEnum):
    """Why devices are left out, in one word: label of a metric, so renaming one breaks dashboards."""

    NOT_READY = "NotReady"
    CORDONED = "Cordoned"
    TAINTED = "Tainted"
    HELD = "Held"
    NO_GPU = "NoGPU"
    MIG_CHANGING = "MIGChanging"
    MIG_INVALID = "MIGInvalid"
    MIG_STRATEGY = "MIGStrategy"
    PAUSED = "Paused"
    DRIVER_UPGRADE = "DriverUpgrade"
    VIRTUAL = "Virtual"
    SHARED = "Shared"
    DRA = "DRA"
    MIXED = "MixedGPUs"
    UNKNOWN = "UnknownGPU"
    UNHEALTHY = "Unhealthy"
    NOT_OFFERED = "NotOffered"


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What a Node object holds about its devices, checked for types only."""

    name: str
    labels: Mapping[str, str]
    allocatable: Mapping[str, object]
    capacity: Mapping[str, object]  # empty: as allocatable
    taints: tuple[Mapping[str, Any], ...] = ()
    unschedulable: bool = False
    ready: bool = True
    declared: tuple[str, ...] = ()  # SKUs of the GPUPools that select the node, sorted

    def label(self, key: str) -> str:
        """Return the value of a label, the empty string where it is not there."""
        return self.labels.get(key, "")

    def number(self, key: str) -> int | None:
        """Return the value of a label that is a number, None where it is none."""
        value = self.labels.get(key)
        return count_of(value) if value else None


def model_of(product: str) -> str:
    """Return the model in a product label, without the suffixes of slices and shares."""
    return product.removesuffix("-SHARED").partition("-MIG-")[0]


@dataclass(frozen=True, slots=True)
class LabelledBoard:
    """The GPU model that the labels describe; without the product label, the one that GPUPools declare."""

    product: str  # the label as it is
    model: str  # without the suffixes -MIG-… and -SHARED
    sku: str | None
    gpus: int | None  # of this model; None: no valid label

    @classmethod
    def of(cls, facts: NodeFacts) -> "LabelledBoard":
        """Return what the labels of a node describe. The product label outranks what GPUPools declare."""
        product = facts.label(PRODUCT_LABEL)
        model = model_of(product)
        sku = match_product(model) if model else None
        if not product and len(facts.declared) == 1:
            sku = facts.declared[0]
        gpus = facts.number(COUNT_LABEL)
        return cls(product, model, sku, gpus if gpus is not None and 0 < gpus <= MAX_GPUS else None)


LeftOutNotes = Iterator[tuple[LeftOutReason, str]]  # reason and message
Rule = Callable[[NodeFacts, LabelledBoard, Mapping[str, int]], LeftOutNotes]


def _unschedulable(facts: NodeFacts, _board: LabelledBoard, _capacity: Mapping[str, int]) -> LeftOutNotes:
    if not facts.ready:
        yield LeftOutReason.NOT_READY, "not ready"
    if facts.unschedulable:
        yield LeftOutReason.CORDONED, "cordoned; run kubectl uncordon to use it again"


def _without_gpus(facts: NodeFacts, _board: LabelledBoard, _capacity: Mapping[str, int]) -> LeftOutNotes:
    if facts.label(PRESENT_LABEL) == "false":
        yield LeftOutReason.NO_GPU, f"label {PRESENT_LABEL}=false; remove the label if it has GPUs"


def _reconfigured(facts: NodeFacts, _board: LabelledBoard, _capacity: Mapping[str, int]) -> LeftOutNotes:
    state = facts.label(STATE_LABEL)
    if state not in {"", "success"}:
        yield (
            LeftOutReason.MIG_CHANGING,
            f"label {STATE_LABEL}={state}: mig-manager has not finished; wait for success, and where it"
            f" does not come set {CONFIG_LABEL} to another value and back",
        )
    deployed = {k: v for k, v in facts.labels.items() if k.startswith(DEPLOY_PREFIX)}
    paused = sorted(key for key, value in deployed.items() if value.startswith("paused"))
    if paused:
        yield (
            LeftOutReason.PAUSED,
            f"label {paused[0]}={facts.labels[paused[0]]}: the GPU Operator has paused its pods; if that"
            f" stays, set its {len(paused)} paused labels {DEPLOY_PREFIX}* to true",
        )
    upgrade = facts.label(UPGRADE_LABEL)
    if upgrade not in _IDLE_UPGRADE_STATES:
        yield (
            LeftOutReason.DRIVER_UPGRADE,
            f"label {UPGRADE_LABEL}={upgrade}: its driver is being upgraded; wait for upgrade-done, or"
            " look at the GPU Operator's events where it does not come",
        )


def _virtualised(facts: NodeFacts, board: LabelledBoard, _capacity: Mapping[str, int]) -> LeftOutNotes:
    config = facts.label(WORKLOAD_LABEL)
    if config not in {"", "container"}:
        yield (
            LeftOutReason.VIRTUAL,
            f"label {WORKLOAD_LABEL}={config}: its GPUs belong to virtual machines; set container",
        )
    if facts.label(VGPU_LABEL) == "true":
        yield (
            LeftOutReason.VIRTUAL,
            f"label {VGPU_LABEL}=true: its GPUs are shares of boards (vGPU); pass whole GPUs through"
            " to the virtual machine",
        )
    memory, model = facts.number(MEMORY_LABEL), gpu(board.sku or "")
    is_whole = board.product == board.model and _sharing_label(facts, WHOLE) is None
    if memory and model is not None and is_whole and memory < _MIN_MEMORY_SHARE * model.memory_mib:
        yield (
            LeftOutReason.VIRTUAL,
            f"label {MEMORY_LABEL}={memory} is less than the {model.memory_mib} MiB of a whole"
            f" {model.sku}; give pods whole GPUs, or correct "
            + (f"the label {PRODUCT_LABEL}" if board.product else "sku in its GPUPool"),
        )


def _unsupported_model(facts: NodeFacts, board: LabelledBoard, capacity: Mapping[str, int]) -> LeftOutNotes:
    strategy = facts.label(STRATEGY_LABEL)
    label = f"label {PRODUCT_LABEL}={board.product}"
    if not board.product and not facts.label(GKE_PARTITION_LABEL):
        if capacity and board.sku is None:
            yield LeftOutReason.UNKNOWN, f"no label {PRODUCT_LABEL}; {_remedy(facts)}"
    elif board.product.removesuffix("-SHARED").endswith("-MIG-INVALID"):
        yield (
            LeftOutReason.MIG_INVALID,
            f"{label}: its GPUs are not all cut alike, as mig.strategy single demands; set"
            " mig.strategy mixed in the device plugin, or cut them alike",
        )
    elif "-MIG-" in board.product or facts.label(GKE_PARTITION_LABEL):
        if facts.label(GKE_PARTITION_LABEL):
            label = f"label {GKE_PARTITION_LABEL}={facts.label(GKE_PARTITION_LABEL)}"
        yield (
            LeftOutReason.MIG_STRATEGY,
            f"{label}: its {WHOLE} are MIG slices; set mig.strategy mixed in the device plugin",
        )
    elif board.sku is None:
        yield (
            LeftOutReason.UNKNOWN,
            f"{label} is a GPU that the catalog does not know; `tangram gpus` lists those it does",
        )
    if strategy not in {"", "none", "single", "mixed"}:
        yield LeftOutReason.MIG_INVALID, f"label {STRATEGY_LABEL}={strategy}; set mixed in the device plugin"


def _remedy(facts: NodeFacts) -> str:
    """Return how to make the GPU model of a node without the product label known."""
    if facts.declared:
        return f"and its GPUPools declare {' and '.join(facts.declared)}; let one of them select it"
    return "deploy GPU feature discovery, or set sku in a GPUPool that selects the node"


def _shared_or_dra(facts: NodeFacts, board: LabelledBoard, capacity: Mapping[str, int]) -> LeftOutNotes:
    if board.product.endswith("-SHARED"):
        yield LeftOutReason.SHARED, _shared_message(f"label {PRODUCT_LABEL}={board.product}")
    if facts.label(GKE_STRATEGY_LABEL) or (facts.number(GKE_CLIENTS_LABEL) or 0) > 1:
        key = GKE_STRATEGY_LABEL if facts.label(GKE_STRATEGY_LABEL) else GKE_CLIENTS_LABEL
        yield LeftOutReason.SHARED, _shared_message(f"label {key}={facts.label(key)}")
    if facts.label(DRA_LABEL) == "true" and capacity:
        yield (
            LeftOutReason.DRA,
            f"label {DRA_LABEL}=true: a DRA driver hands out the same GPUs as the device plugin; disable"
            " one of the two on this node",
        )


def _mixed_models(facts: NodeFacts, board: LabelledBoard, capacity: Mapping[str, int]) -> LeftOutNotes:
    """GPU feature discovery counts one model: further devices are shares, or of another model."""
    if board.gpus is None or _sharing_label(facts, WHOLE) is not None:
        return
    whole, cut = capacity.get(WHOLE, 0), any(n and r.startswith(_MIG_PREFIX) for r, n in capacity.items())
    if whole + cut > board.gpus:
        beside = " beside MIG slices" if cut else ""
        yield (
            LeftOutReason.MIXED,
            f"label {COUNT_LABEL}={board.gpus}, and {whole} {WHOLE} are offered{beside}: they are shared,"
            " or of several models; stop sharing, or put each model on nodes of its own",
        )


_NODE_RULES: tuple[Rule, ...] = (
    _unschedulable,
    _without_gpus,
    _reconfigured,
    _virtualised,
    _unsupported_model,
    _shared_or_dra,
    _mixed_models,
)


def left_out_node(facts: NodeFacts, board: LabelledBoard, capacity: Mapping[str, int]) -> Iterator[LeftOut]:
    """Yield why a whole node is left out, taints aside."""
    for resource, value in facts.allocatable.items():
        if is_gpu(str(resource)) and device_count(value) is None:
            message = f"allocatable {resource} is {str(value)[:40]!r}, no number of devices"
            yield LeftOut(LeftOutReason.UNKNOWN, f"{message}; look at the device plugin")
    for rule in _NODE_RULES:
        for reason, message in rule(facts, board, capacity):
            yield LeftOut(reason, message)


def left_out_by_taints(
    facts: NodeFacts, board: LabelledBoard, capacity: Mapping[str, int], added: tuple[Toleration, ...]
) -> Iterator[LeftOut]:
    """Yield what taints leave out: the node, or the resources whose engine pods do not tolerate them."""
    resources = {r for r in capacity if is_gpu(r)}
    for taint in facts.taints:
        is_cordon = facts.unschedulable and taint.get("key") == "node.kubernetes.io/unschedulable"
        if is_cordon or taint.get("effect") not in _BLOCKING_EFFECTS:
            continue
        if any(tolerates(toleration, taint) for toleration in (*GPU_TAINTS, *added)):
            continue  # engine pods on every resource tolerate it
        held = held_resource(taint)
        possible = resources | ({held} if held else set()) or {WHOLE}
        closed = sorted(
            resource
            for resource in possible
            if not any(tolerates(t, taint) for t in engine_tolerations(board.sku or "", resource, added))
        )
        if held:
            yield from (LeftOut(LeftOutReason.HELD, _held(taint, resource), resource) for resource in closed)
        elif len(closed) == len(possible):
            yield LeftOut(LeftOutReason.TAINTED, f"engine pods {_untolerated(taint)}")
        else:
            yield from (
                LeftOut(LeftOutReason.TAINTED, f"engines on {resource} {_untolerated(taint)}", resource)
                for resource in closed
            )


def _held(taint: Mapping[str, Any], resource: str) -> str:
    held = f"taint {taint['key']}: {resource} is held while GPUs are repartitioned"
    return f"{held}; new replicas wait until it is removed"


def _untolerated(taint: Mapping[str, Any]) -> str:
    value = f"={taint['value']}" if taint.get("value") else ""
    return (
        f"do not tolerate its taint {taint.get('key', '')}{value}:{taint['effect']}; remove"
        " it, or add a toleration to the chart's value engine.tolerations"
    )


def left_out_devices(
    facts: NodeFacts, board: LabelledBoard, offered: Mapping[str, int], capacity: Mapping[str, int]
) -> Iterator[LeftOut]:
    """Return which devices are left out of a node that is not left out as a whole, by resource."""
    for resource, count in sorted(capacity.items()):
        if count:
            yield from _left_out_of_resource(facts, board, resource, offered.get(resource, 0), count)
    whole = capacity.get(WHOLE, 0)
    cut = any(n and r.startswith(_MIG_PREFIX) for r, n in capacity.items())
    renamed = f"{WHOLE}{SHARED_SUFFIX}" in capacity
    if board.gpus is not None and whole < board.gpus and not cut and not renamed:
        lost = board.gpus - whole
        yield LeftOut(
            LeftOutReason.NOT_OFFERED,
            f"label {COUNT_LABEL}={board.gpus}, and {whole} are offered: {lost} have MIG enabled without"
            " instances, or failed; cut them, or disable MIG",
            WHOLE,
        )


def _left_out_of_resource(
    facts: NodeFacts, board: LabelledBoard, resource: str, offered: int, count: int
) -> Iterator[LeftOut]:
    unshared_name = resource.removesuffix(SHARED_SUFFIX)
    if unshared_name != resource:
        # The device plugin has renamed the resource: the one with the old name is stale.
        for name in (resource, unshared_name):
            yield LeftOut(LeftOutReason.SHARED, _shared_message(f"{count} {resource}"), name)
        return
    if (sharing := _sharing_label(facts, resource)) is not None:
        yield LeftOut(LeftOutReason.SHARED, _shared_message(sharing), resource)
        return
    if resource == WHOLE:
        reason, message = LeftOutReason.MIG_STRATEGY, _hidden_slices(facts)
    else:
        reason, message = LeftOutReason.MIXED, _other_board(facts, board, resource, count)
    if message is not None:
        yield LeftOut(reason, message, resource)
    elif offered < count:
        yield LeftOut(
            LeftOutReason.UNHEALTHY,
            f"{resource}: capacity {count}, allocatable {offered}: {count - offered} unhealthy, or the device"
            " plugin restarts; look at its log",
            resource,
        )


def _sharing_label(facts: NodeFacts, resource: str) -> str | None:
    """Return the label by which `resource` is shared (time-slicing or MPS), None if there is none."""
    strategy, replicas = f"{resource}.sharing-strategy", f"{resource}.replicas"
    if facts.label(strategy) not in {"", "none"}:
        return f"label {strategy}={facts.label(strategy)}"
    number = facts.number(replicas) or 0
    return f"label {replicas}={number}" if number > 1 else None


def _hidden_slices(facts: NodeFacts) -> str | None:
    """Strategy `none` offers a cut GPU as a whole one; names of mig-manager's default configs show it."""
    config = facts.label(CONFIG_LABEL)
    if facts.label(STRATEGY_LABEL) != "none" or not config.startswith("all-") or config == "all-disabled":
        return None
    return (
        f"labels {STRATEGY_LABEL}=none and {CONFIG_LABEL}={config}: cut GPUs are offered as whole ones; set"
        " mig.strategy mixed in the device plugin, or mig.config all-disabled"
    )


def _other_board(facts: NodeFacts, board: LabelledBoard, resource: str, count: int) -> str | None:
    """Return why a slice does not belong to the board that the labels describe, None if it does."""
    key = f"{resource}.product"
    product = facts.label(key).partition("-MIG-")[0]
    is_same = product == board.model if board.model else match_product(product) == board.sku
    if product and not is_same:
        model = board.product or board.sku
        return f"label {key}={facts.label(key)} on a node of {model}; put each model on nodes of its own"
    if board.sku is not None and profile_of_resource(board.sku, resource) is None:
        return f"{resource} is no slice of {board.sku}: the node has several models of GPU, or a new profile"
    labelled = facts.number(f"{resource}.count")
    if labelled and count > labelled:
        label = f"label {resource}.count={labelled}"
        return f"{label}, and {count} are offered: they are shared, or of several models"
    return None


def _shared_message(what: str) -> str:
    return f"{what}: several pods share each device; set replicas to 1 in the device plugin's sharing config"


def is_gpu(resource: str) -> bool:
    """Whether a resource is GPUs or MIG slices, and its name does not mark them as shared."""
    return resource == WHOLE or (resource.startswith(_MIG_PREFIX) and not resource.endswith(SHARED_SUFFIX))


def offered_devices(resources: Mapping[str, object]) -> dict[str, int]:
    """Return GPUs and slices by resource, with shared ones; impossible counts are left away."""
    return {
        str(name): count
        for name, value in resources.items()
        if is_gpu(str(name).removesuffix(SHARED_SUFFIX)) and (count := device_count(value)) is not None
    }


def device_count(value: object) -> int | None:
    """Return a number of devices, None for anything else or for more than a node can have."""
    count = count_of(value)
    return count if count is not None and count <= MAX_DEVICES else None


def count_of(value: object) -> int | None:
    """Return a number of at most nine digits, None for anything else."""
    text = str(value)
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else None
