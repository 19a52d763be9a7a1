"""`FleetPlan`: one decision about the whole fleet. Written by Tangram, read by people. Decimals are strings.

A decision is named by what it was made from, and never changes; only its state does. Lists are bounded: what
a large fleet has more of is counted in `total...`, and `tangram plan` makes the same plan in full.
"""

from typing import Annotated, Literal

from pydantic import Field, JsonValue, StringConstraints

from tangram.api.base import Model
from tangram.api.status import Count, Decimal, ShortText, Text, Time
from tangram.api.values import rule

MAX_ITEMS = 1000  # of each list; bytes are bounded by what writes it
EXAMPLES = 3  # names of GPUs that are told for a class of layouts
SPEC_RULE = rule(
    "self == oldSelf",
    "the spec of a FleetPlan is a decision that was made: it never changes, the next is another FleetPlan",
)
PlanState = Literal["Recommended", "InForce", "Superseded"]
SignedDecimal = Annotated[str, StringConstraints(max_length=24, pattern=r"^-?[0-9]+(\.[0-9]+)?$")]
Hash = Annotated[str, StringConstraints(max_length=12, pattern=r"^[0-9a-f]{12}$")]
Word = Annotated[str, StringConstraints(min_length=1, max_length=64)]
_ATOMIC: dict[str, JsonValue] = {"x-kubernetes-list-type": "atomic"}


class PlannedShape(Model):
    """Replicas of one kind."""

    shape: ShortText = Field(
        description="GPU model, with its MIG profile if any, and TPn where it takes n GPUs."
    )
    precision: Word = Field(description="Format of the weights; unknown where what runs was not sized.")
    replicas: Count = Field(description="How many replicas.")


class PlannedDeployment(Model):
    """What one LLMDeployment gets."""

    namespace: ShortText = Field(description="Namespace of the LLMDeployment.")
    name: ShortText = Field(description="Name of the LLMDeployment.")
    chosen: tuple[PlannedShape, ...] = Field(
        default=(),
        max_length=8,
        description="Its replicas; empty where it gets none.",
        json_schema_extra=_ATOMIC,
    )
    cost_per_hour: Decimal = Field(
        description="USD per hour of its replicas. A slice costs its dominant share of its GPU."
    )


class PlannedSlices(Model):
    """Slices of one profile on one GPU that have one owner, or the whole GPU."""

    profile: Word = Field(description="MIG profile, or gpu for a whole GPU.")
    starts: tuple[Count, ...] = Field(
        max_length=16,
        description="The memory slices of the GPU at which they begin, one number for each of them.",
        json_schema_extra=_ATOMIC,
    )
    owner: ShortText | None = Field(
        default=None, description="Whose replicas are on them; absent: they are free."
    )


class PlannedLayout(Model):
    """A layout, and how many GPUs have it."""

    count: Count = Field(description="How many GPUs have this layout.")
    sku: ShortText = Field(description="GPU model.")
    recut: bool = Field(default=False, description="Whether slices are made or removed for it.")
    slices: tuple[PlannedSlices, ...] = Field(
        default=(),
        max_length=16,
        description="Slices on the GPU, or the whole of it; empty: nothing is on it.",
        json_schema_extra=_ATOMIC,
    )
    gpus: tuple[ShortText, ...] = Field(
        default=(),
        max_length=EXAMPLES,
        description="The first of these GPUs, by name.",
        json_schema_extra=_ATOMIC,
    )


class PlannedMove(Model):
    """One replica that starts elsewhere and stops where it was."""

    owner: ShortText = Field(description="Whose replica moves.")
    source: ShortText = Field(alias="from", description="The GPU, and the slice on it, where it was.")
    target: ShortText = Field(alias="to", description="The GPU, and the slice on it, where it starts.")
    cost: Decimal = Field(description="USD of the time in which both run.")


class PlannedStep(Model):
    """One thing to do."""

    number: Count = Field(description="Number of the step; later steps refer to it.")
    kind: Word = Field(description="What is done: start-replica, drain-replica, create-slice and the like.")
    owner: ShortText | None = Field(default=None, description="Whose replica.")
    at: Text = Field(description="The node or the GPUs, and the slice on it.")
    after: tuple[Count, ...] = Field(
        default=(),
        max_length=MAX_ITEMS,
        description="Numbers of the steps that must be done before.",
        json_schema_extra=_ATOMIC,
    )


