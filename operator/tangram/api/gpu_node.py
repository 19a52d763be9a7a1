"""`GPUNode`: the MIG layout that one node is to have, and the one that it has. The state of a transition.

The operator alone writes the spec, the partition backend of the node alone the status: the node agent with
NVML, or NVIDIA's MIG manager. A GPUNode has the name of its node. One with a quarantined GPU outlives its
node, so that the quarantine holds for a node that is created again.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    JsonValue,
    StrictBool,
    StrictInt,
    StrictStr,
    StringConstraints,
    ValidationError,
    model_validator,
)

from tangram.api.common.base import APIModel, list_field, optional
from tangram.api.common.labels import LONGEST_LABEL, LONGEST_NAME
from tangram.api.common.values import SKU, Hash, rule, validations
from tangram.api.llm_deployment.parse import explain
from tangram.api.llm_deployment.status import Condition, Count, Generation, ShortText, Text, Time

MAX_GPUS, MAX_INSTANCES = 64, 16  # of a node, and of a GPU
LAST_START = 15  # no board has more than 12 memory slices
_UUID = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
GPU_UUID, MIG_UUID = f"^GPU-{_UUID}$", f"^MIG-{_UUID}$"
GPU_ID = rf"^(GPU-{_UUID}|index-(0|[1-9][0-9]?))$"
PROFILE = r"^[1-9][0-9]?g[.][1-9][0-9]{0,3}gb([+-][a-z]([a-z.]*[a-z])?)?$"
GPU_ID_HELP = (
    "UUID of the GPU, as nvidia-smi prints it. `index-N` where the backend knows GPUs by index alone."
)
MODE_HELP = "instances need MIG mode: set migEnabled, or list none"
UNKNOWN_GPU = (
    "spec.gpus names a GPU that status.gpus does not have: the GPUs of a node are what its backend found"
)
HOLDER_HELP = "an instance with a holder is Held"
WAITING_HELP = "what waits has a deadline"

GPUId = Annotated[StrictStr, StringConstraints(max_length=40, pattern=GPU_ID)]
ProfileName = Annotated[StrictStr, StringConstraints(max_length=32, pattern=PROFILE)]
Start = Annotated[StrictInt, Field(ge=0, le=LAST_START)]
UID = Annotated[str, StringConstraints(min_length=1, max_length=64)]  # of an object of Kubernetes
LabelText = Annotated[str, StringConstraints(min_length=1, max_length=LONGEST_LABEL)]  # value of a label
Mode = Literal["Enabled", "Disabled", "Unsupported", "Unknown"]
BackendName = Literal["NVML", "MIGManager"]


def _keyed(longest: int, description: str, key: str) -> Any:
    """Return a list, empty by default, of which no two items have the same value of `key`."""
    extra: dict[str, JsonValue] = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}
    return Field(default=(), max_length=longest, description=description, json_schema_extra=extra)


class WantedInstance(APIModel):
    """One GPU instance that a GPU is to have, with one compute instance that takes all of it."""

    profile: ProfileName = Field(description="MIG profile, as nvidia-smi prints it: 1g.10gb, 1g.10gb+me.")
    start: Start = Field(description="Index of its first memory slice, as nvidia-smi prints it (Start).")


def _distinct_starts(instances: tuple[WantedInstance, ...]) -> tuple[WantedInstance, ...]:
    if len({instance.start for instance in instances}) < len(instances):
        raise ValueError("Duplicate value: two instances have the same start")
    return instances


class WantedGPU(APIModel):
    """The layout that one GPU is to have."""

    model_config = ConfigDict(
        json_schema_extra=validations(
            rule("self.migEnabled || !has(self.instances) || size(self.instances) == 0", MODE_HELP)
        )
    )

    id: GPUId = Field(description=GPU_ID_HELP)
    mig_enabled: StrictBool = Field(description="Whether the GPU is to be in MIG mode.")
    instances: Annotated[tuple[WantedInstance, ...], AfterValidator(_distinct_starts)] = _keyed(
        MAX_INSTANCES,
        "All GPU instances that it is to have. Others are destroyed once no pod and no process uses them.",
        "start",
    )

    @model_validator(mode="after")
    def _instances_need_mig_mode(self) -> Self:
        if self.instances and not self.mig_enabled:
            raise ValueError(MODE_HELP)
        return self


def _distinct_gpus(gpus: tuple[WantedGPU, ...]) -> tuple[WantedGPU, ...]:
    if len({gpu.id for gpu in gpus}) < len(gpus):
        raise ValueError("Duplicate value: a GPU is listed twice")
    return gpus


class GPUNodeSpec(APIModel):
    """The layouts that the GPUs of a node are to have. Written by the operator alone."""

    plan_hash: Hash | None = optional(
        "Hash of the FleetPlan that these layouts follow. Absent where they follow none."
    )
    gpus: Annotated[tuple[WantedGPU, ...], AfterValidator(_distinct_gpus)] = _keyed(
        MAX_GPUS, "GPUs of which the layout is decided. The backend changes nothing on others.", "id"
    )


NAMES_RULE = rule(
    "!has(self.spec.gpus) || !has(self.status) || !has(self.status.gpus) || self.spec.gpus.all(wanted, "
    "self.status.gpus.exists(gpu, gpu.id == wanted.id) || "
    "(has(oldSelf.spec.gpus) && oldSelf.spec.gpus.exists(gpu, gpu.id == wanted.id)))",
    UNKNOWN_GPU,
)


class InstanceHolder(APIModel):
    """The pod that holds a GPU instance."""

    namespace: Annotated[str, StringConstraints(max_length=LONGEST_LABEL)] = Field(
        description="Namespace of the pod."
    )
    name: Annotated[str, StringConstraints(max_length=LONGEST_NAME)] = Field(description="Name of the pod.")
    uid: UID | None = optional("UID of the pod. Absent where the backend does not know it.")


class InstanceStatus(APIModel):
    """One GPU instance that exists."""

    model_config = ConfigDict(
        json_schema_extra=validations(rule("!has(self.holder) || self.usage == 'Held'", HOLDER_HELP))
    )

    uuid: Annotated[str, StringConstraints(max_length=40, pattern=MIG_UUID)] | None = optional(
        "UUID of the MIG device. Absent where there is none (no compute instance), or the backend does "
        "not know it."
    )
    profile: ProfileName = Field(description="MIG profile, as nvidia-smi prints it.")
    start: Start | None = optional(
        "Index of its first memory slice. Absent where the backend knows the number of instances alone."
    )
    memory_mebibytes: Count | None = optional("Memory of the instance in MiB, as the driver reports it.")
    usage: Literal["Free", "Held", "Unknown"] = Field(
        description="Held: a pod or a process uses it, and it is not destroyed. Free: neither does. Unknown: "
        "the backend cannot know."
    )
    holder: InstanceHolder | None = optional(
        "The pod that holds it. Absent where no pod does, where only a process does, and where the "
        "backend cannot know."
    )


class AttemptsStatus(APIModel):
    """Failed attempts to give one GPU its layout. Gone once an attempt succeeds."""

    count: Count = Field(description="Failed attempts in a row.")
    code: Count | None = optional("Code of the last error, as NVML numbers it. Absent for other errors.")
    error: Annotated[str, StringConstraints(min_length=1, max_length=64)] = Field(
        description="Name of the last error: IN_USE, INSUFFICIENT_RESOURCES ..."
    )
    message: Text = Field(description="The operation and its error, in one sentence.")
    next_try: Time | None = optional("When it is tried again. Absent where it is not.")


class GPUStatus(APIModel):
    """One GPU of the node, as the backend found it."""

    id: GPUId = Field(description=GPU_ID_HELP)
    index: Count = Field(description="Index of the GPU on its node. It may change with a reboot or a reset.")
    product: ShortText | None = optional("Product name, as the driver reports it.")
    sku: SKU | None = optional("GPU model, by its name in the catalog. Absent where the catalog lacks it.")
    mig_mode: Mode = Field(
        description="MIG mode as it is. Unsupported: MIG cannot cut it. Unknown: the backend cannot know."
    )
    pending_mig_mode: Mode | None = optional(
        "MIG mode after the next reset of the GPU, where it differs from `migMode`."
    )
    instances: tuple[InstanceStatus, ...] = list_field(
        MAX_INSTANCES, "The GPU instances that exist, by start."
    )
    usage: Literal["Free", "Held", "Unknown"] | None = optional(
        "Whether a pod or a process uses the GPU as a whole. Absent in MIG mode."
    )
    holder: InstanceHolder | None = optional(
        "The pod that holds the GPU as a whole, where its backend knows it."
    )
    attempts: AttemptsStatus | None = optional("Failed attempts. Absent where the last one succeeded.")


class QuarantineStatus(APIModel):
    """A GPU of which nothing is changed as long as it is listed here."""

    uuid: Annotated[str, StringConstraints(max_length=40, pattern=GPU_UUID)] = Field(
        description="UUID of the GPU, as nvidia-smi prints it."
    )
    reason: Annotated[str, StringConstraints(max_length=64, pattern=r"^[A-Za-z][A-Za-z0-9]*$")] = Field(
        description="The reason in one word."
    )
    message: Text = Field(description="The reason in one sentence.")
    since: Time = Field(description="When the quarantine began.")


class GPUNodeCondition(Condition):
    """One aspect of the state of a node's GPUs."""

    model_config = ConfigDict(
        json_schema_extra=validations(rule("!has(self.waitsFor) || has(self.deadline)", WAITING_HELP))
    )

    type: Literal["Ready", "Applied"] = Field(description="Name of the aspect.")
    since: Time = Field(description="When the reason last changed. `status` may have changed earlier.")
    waits_for: ShortText | None = optional("The object that the condition waits for, where it waits.")
    deadline: Time | None = optional("Time at which the wait ends.")


