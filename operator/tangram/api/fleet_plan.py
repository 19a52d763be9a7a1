"""`FleetPlan`: a plan for the fleet, written by Tangram for users. Decimals are strings.

There are two kinds. One is of the whole fleet: the best layout of all GPUs, named by the hash of its inputs.
The other one is of changes: GPUs that are cut anew together, or that replicas leave, named by the hash of
GPUs, layouts and replicas that move; it is what a person approves and the operator carries out. The spec
never changes, but for `approved`. The status holds what is true of the plan at a time. Lists are bounded: the
rest is counted in `total...`, and `tangram plan` makes the same plan in full.
"""

from typing import Annotated, Literal

from pydantic import Field, StrictBool, StringConstraints
from pydantic.alias_generators import to_camel

from tangram.api.common.base import APIModel, list_field, optional
from tangram.api.common.values import Hash, rule
from tangram.api.gpu_node import GPUId, ProfileName, Start
from tangram.api.llm_deployment.status import Count, Decimal, ShortText, Text, Time

MAX_ITEMS = 1000  # of each list; its writer bounds the bytes
MAX_NEW_NODES, MAX_NOTES = 256, 32  # likewise
EXAMPLES = 3  # names of GPUs listed for a class of layouts
MAX_CHANGES = 64  # GPUs that one plan changes
PlanState = Literal[
    "Recommended",
    "InForce",
    "Superseded",
    "Approved",
    "Rejected",
    "Executing",
    "Done",
    "Blocked",
    "Failed",
]
_FLEET_FIELDS = (
    *("inputsHash", "proof", "costPerHour", "idlePerHour", "moveCost", "horizonHours", "objective", "bound"),
    *("gap", "gpus", "gpusInUse", "gpuCount", "unmet", "totalDeployments", "totalLayouts", "totalMoves"),
    "totalSteps",
)
KIND_RULE = rule(
    "has(self.changes) && size(self.changes) > 0 ? !has(self.inputsHash) && has(self.pool) : "
    "!has(self.approved) && " + " && ".join(f"has(self.{name})" for name in _FLEET_FIELDS),
    "a FleetPlan is either of the whole fleet, with its figures, or of changes, with their GPUPool",
)
SignedDecimal = Annotated[str, StringConstraints(max_length=24, pattern=r"^-?[0-9]+(\.[0-9]+)?$")]
Word = Annotated[str, StringConstraints(min_length=1, max_length=64)]


class PlannedShape(APIModel):
    """Replicas of one shape."""

    shape: ShortText = Field(
        description="GPU model, followed by :PROFILE for a MIG slice and by TPn where a replica takes n GPUs."
    )
    precision: Word = Field(
        description="Data type of the weights. `unknown` for running replicas that were not sized."
    )
    replicas: Count = Field(description="Number of replicas.")


class PlannedDeployment(APIModel):
    """The replicas that one LLMDeployment gets."""

    namespace: ShortText = Field(description="Namespace of the LLMDeployment.")
    name: ShortText = Field(description="Name of the LLMDeployment.")
    chosen: tuple[PlannedShape, ...] = list_field(8, "Its replicas by shape. Empty where it gets none.")
    cost_per_hour: Decimal = Field(
        description="USD per hour of its replicas. A slice costs its share of the GPU: of compute or of "
        "memory, whichever is larger."
    )