class UnmetDemand(Model):
    """Who goes short."""

    name: ShortText = Field(description="The LLMDeployment: NAMESPACE/NAME, in the default namespace NAME.")
    priority: int = Field(ge=-(10**9), le=10**9, description="Its priority.")
    share: Decimal = Field(description="Which part of it is not served, from 0 to 1.")
    reason: Text = Field(description="Why, in a sentence.")


class NewNodes(Model):
    """Nodes that a pool grows by."""

    pool: ShortText = Field(description="Name of the GPUPool.")
    count: Count = Field(description="How many nodes are added.")


class FleetPlanSpec(Model):
    """The decision. It never changes."""

    inputs_hash: Hash = Field(
        description="Digest of all that the decision depends on: equal digests, equal decisions."
    )
    proof: Literal["Optimal", "Feasible", "Fallback"] = Field(
        description="Optimal: no better plan exists. Feasible: time ran out, `gap` says how far it may be "
        "from the best. Fallback: nothing was found in time, what runs goes on."
    )
    cost_per_hour: Decimal = Field(description="USD per hour of the GPUs in use, and of new nodes.")
    current_cost_per_hour: Decimal = Field(
        description="USD per hour of the GPUs in use when this was decided."
    )
    saves_per_hour: SignedDecimal = Field(
        description="USD per hour that the fleet costs less than now; below 0: it costs more, to serve more."
    )
    idle_per_hour: Decimal = Field(
        description="USD per hour of those parts of GPUs in use on which no replica is."
    )
    move_cost: Decimal = Field(description="USD of the moves that lead there, paid once.")
    horizon_hours: Decimal = Field(description="Over how many hours a saving has to pay for its moves.")
    objective: Decimal = Field(description="USD over the horizon, moves included: what was minimised.")
    bound: Decimal = Field(
        description="USD over the horizon below which no plan is that leaves as little unmet."
    )
    gap: Annotated[str, StringConstraints(max_length=16)] = Field(
        description='How far the objective may be above the bound, in percent: "0.00%" is proved best.'
    )
    solve_seconds: Decimal = Field(description="How long it took to decide.")
    gpus: ShortText = Field(description='GPUs in use over all GPUs, for people: "3/6".')
    gpus_in_use: Count = Field(alias="gpusInUse", description="GPUs on which a replica is, new ones too.")
    gpu_count: Count = Field(description="All GPUs of the plan, new ones too.")
    unmet: Count = Field(description="How many LLMDeployments go short.")
    short: tuple[UnmetDemand, ...] = Field(
        default=(),
        max_length=MAX_ITEMS,
        description="Who goes short, the highest priority first.",
        json_schema_extra=_ATOMIC,
    )
    total_deployments: Count = Field(description="How many LLMDeployments were planned.")
    deployments: tuple[PlannedDeployment, ...] = Field(
        default=(),
        max_length=MAX_ITEMS,
        description="What each LLMDeployment gets, the dearest first.",
        json_schema_extra=_ATOMIC,
    )
    total_layouts: Count = Field(description="How many different layouts there are.")
    layouts: tuple[PlannedLayout, ...] = Field(
        default=(),
        max_length=MAX_ITEMS,
        description="The layouts of all GPUs by class: those that are re-cut first, then the most frequent.",
        json_schema_extra=_ATOMIC,
    )
    new_nodes: tuple[NewNodes, ...] = Field(
        default=(),
        max_length=256,
        description="Nodes that pools grow by.",
        json_schema_extra=_ATOMIC,
    )
    total_moves: Count = Field(description="How many replicas move.")
    moves: tuple[PlannedMove, ...] = Field(
        default=(),
        max_length=MAX_ITEMS,
        description="The first of the moves.",
        json_schema_extra=_ATOMIC,
    )
    total_steps: Count = Field(description="How many steps lead there.")
    steps: tuple[PlannedStep, ...] = Field(
        default=(),
        max_length=MAX_ITEMS,
        description="The first of the steps that lead there, in an order that works.",
        json_schema_extra=_ATOMIC,
    )
    steps_missing: Text | None = Field(
        default=None, description="What would be needed for the steps to lead all the way; absent: nothing."
    )
    notes: tuple[Text, ...] = Field(
        default=(),
        max_length=32,
        description="What a reader should know about this plan.",
        json_schema_extra=_ATOMIC,
    )


class FleetPlanStatus(Model):
    """What became of the decision. Written by Tangram alone."""

    state: PlanState | None = Field(
        default=None,
        description="Recommended: it is better than the fleet as it is. InForce: the fleet is as it says. "
        "Superseded: a later decision took its place.",
    )
    since: Time | None = Field(default=None, description="When the state last changed.")
