"""What a joint plan is made from, read from any mix of documents."""

from dataclasses import dataclass, field

from tangram.eligibility.shapes.serving_requirements import ServingRequirements
from tangram.fleet import Pool
from tangram.packing import GPUState, Headroom
from tangram.recommendation.documents.nodes import InferredNode
from tangram.recommendation.documents.pods import DeviceHolder


@dataclass(frozen=True, slots=True)
class SliceRequest:
    """So many slices of a profile, without a model behind them."""

    name: str
    profile: str  # as NVIDIA prints it, `gpu` for whole GPUs, or short: 1g
    count: int
    sku: str | None = None  # None: whatever board has the profile
    priority: int = 0


@dataclass(frozen=True, slots=True)
class PlanTerms:
    """How a plan weighs things. None: nobody said."""

    prices: tuple[tuple[str, float], ...] = ()  # (SKU, USD per GPU-hour), over the catalog's
    move_cost: float | None = None  # USD of moving an instance of somebody without an LLMDeployment
    move_budget: int | None = None  # most replicas that may move
    horizon_h: float | None = None  # hours over which a saving pays for moves
    reachable: bool = False  # of plans that serve as much, one to which steps lead before a cheaper one


@dataclass(frozen=True, slots=True)
class FleetInput:
    """Everything that was read."""

    gpus: tuple[GPUState, ...] = ()
    requests: tuple[SliceRequest, ...] = ()
    deployments: tuple[ServingRequirements, ...] = ()
    pools: tuple[Pool, ...] = ()
    nodes: tuple[InferredNode, ...] = ()  # their GPUs are among `gpus` once the parts are joined
    pods: tuple[DeviceHolder, ...] = ()
    pods_told: bool = False  # somebody listed the pods: what no pod holds is free
    headroom: tuple[Headroom, ...] = ()
    terms: PlanTerms = field(default_factory=PlanTerms)
    inferred: frozenset[str] = frozenset()  # GPUs whose layout nobody told, ids
    notes: tuple[str, ...] = ()