NOT_REPORTED = "NotReported"  # the reason of conditions that no partition backend has written yet
_NEVER = {
    "status": "Unknown",
    "reason": NOT_REPORTED,
    "message": "no partition backend has reported about this node: with backend NVML, look for the pod of "
    "the node agent there (kubectl get pods -A -o wide -l app.kubernetes.io/component=agent); "
    "docs/node-agent.md says what may keep it away",
    "observedGeneration": 0,
    "lastTransitionTime": "1970-01-01T00:00:00Z",
    "since": "1970-01-01T00:00:00Z",
}
DEFAULT_STATUS = {"conditions": [{"type": name, **_NEVER} for name in ("Ready", "Applied")]}


class GPUNodeStatus(APIModel):
    """What is there. Written by the partition backend of the node alone."""

    observed_generation: Generation | None = optional("Generation of the object that this status is about.")
    conditions: tuple[GPUNodeCondition, ...] = Field(
        default=(),
        max_length=4,
        description="Ready: whether the backend runs and knows the GPUs of the node. Applied: whether every "
        "GPU has the layout that the spec wants.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    node_uid: UID | None = optional(
        "UID of the Node that this status is about: a Node that was created again has another one.",
        alias="nodeUID",
    )
    boot_id: UID | None = optional(
        "Boot ID of the node (status.nodeInfo.bootID). After another boot all GPU instances are gone.",
        alias="bootID",
    )
    backend: BackendName | None = optional(
        "The backend that creates and destroys the MIG instances of this node."
    )
    backend_version: ShortText | None = optional("Version of the backend.")
    driver_version: ShortText | None = optional("Version of the NVIDIA driver. Absent where it is not known.")
    mig_config: LabelText | None = optional(
        "Entry of mig-manager's ConfigMap to which the backend last set the label nvidia.com/mig.config. "
        "Absent where it set none."
    )
    gpu_count: Count | None = optional("Number of GPUs in `gpus`.")
    layout_display: ShortText | None = optional(
        'The layouts as text, equal ones together: "6x gpu, 2x 3g.40gb+4g.40gb".'
    )
    applied_display: ShortText | None = optional(
        'GPUs that have the layout that the spec wants, over GPUs in the spec, as text: "7/8".'
    )
    gpus: tuple[GPUStatus, ...] = _keyed(MAX_GPUS, "The GPUs of the node, by index.", "id")
    quarantine: tuple[QuarantineStatus, ...] = _keyed(
        MAX_GPUS,
        "GPUs on which changes failed too often. They stay as they are, and plans leave them out.",
        "uuid",
    )


@dataclass(frozen=True, slots=True)
class GPUNode:
    """A valid GPUNode."""

    name: str  # that of the node
    spec: GPUNodeSpec
    status: GPUNodeStatus


@dataclass(frozen=True, slots=True)
class InvalidGPUNode:
    """A GPUNode that was edited into something invalid, or that another version wrote."""

    name: str
    message: str  # with the field's path


def parse_gpu_node(obj: Mapping[str, Any]) -> GPUNode | InvalidGPUNode:
    """Return a GPUNode as the API server stores it; `InvalidGPUNode` where a value is out of its bounds."""
    name = obj["metadata"]["name"]
    try:
        spec = GPUNodeSpec.model_validate(obj.get("spec"))
    except ValidationError as error:
        return InvalidGPUNode(name, explain(error))
    try:
        status = GPUNodeStatus.model_validate(obj.get("status", {}))
    except ValidationError as error:
        return InvalidGPUNode(name, explain(error, "status"))
    return GPUNode(name, spec, status)
