"""`GPUPool`: a group of GPU nodes, their GPU model and price, and what plans may do to them."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, JsonValue, StrictBool, StrictInt, StrictStr, ValidationError

from tangram.api.common.accepted_spec import AcceptedSpecStatus, parsed_in_force
from tangram.api.common.base import APIModel, optional
from tangram.api.common.labels import (
    LABEL_KEY,
    LABEL_VALUE,
    LONGEST_KEY,
    LONGEST_LABEL,
    is_label_key,
    is_label_value,
)
from tangram.api.common.values import NAME_PATTERN, SKU, PricePerGPUHour, rule, validations
from tangram.api.llm_deployment.parse import explain, fields_of
from tangram.api.llm_deployment.status import Condition, Count, Decimal, Generation
from tangram.catalog import find_gpu, gpu
from tangram.catalog.lookup import unknown_gpu
from tangram.fleet import InvalidPool, Pool, PoolPolicy

LABELS_HELP = (
    "nodeSelector must map label keys (an optional DNS prefix and '/', then letters, digits and - _ .) to "
    "label values"
)
MIN_ABOVE_MAX = "nodes.min must not be above nodes.max; raise max or lower min"
MAX_NODES = 10_000
MAX_RESOURCES = 64  # of a pool's nodes: GPUs, and slices by profile
BACKENDS: dict[str, Literal["nvml", "mig-manager"]] = {"NVML": "nvml", "MIGManager": "mig-manager"}


def _labels(selector: dict[str, str]) -> dict[str, str]:
    if not all(is_label_key(key) and is_label_value(value) for key, value in selector.items()):
        raise ValueError(LABELS_HELP)
    return selector


_KEY_RULE = f"key.size() <= {LONGEST_KEY} && key.matches(r'{LABEL_KEY}')"
_SELECTOR_SCHEMA: dict[str, JsonValue] = {
    **validations(rule(f"self.all(key, {_KEY_RULE} && self[key].matches(r'{LABEL_VALUE}'))", LABELS_HELP)),
    "additionalProperties": {"type": "string", "maxLength": LONGEST_LABEL},
}


class PoolNodesSpec(APIModel):
    """The limits of the cluster autoscaler, and the properties of new nodes."""

    min: Annotated[StrictInt, Field(ge=0, le=MAX_NODES)] = Field(
        default=0,
        description="Minimum number of nodes of the cluster autoscaler's node group, at most max. Plans "
        "do not use it: they remove no nodes, and count no cost for GPUs that they leave unused.",
    )
    max: Annotated[StrictInt, Field(ge=0, le=MAX_NODES)] | None = optional(
        "Maximum number of nodes of the cluster autoscaler's node group. Plans may add nodes up to it, at "
        "the price of all their GPUs. Default: plans add no nodes."
    )
    gpus_per_node: Annotated[StrictInt, Field(ge=1, le=64)] = Field(
        default=8,
        alias="gpusPerNode",
        description="Number of GPUs of a new node, for a pool without nodes. Otherwise a new node has as "
        "many as the present nodes.",
    )
    mig_enabled: StrictBool = Field(
        default=False, description="Whether MIG mode is enabled on the GPUs of new nodes."
    )


class GPUPoolSpec(APIModel):
    """The nodes, their GPU model and price, and the changes that plans may make to them."""

    node_selector: Annotated[dict[StrictStr, StrictStr], AfterValidator(_labels)] = Field(
        min_length=1,
        max_length=16,
        description="Labels, all of which a node must have to belong to this pool. No node may belong to two "
        "pools.",
        json_schema_extra=_SELECTOR_SCHEMA,
    )
    sku: SKU | None = optional(
        "GPU model of the pool's nodes, by its name in the catalog (for instance H100-80GB-SXM). "
        "`tangram gpus` lists the names. It applies to nodes without the label nvidia.com/gpu.product, "
        "which GPU feature discovery sets, and to nodes that plans add. On a node with the label, the "
        "label takes precedence. Nodes without the label must offer whole GPUs, or MIG slices as "
        "nvidia.com/mig-PROFILE, that no two pods share. Default: the model by the labels of the pool's "
        "nodes."
    )
    price_per_gpu_hour: PricePerGPUHour | None = optional(
        'USD per hour of one whole GPU of this pool: a decimal in quotes, such as "2.50", or a whole number. '
        "Default: the operator's price of its model, else the catalog's.",
        alias="pricePerGPUHour",
    )
    mig_policy: PoolPolicy = Field(
        default=PoolPolicy.IDLE_ONLY,
        alias="migPolicy",
        description="Changes that plans may make to the MIG layout of the pool's GPUs. Ignore: none. "
        "IdleOnly: create and destroy MIG instances that no pod uses. Full: re-cut every GPU, and move "
        "running replicas for it. Recommend: the same, and moves without a cut, once a person has set "
        "approved of the FleetPlan. Changes are carried out where spec.backend is set and the chart's "
        "partition.enabled is true. Otherwise they are only recommended.",
    )
    backend: Literal["NVML", "MIGManager"] | None = optional(
        "The backend that creates and destroys MIG instances. NVML: single instances. MIGManager: "
        "NVIDIA's MIG manager, which clears the whole GPU first. Default: none, and plans assume that "
        "the GPU is cleared."
    )
    disruption_budget: Annotated[StrictInt, Field(ge=0, le=1_000_000)] | None = optional(
        "Maximum number of replicas that one plan may move away from GPUs of this pool. Default: no limit."
    )
    nodes: PoolNodesSpec = Field(
        default_factory=PoolNodesSpec,
        description="The limits of the cluster autoscaler, and the properties of new nodes.",
        json_schema_extra=validations(
            rule("!has(self.max) || !has(self.min) || self.min <= self.max", MIN_ABOVE_MAX)
        ),
    )
    model_storage_class: Annotated[StrictStr, Field(pattern=NAME_PATTERN)] | None = optional(
        "StorageClass of PersistentVolumeClaims that hold checkpoints of hf://, s3:// and oci://, one for "
        "each checkpoint and namespace. A Job fills it once, and all replicas mount it read-only. The class "
        "must offer ReadWriteMany on all nodes. It applies where all nodes that can run a replica are in "
        "GPUPools with this class. Needs models.volumeClaims of the chart. Default: each pod fetches the "
        "checkpoint for itself.",
        max_length=253,
    )
    zone: Annotated[StrictStr, Field(pattern=LABEL_VALUE)] | None = optional(
        "Zone of new nodes (label topology.kubernetes.io/zone). Default: none. New nodes then count as "
        "one zone with the nodes that lack the label.",
        max_length=LONGEST_LABEL,
    )


DeviceCounts = Annotated[dict[str, Count], Field(max_length=MAX_RESOURCES)]


class PoolCondition(Condition):
    """One aspect of the state of a GPUPool."""

    type: Literal["Accepted", "Ready"] = Field(description="Name of the aspect.")


class GPUPoolStatus(APIModel):
    """Observed state, written by Tangram alone."""

    observed_generation: Generation | None = optional("Generation of the object that this status is about.")
    accepted_spec: AcceptedSpecStatus | None = optional(
        "The last spec that was accepted. It stays in force while the present one is not: Accepted says why."
    )
    conditions: tuple[PoolCondition, ...] = Field(
        default=(),
        max_length=4,
        description="Accepted: whether the spec is valid, no other pool claims its nodes, and their labels "
        "do not contradict spec.sku. Ready: whether there are nodes, all of them are Ready, and their device "
        "plugins offer all their GPUs.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    nodes: Count | None = optional(
        "Number of its nodes, Ready or not: nodes with all labels of spec.nodeSelector and an NVIDIA "
        "label or resource."
    )
    gpus: Count | None = optional(
        "Number of GPUs of these nodes, by the label nvidia.com/gpu.count, else by the devices that they "
        "offer. A GPU that is cut into MIG slices counts once."
    )
    free_gpus: Count | None = optional(
        "Number of GPUs of which no pod uses even a slice, on nodes that take new pods, as of the last "
        "plan of the whole fleet. `free` is more recent.",
        alias="freeGPUs",
    )
    cost_per_hour: Decimal | None = optional(
        "USD per hour of its GPUs of which pods use the whole or a slice, as of the last plan of the "
        "whole fleet. On nodes that take no new pods, GPUs count on which LLMDeployments run."
    )
    allocatable: DeviceCounts | None = optional(
        "GPUs (nvidia.com/gpu) and MIG slices (nvidia.com/mig-PROFILE) that the device plugins of its Ready "
        "nodes offer, by resource, used or not. Devices that are left out (the message of Ready names them) "
        "do not count."
    )
    free: DeviceCounts | None = optional(
        "Devices in `allocatable` that a new pod could use: no pod holds them, and their nodes are not "
        "cordoned and have no taints that engine pods do not tolerate."
    )


def pool_in_force(obj: Mapping[str, Any]) -> Pool | InvalidPool:
    """Return a GPUPool; in place of an invalid spec, the last accepted one, where the status has it."""
    return parsed_in_force(obj, parse_pool, InvalidPool)


def parse_pool(obj: Mapping[str, Any]) -> Pool | InvalidPool:
    """Return a GPUPool with defaults filled in, or an `InvalidPool` for user errors."""
    name = obj["metadata"]["name"]
    try:
        spec = GPUPoolSpec.model_validate(obj.get("spec"))
    except ValidationError as error:
        return InvalidPool(name, explain(error), fields_of(error))
    nodes = spec.nodes
    if nodes.max is not None and nodes.min > nodes.max:
        fields = (("spec", "nodes", "min"), ("spec", "nodes", "max"))
        return InvalidPool(name, f"spec.{MIN_ABOVE_MAX} ({nodes.min} > {nodes.max})", fields)
    board = (gpu(spec.sku) or find_gpu(spec.sku)) if spec.sku else None
    if spec.sku and board is None:
        return InvalidPool(name, str(unknown_gpu(spec.sku, "spec.sku")), (("spec", "sku"),))
    return Pool(
        name=name,
        selector=tuple(sorted(spec.node_selector.items())),
        price_per_gpu_hour=spec.price_per_gpu_hour,
        policy=spec.mig_policy,
        backend=BACKENDS[spec.backend] if spec.backend else None,
        disruption_budget=spec.disruption_budget,
        max_nodes=nodes.max,
        sku=board.sku if board else None,
        gpus_per_node=nodes.gpus_per_node,
        zone=spec.zone or "",
        mig_enabled=nodes.mig_enabled,
        model_storage_class=spec.model_storage_class or "",
    )
