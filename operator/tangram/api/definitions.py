"""Definitions of the kinds: names, scope, models, rules and columns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, JsonValue

from tangram.api.engine_runtime import EngineRuntimeSpec, EngineRuntimeStatus
from tangram.api.fleet_plan import KIND_RULE, SPEC_RULE, FleetPlanSpec, FleetPlanStatus
from tangram.api.gpu_node import DEFAULT_STATUS, NAMES_RULE, GPUNodeSpec, GPUNodeStatus
from tangram.api.llm_deployment.spec import NAME_RULE, TRAFFIC_RULE, LLMDeploymentSpec
from tangram.api.llm_deployment.status import LLMDeploymentStatus
from tangram.api.pool import GPUPoolSpec, GPUPoolStatus

Rule = dict[str, JsonValue]


@dataclass(frozen=True, slots=True)
class Definition:
    """One kind."""

    kind: str
    plural: str
    scope: str  # Namespaced | Cluster
    description: str
    spec: type[BaseModel]
    spec_description: str
    status: type[BaseModel]
    columns: Sequence[dict[str, Any]]
    short_names: Sequence[str] = ()
    scale: dict[str, str] | None = None  # paths of the scale subresource
    default_status: Mapping[str, Any] = field(default_factory=dict)  # of an object that has none yet
    rules: Sequence[Rule] = ()  # on the whole object
    spec_rules: Sequence[Rule] = field(default=())


def _column(
    name: str, path: str, description: str, kind: str = "string", priority: int = 0
) -> dict[str, Any]:
    column = {"name": name, "type": kind, "jsonPath": path, "description": description}
    return column | ({"priority": priority} if priority else {})


def _latency(name: str, meaning: str) -> dict[str, Any]:
    path = f".status.slo.{name.lower()}Milliseconds"
    return _column(name, path, f"{meaning} in ms, at the percentile.", "integer", 1)


def _condition(kind: str, key: str) -> str:
    return f'.status.conditions[?(@.type=="{kind}")].{key}'


_AGE = _column("Age", ".metadata.creationTimestamp", "Since it was created.", "date")

LLM_DEPLOYMENT = Definition(
    kind="LLMDeployment",
    plural="llmdeployments",
    scope="Namespaced",
    short_names=("llmdep",),
    description="LLMDeployment serves one open model: its spec holds a checkpoint, latency objectives "
    "and limits, and Tangram decides on which GPUs or MIG slices it runs and how many replicas it has, "
    "and maintains them.",
    spec=LLMDeploymentSpec,
    spec_description="Desired state.",
    spec_rules=(TRAFFIC_RULE,),
    status=LLMDeploymentStatus,
    rules=(NAME_RULE,),
    scale={
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    },
    columns=(
        _column("Model", ".spec.model.uri", "The checkpoint."),
        _column("Ready", _condition("Ready", "status"), "Whether it serves as specified."),
        _column("Reason", _condition("Ready", "reason"), "Why, in one word."),
        _column("Replicas", ".status.replicasDisplay", "Ready over desired replicas."),
        _column("Placement", ".status.placement.display", "GPU model, MIG profile and number of replicas."),
        _column("SLO", _condition("SLOMet", "status"), "Whether the latency objectives are met."),
        _column("$/H", ".status.cost.perHour", "USD per hour of the replicas that are placed or run."),
        _latency("TTFT", "Time to first token"),
        _latency("TPOT", "Time per output token"),
        _column("URL", ".status.url", "Base URL within the cluster.", priority=1),
        _AGE,
    ),
)

GPU_POOL = Definition(
    kind="GPUPool",
    plural="gpupools",
    short_names=("gpool",),
    scope="Cluster",
    description="GPUPool describes a group of GPU nodes: their labels, GPU model and price, and the "
    "changes that plans may make to them. Pools are optional. GPU nodes in no pool are used too, at the "
    "operator's prices, else the catalog's.",
    spec=GPUPoolSpec,
    spec_description="The nodes, their GPU model and price, and the changes that plans may make to them.",
    status=GPUPoolStatus,
    columns=(
        _column("Nodes", ".status.nodes", "Nodes that belong to it.", "integer"),
        _column("GPUs", ".status.gpus", "GPUs of these nodes.", "integer"),
        _column("Policy", ".spec.migPolicy", "The changes that plans may make to the MIG layout."),
        _column("$/GPU-H", ".spec.pricePerGPUHour", "USD per hour of one whole GPU."),
        _column("Ready", _condition("Ready", "status"), "Whether its nodes are Ready and offer their GPUs."),
        _column("Reason", _condition("Ready", "reason"), "Why, in one word."),
        _column(
            "Accepted",
            _condition("Accepted", "status"),
            "Whether the spec is valid, and its nodes are its own.",
            priority=1,
        ),
        _column("Free", ".status.freeGPUs", "GPUs that no pod uses.", "integer", 1),
        _column("$/H", ".status.costPerHour", "USD per hour of its GPUs in use.", priority=1),
        _AGE,
    ),
)

FLEET_PLAN = Definition(
    kind="FleetPlan",
    plural="fleetplans",
    short_names=("fplan",),
    scope="Cluster",
    description="FleetPlan is a plan of the whole fleet, or a plan of changes. A plan of the whole fleet "
    "has the GPUs and MIG slices of each LLMDeployment, their cost, a bound of the distance from the "
    "optimum, and the steps that lead to it. A plan of changes has GPUs that are cut together. Tangram "
    "carries it out once a person or the GPUPool's migPolicy approves it. Tangram writes FleetPlans and "
    "keeps the last 20.",
    spec=FleetPlanSpec,
    spec_description="The plan. It never changes, but for approved.",
    spec_rules=(KIND_RULE, SPEC_RULE),
    status=FleetPlanStatus,
    columns=(
        _column("State", ".status.state", "Recommended, InForce, Executing, Done and so on."),
        _column(
            "Changes",
            ".spec.changeDisplay",
            "The GPUs that are cut, and the LLMDeployments that "
            "move or gain. Empty for a plan of the whole fleet.",
        ),
        _column("$/H", ".spec.costPerHour", "USD per hour of the GPUs in use under this plan."),
        _column("Saves", ".status.savesPerHour", "USD per hour less than the fleet as it is."),
        _column("Unmet", ".spec.unmet", "LLMDeployments that get fewer replicas than they need.", "integer"),
        _column("Gap", ".spec.gap", "Relative gap between objective and bound."),
        _column("GPUs", ".spec.gpus", "GPUs in use over all GPUs."),
        _column("Reason", ".status.reason", "Of a plan of changes: the reason of its state."),
        _column("Solve", ".status.solveSeconds", "Time that it took to compute the plan, in seconds."),
        _column("Moves", ".spec.totalMoves", "Replicas that move.", "integer", 1),
        _column("Steps", ".spec.totalSteps", "Steps that lead to the plan.", "integer", 1),
        _AGE,
    ),
)

GPU_NODE = Definition(
    kind="GPUNode",
    plural="gpunodes",
    short_names=("gnode",),
    scope="Cluster",
    description="GPUNode holds the MIG layouts of the GPUs of the node with the same name. The spec has "
    "the wanted layouts, and Tangram's operator writes it. The status has the present layouts, and the "
    "partition backend of the node writes it.",
    spec=GPUNodeSpec,
    spec_description="The layouts that the GPUs are to have. Written by the operator alone.",
    status=GPUNodeStatus,
    default_status=DEFAULT_STATUS,
    rules=(NAMES_RULE,),
    columns=(
        _column("GPUs", ".status.gpuCount", "GPUs of the node.", "integer"),
        _column("Layout", ".status.layoutDisplay", "The layouts of its GPUs, equal ones together."),
        _column(
            "Applied", ".status.appliedDisplay", "GPUs that are as the spec wants, over GPUs in the spec."
        ),
        _column("Ready", _condition("Ready", "status"), "Whether the backend runs and knows the GPUs."),
        _column(
            "Reason", _condition("Applied", "reason"), "Why the layouts are or are not applied, in one word."
        ),
        _column(
            "Deadline", _condition("Applied", "deadline"), "Until when something is waited for.", priority=1
        ),
        _column(
            "Backend", ".status.backend", "The component that creates and destroys MIG instances.", priority=1
        ),
        _column("Plan", ".spec.planHash", "Hash of the FleetPlan that the spec follows.", priority=1),
        _AGE,
    ),
)

ENGINE_RUNTIME = Definition(
    kind="EngineRuntime",
    plural="engineruntimes",
    short_names=("ert",),
    scope="Cluster",
    description="EngineRuntime describes a program that serves models: its image, command line, probes and "
    "metrics, the checkpoints that it serves, and what LLMDeployments may add to its command line. "
    "Administrators write it. The bundled engine needs none.",
    spec=EngineRuntimeSpec,
    spec_description="The program, and how Tangram runs it.",
    status=EngineRuntimeStatus,
    columns=(
        _column("Engine", ".spec.engine", "The program."),
        _column("Version", ".spec.version", "Its version."),
        _column("Accepted", _condition("Accepted", "status"), "Whether the spec is valid."),
        _column("Ready", _condition("Ready", "status"), "Whether replicas may be started."),
        _column("Reason", _condition("Ready", "reason"), "Why, in one word."),
        _column("Image", ".spec.image", "Its image, by digest.", priority=1),
        _AGE,
    ),
)

ALL = (LLM_DEPLOYMENT, GPU_POOL, FLEET_PLAN, GPU_NODE, ENGINE_RUNTIME)
