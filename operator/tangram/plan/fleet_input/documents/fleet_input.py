"""Data types of a plan's input, filled by the readers beside it and by `observed`."""

from dataclasses import dataclass, field, replace

from tangram.eligibility.devices.device_rules import NodeFacts
from tangram.eligibility.shapes.serving_requirements import ServingRequirements
from tangram.fleet import Pool
from tangram.packing import GPUState, Headroom
from tangram.plan.fleet_input.documents.nodes import InferredNode
from tangram.plan.fleet_input.documents.pods import DeviceHolder


@dataclass(frozen=True, slots=True)
class SliceRequest:
    """A number of slices of a profile, without a model."""

    name: str
    profile: str  # as NVIDIA prints it, `gpu` for whole GPUs, or short: 1g
    count: int
    sku: str | None = None  # None: any GPU with the profile
    priority: int = 0


@dataclass(frozen=True, slots=True)
class PlanTerms:
    """Prices, move costs and budgets of a plan. None: not given."""

    prices: tuple[tuple[str, float], ...] = ()  # (SKU, USD per GPU-hour), over the catalog's
    move_cost: float | None = None  # USD of moving an instance without an LLMDeployment
    move_budget: int | None = None  # most replicas that may move
    horizon_h: float | None = None  # hours over which a saving pays for moves
    reachable: bool = False  # prefer a plan to which steps lead over a cheaper one that serves as much

    def overridden_by(self, terms: "PlanTerms") -> "PlanTerms":
        """Return these terms with the ones that `terms` gives in their place."""
        named = {name: getattr(terms, name) for name in ("move_cost", "move_budget", "horizon_h")}
        prices = tuple(sorted((dict(self.prices) | dict(terms.prices)).items()))
        return replace(self, prices=prices, **{name: v for name, v in named.items() if v is not None})


@dataclass(frozen=True, slots=True)
class FleetInput:
    """The whole input of a plan."""

    gpus: tuple[GPUState, ...] = ()
    requests: tuple[SliceRequest, ...] = ()
    deployments: tuple[ServingRequirements, ...] = ()
    pools: tuple[Pool, ...] = ()
    node_facts: tuple[tuple[str, NodeFacts], ...] = ()  # with their documents, until GPUPools are known
    nodes: tuple[InferredNode, ...] = ()  # of a merged input: their GPUs are among `gpus`
    pods: tuple[DeviceHolder, ...] = ()
    pods_listed: bool = False  # all pods are listed: a device without a pod is free
    headroom: tuple[Headroom, ...] = ()
    terms: PlanTerms = field(default_factory=PlanTerms)
    inferred: frozenset[str] = frozenset()  # ids of GPUs whose layout is inferred from counts
    left_out: frozenset[str] = frozenset()  # ids of GPUs in use on left-out nodes: they stay as they are
    notes: tuple[str, ...] = ()

    @property
    def planned_gpus(self) -> tuple[GPUState, ...]:
        """The GPUs that new replicas may be given."""
        return tuple(gpu for gpu in self.gpus if gpu.id not in self.left_out)