class PlannedSlices(APIModel):
    """Slices of one profile on one GPU with one owner, or the whole GPU."""

    profile: Word = Field(description="MIG profile (for instance 1g.10gb), or `gpu` for a whole GPU.")
    starts: tuple[Count, ...] = Field(
        max_length=16,
        description="Index of the first memory slice of each of them, as nvidia-smi prints it (Start).",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    owner: ShortText | None = optional(
        "The LLMDeployment whose replicas use them. Absent where they are free."
    )


class PlannedLayout(APIModel):
    """A layout, and the number of GPUs with it."""

    count: Count = Field(description="Number of GPUs with this layout.")
    sku: ShortText = Field(description="GPU model.")
    recut: bool = Field(default=False, description="Whether MIG instances are created or destroyed for it.")
    slices: tuple[PlannedSlices, ...] = list_field(
        16, "The MIG slices of the GPU, or the whole GPU. Empty where it is not in use."
    )
    gpus: tuple[ShortText, ...] = list_field(EXAMPLES, "Up to three of these GPUs, as NODE/INDEX.")


class PlannedMove(APIModel):
    """One replica that starts on another GPU and then stops on its present one."""

    owner: ShortText = Field(description="The LLMDeployment of the replica.")
    source: ShortText = Field(alias="from", description="The GPU, and the slice on it, where it runs now.")
    target: ShortText = Field(alias="to", description="The GPU, and the slice on it, where it is to run.")
    cost: Decimal = Field(description="USD for the time in which both replicas run.")


class PlannedStep(APIModel):
    """One step that leads to the plan."""

    number: Count = Field(description="Number of the step. Later steps refer to it.")
    kind: Word = Field(
        description="The operation: start-replica, drain-replica, create-slice, set-mode and so on."
    )
    owner: ShortText | None = optional("The LLMDeployment of the replica, where the step concerns one.")
    at: Text = Field(description="The node or the GPUs, and the slice.")
    after: tuple[Count, ...] = list_field(
        MAX_ITEMS, "Numbers of the steps that must be complete before this one starts."
    )


class UnmetDemand(APIModel):
    """An LLMDeployment that gets fewer replicas than it needs."""

    name: ShortText = Field(
        description="The LLMDeployment: NAMESPACE/NAME, or NAME in the namespace `default`."
    )
    priority: int = Field(
        ge=-(10**9),
        le=10**9,
        description="Priority of the LLMDeployment. Higher priorities are served first.",
    )
    share: Decimal = Field(description="Fraction of its demand that is not served, from 0 to 1.")
    reason: Text = Field(description="Why, in one sentence.")


class NewNodes(APIModel):
    """Nodes that the plan adds to a GPUPool."""

    pool: ShortText = Field(description="Name of the GPUPool.")
    count: Count = Field(description="Number of nodes to add.")


class PlannedInstance(APIModel):
    """One MIG instance of a layout."""

    profile: ProfileName = Field(description="MIG profile, as nvidia-smi prints it.")
    start: Start = Field(description="Index of its first memory slice, as nvidia-smi prints it (Start).")


class PlannedMIGLayout(APIModel):
    """How one GPU is cut."""

    mig_enabled: StrictBool = Field(description="Whether the GPU is in MIG mode.")
    instances: tuple[PlannedInstance, ...] = list_field(16, "Its MIG instances, by start.")


class PlannedChange(APIModel):
    """One GPU that is cut anew, or that replicas leave."""

    node: ShortText = Field(description="The node of the GPU.")
    gpu: GPUId = Field(description="UUID of the GPU, or `index-N` where the backend knows no UUIDs.")
    index: Count | None = optional("Index of the GPU on its node when the plan was made.")
    before: PlannedMIGLayout = Field(description="The layout from which the plan starts.")
    after: PlannedMIGLayout = Field(
        description="The layout after the plan. It equals `before` where replicas leave the GPU and it "
        "is not cut."
    )


class DisturbedDeployment(APIModel):
    """An LLMDeployment of which replicas move, with the shape that they are to have."""

    owner: ShortText = Field(description="The LLMDeployment, as NAMESPACE/NAME.")
    sku: ShortText = Field(description="GPU model of the shape.")
    profile: Word = Field(description="MIG profile of the shape, or `gpu` for whole GPUs.")
    tensor_parallel: Annotated[int, Field(ge=1, le=64)] = Field(
        default=1, description="Whole GPUs that one replica takes."
    )
    restarts: StrictBool = Field(
        default=False,
        description="Whether its replicas stop before others serve. That is downtime, and a person has "
        "to approve it whatever the pool's migPolicy.",
    )


class FleetPlanSpec(APIModel):
    """The plan. It never changes, but for `approved`."""

    changes: tuple[PlannedChange, ...] = list_field(
        MAX_CHANGES,
        "GPUs that are cut anew together, or that replicas leave. Present in a plan of changes, absent in a "
        "plan of the whole fleet.",
    )
    change_display: ShortText | None = optional(
        'The changes as text, equal ones together: "node-a/0: gpu -> 3x1g.10gb, chat moves, for code".'
    )
    disturbed: tuple[DisturbedDeployment, ...] = list_field(
        MAX_ITEMS, "LLMDeployments whose replicas move for the changes."
    )
    serves: tuple[ShortText, ...] = list_field(
        MAX_ITEMS, "LLMDeployments that get more replicas by the changes, as NAMESPACE/NAME."
    )
    cost_before_per_hour: Decimal | None = optional(
        "Of a plan of changes: USD per hour of its GPUs that were in use when it was made, and of the "
        "GPUs to which replicas move."
    )
    pool: ShortText | None = optional(
        "GPUPool of the GPUs in `changes`. Its migPolicy decides whether a person has to approve."
    )
    fleet_plan: Hash | None = optional("FleetPlan of the whole fleet that the changes lead to.")
    approved: StrictBool | None = optional(
        "Consent to the changes, where the pool's migPolicy is Recommend or replicas restart. True "
        "approves them, false rejects them. Set it with `tangram approve NAME`, or with kubectl patch. "
        "No other field may change."
    )
    inputs_hash: Hash | None = optional(
        "Hash of all inputs of the plan and of the version of Tangram. It is the name of the FleetPlan."
    )
    proof: Literal["Optimal", "Feasible", "Fallback"] | None = optional(
        "Optimal: the solver proved that no plan is better. Feasible: the solver reached its limit, and "
        "`gap` bounds the distance to the best plan. Fallback: no plan was found in time, and the fleet "
        "stays as it is."
    )
    cost_per_hour: Decimal | None = optional(
        "USD per hour of the GPUs in use under this plan, GPUs of new nodes included. Of a plan of "
        "changes: of the GPUs that `costBeforePerHour` counts."
    )
    idle_per_hour: Decimal | None = optional("USD per hour of the free slices of GPUs in use.")
    move_cost: Decimal | None = optional("USD for all moves of replicas, paid once.")
    horizon_hours: Decimal | None = optional("Hours within which a saving must pay for its moves.")
    objective: Decimal | None = optional("USD over the horizon, moves included. The solver minimizes it.")
    bound: Decimal | None = optional(
        "Lower bound of the objective, in USD: no plan that leaves as little demand unmet costs less."
    )
    gap: Annotated[str, StringConstraints(max_length=16)] | None = optional(
        'Relative gap between objective and bound, in percent. "0.00%" is proved optimal.'
    )
    one_shape_per_deployment: ShortText | None = optional(
        "How much more this plan costs at most because all replicas of an LLMDeployment have one shape, "
        "compared with free mixes of shapes."
    )
    gpus: ShortText | None = optional('GPUs in use over all GPUs, as text: "3/6".')
    gpus_in_use: Count | None = optional(
        "GPUs in use under this plan, GPUs of new nodes included.", alias="gpusInUse"
    )
    gpu_count: Count | None = optional("All GPUs of the plan, GPUs of new nodes included.")
    unmet: Count | None = optional("Number of LLMDeployments that get fewer replicas than they need.")
    short: tuple[UnmetDemand, ...] = list_field(
        MAX_ITEMS, "The LLMDeployments that get fewer replicas than they need, highest priority first."
    )
    total_deployments: Count | None = optional("Number of LLMDeployments in the plan.")
    deployments: tuple[PlannedDeployment, ...] = list_field(
        MAX_ITEMS, "The replicas that each LLMDeployment gets, the most expensive one first."
    )
    total_layouts: Count | None = optional("Number of different layouts.")
    layouts: tuple[PlannedLayout, ...] = list_field(
        MAX_ITEMS,
        "The layouts of all GPUs, equal layouts together. Layouts of GPUs to re-cut come first, then the "
        "most frequent layouts.",
    )
    new_nodes: tuple[NewNodes, ...] = list_field(MAX_NEW_NODES, "Nodes that the plan adds, by GPUPool.")
    total_moves: Count | None = optional("Number of replicas that move.")
    moves: tuple[PlannedMove, ...] = list_field(
        MAX_ITEMS, "The moves, as many as fit into one object. totalMoves counts all."
    )
    total_steps: Count | None = optional("Number of steps that lead to the plan.")
    steps: tuple[PlannedStep, ...] = list_field(
        MAX_ITEMS,
        "The steps that lead to the plan, in a feasible order, as many as fit into one object. "
        "totalSteps counts all.",
    )
    steps_missing: Text | None = optional(
        "The replicas that the steps do not bring to their devices, and the cause. Absent where the "
        "steps complete the plan."
    )
    notes: tuple[Text, ...] = list_field(
        MAX_NOTES, "Remarks about the inputs and the plan, for instance GPUs that are left out."
    )


_UNCHANGED = (
    field.alias or to_camel(name) for name, field in FleetPlanSpec.model_fields.items() if name != "approved"
)
SPEC_RULE = rule(
    " && ".join(
        f"has(self.{name}) == has(oldSelf.{name}) && (!has(self.{name}) || self.{name} == oldSelf.{name})"
        for name in _UNCHANGED
    ),
    "the spec of a FleetPlan never changes, but for approved: the next plan is another FleetPlan",
)


class FleetPlanStatus(APIModel):
    """The state of the plan, and its figures that change over time. Written by Tangram alone."""

    state: PlanState | None = optional(
        "A plan of the whole fleet is Recommended (better than the fleet as it is), InForce (the fleet "
        "is as planned) or Superseded (by a later FleetPlan). A plan of changes is Recommended (it waits "
        "for `spec.approved`), Approved (by a person or by the pool's migPolicy), Executing, Done (every "
        "GPU has its layout, and every replica its device), Blocked (it cannot begin or go on), Failed "
        "(a layout could not be made, or a replica could not move, and the GPUs get their former layouts "
        "back), Rejected, or Superseded (no longer recommended)."
    )
    since: Time | None = optional("When `state` last changed.")
    reason: Word | None = optional("Of a plan of changes: the reason of its state, in one word.")
    message: Text | None = optional("Of a plan of changes: the reason in one sentence.")
    waits_for: ShortText | None = optional("The one object that the plan waits for, where it waits.")
    deadline: Time | None = optional("Time at which the wait ends.")
    progress: ShortText | None = optional('GPUs that have their new layout, over all that get one: "1/2".')
    current_cost_per_hour: Decimal | None = optional(
        "USD per hour of the GPUs in use in the fleet as it is. Of a superseded plan: the last value "
        "before it was superseded. Of a plan of changes: `spec.costBeforePerHour`."
    )
    saves_per_hour: SignedDecimal | None = optional(
        "`currentCostPerHour` less `spec.costPerHour`, in USD per hour. It is below 0 where the plan "
        "costs more because it serves more."
    )
    solve_seconds: Decimal | None = optional("Time that it took to compute the plan, in seconds.")
