"""What is to be packed: GPUs as they are, what each demand would accept, what everything costs."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import count, islice
from typing import Literal

from tangram.catalog.prices import Prices
from tangram.catalog.records import NODE_GPUS
from tangram.fleet import WHOLE_GPU, ShapeKey, Spread
from tangram.packing.geometry.board import Board, board

Backend = Literal["nvml", "mig-manager"]
ANY_SKU = "*"  # of a requested slice: whatever board has the profile
ANYWHERE = Spread()
DEFAULT_START_H = 2 / 60  # hours until a new replica serves, where none was measured


@dataclass(frozen=True, slots=True, order=True)
class Instance:
    """One GPU instance that exists, or a whole GPU that is taken (profile `gpu`, start 0)."""

    profile: str
    start: int
    owner: str | None = None  # id of a demand, or a name that no demand of the problem has; None: free
    movable: bool = True  # False: the pod on it stays where it is
    move_cost: float | None = None  # USD; None: start time of its demand times the slice's price
    gang: str | None = None  # whole GPUs with one gang id are one tensor-parallel replica; None: alone


@dataclass(frozen=True, slots=True, order=True)
class GPUState:
    """One GPU as observed. In MIG mode it offers slices only, otherwise itself only."""

    id: str
    node: str
    sku: str
    zone: str = ""
    pool: str = ""
    cuttable: bool = True  # False: its instances are what they are
    mig_enabled: bool = False
    convertible: bool = False  # its MIG mode may be switched on or off by this plan once nothing runs on it
    backend: Backend = "nvml"  # mig-manager clears a GPU whose counts change; NVML keeps equal slices
    nvlink_gpus: int = NODE_GPUS  # of its node that one NVLink domain joins; 1: no NVLink, 2: bridged pairs
    price_per_hour: float | None = None  # USD, where its pool sets one; None: the problem's price of its SKU
    instances: tuple[Instance, ...] = ()  # sorted by start

    @property
    def in_use(self) -> bool:
        """Whether a replica or a pod holds it, or a slice of it."""
        return any(instance.owner is not None for instance in self.instances)

    @property
    def may_convert(self) -> bool:
        """Whether its MIG mode may be switched, once the replicas that it has now have moved."""
        return self.convertible and all(i.owner is None or i.movable for i in self.instances)


@dataclass(frozen=True, slots=True, order=True)
class Part:
    """`count` replicas of one shape. A whole GPU is profile `gpu`; only those take more than one."""

    sku: str
    profile: str
    tensor_parallel: int
    count: int

    @property
    def shape(self) -> ShapeKey:
        """What one replica stands on."""
        return ShapeKey(self.sku, self.profile, self.tensor_parallel)


@dataclass(frozen=True, slots=True, order=True)
class Offer:
    """A shape that can serve a demand: what one replica of it carries and costs."""

    sku: str
    profile: str
    tensor_parallel: int
    rate: float  # requests per second that one replica sustains within the objectives
    price_per_hour: float  # USD of one replica: its dominant share of the GPU, or the GPUs of its gang
    precision: str = ""  # format of the weights and the cache, for people

    @property
    def shape(self) -> ShapeKey:
        """What one replica stands on."""
        return ShapeKey(self.sku, self.profile, self.tensor_parallel)


@dataclass(frozen=True, slots=True, order=True)
class Allotment:
    """Replicas that a demand may get as a whole, and what they are worth to it."""

    parts: tuple[Part, ...]  # sorted; none: it gets nothing
    unmet: float  # share of the demand that is not served then
    price_per_hour: float = 0.0  # USD: preferred among allotments of equal cost is the cheapest
    cost: float = 0.0  # USD beside the GPUs, over the horizon


@dataclass(frozen=True, slots=True)
class Demand:
    """One LLMDeployment, served by any numbers of replicas of its offers; or a request for raw slices.

    Any of the requested slices may be left out; those of the SKU `ANY_SKU` may lie on several boards. Of
    allotments, a demand gets one.
    """

    id: str
    priority: int = 0  # higher is served first
    spread: Spread = ANYWHERE
    budget_per_hour: float | None = None  # USD; replicas cost no more together
    start_h: float = DEFAULT_START_H  # hours until a replica that moved serves again
    slices: tuple[Part, ...] = ()  # of a request; a demand has offers, slices or allotments
    allotments: tuple[Allotment, ...] = ()  # one of them is empty
    pools: tuple[str, ...] = ()  # of GPUs (`GPUState.pool`) on which it may stand; none: on any
    offers: tuple[Offer, ...] = ()  # sorted, one per shape; without offers and slices it is not served
    rate: float = 0.0  # requests per second to be served; 0: only `min_replicas` counts
    min_replicas: int = 1  # as many have to be there, whatever their rate
    max_replicas: int | None = None
    uniform: bool = False  # all replicas stand on one shape
    protected: tuple[Part, ...] = ()  # a uniform choice equal to one of these may cost more than the budget


@dataclass(frozen=True, slots=True, order=True)
class Headroom:
    """Slices, or whole GPUs, that are to stay free for what may come. Never bought, only kept."""

    sku: str
    profile: str
    count: int


@dataclass(frozen=True, slots=True, order=True)
class GrowablePool:
    """Nodes that do not exist yet. A new node is paid whole."""

    name: str
    sku: str
    node_size: int  # GPUs
    max_nodes: int  # how many more there may be
    price_per_gpu_hour: float
    mig_enabled: bool = False
    zone: str = ""
    nvlink_gpus: int = NODE_GPUS  # of a node that one NVLink domain joins


@dataclass(frozen=True, slots=True)
class Problem:
    """Everything a packing depends on. Equal problems give equal packings."""

    gpus: tuple[GPUState, ...]  # sorted by id
    demands: tuple[Demand, ...]  # sorted by id
    prices: tuple[tuple[str, float], ...] = ()  # (SKU, USD per GPU-hour); the catalog's where absent
    headroom: tuple[Headroom, ...] = ()
    growable: tuple[GrowablePool, ...] = ()
    move_budget: int | None = None  # most replicas that may move; None: any number that pays
    horizon_h: float = 1.0  # hours over which a saving has to pay for the moves it costs
    move_budgets: tuple[tuple[str, int], ...] = ()  # (pool, most replicas that may move away from its GPUs)

    @property
    def skus(self) -> tuple[str, ...]:
        """The SKUs of the GPUs and of nodes that may be added, sorted."""
        return tuple(sorted({gpu.sku for gpu in self.gpus} | {pool.sku for pool in self.growable}))

    def board(self, sku: str) -> Board | None:
        """Return the geometry of `sku`; None: it cannot be cut."""
        return board(sku)

    def price(self, gpu: GPUState) -> float:
        """Return USD per hour. Raises `InputError` where neither pool, problem nor catalog has a price."""
        return Prices(dict(self.prices)).required_gpu_hour(gpu.sku, gpu.price_per_hour)


def new_nodes(problem: Problem, pool: GrowablePool, number: int) -> dict[str, tuple[GPUState, ...]]:
    """Return the GPUs of nodes that do not exist yet, by node, named unlike those that do."""
    existing = {gpu.node for gpu in problem.gpus} | {gpu.id.rpartition("/")[0] for gpu in problem.gpus}
    names = (name for n in count() if (name := f"{pool.name}/new-{n}") not in existing)
    gpu = GPUState(
        id="",
        node="",
        sku=pool.sku,
        zone=pool.zone,
        pool=pool.name,
        mig_enabled=pool.mig_enabled,
        nvlink_gpus=pool.nvlink_gpus,
        price_per_hour=pool.price_per_gpu_hour,
    )
    return {
        node: tuple(replace(gpu, id=f"{node}/{i}", node=node) for i in range(pool.node_size))
        for node in islice(names, number)
    }


def with_free_places(
    problem: Problem,
    counts: Mapping[ShapeKey, int],
    prices: Mapping[ShapeKey, float] | None = None,
) -> Problem:
    """Return `problem` with so many free places of each shape, each on a node and in a zone of its own.

    `prices`: USD per hour of one place.
    """
    extra: list[GPUState] = []
    for shape, number in sorted(counts.items()):
        mig_board, each = problem.board(shape.sku), (prices or {}).get(shape, 0.0) / shape.gpus
        start = None if mig_board is None else mig_board.last_start(shape.profile)
        for name in (f"\0added-{shape}-{n}" for n in range(number)):
            gpu = GPUState(name, name, shape.sku, name, "\0added", cuttable=False, price_per_hour=each)
            if shape.profile == WHOLE_GPU:
                extra += [replace(gpu, id=f"{name}/{i}") for i in range(shape.gpus)]
            elif start is not None:
                extra.append(replace(gpu, mig_enabled=True, instances=(Instance(shape.profile, start),)))
    return replace(problem, gpus=tuple(sorted((*problem.gpus, *extra), key=lambda gpu: gpu.id)))


def slice_request(
    request_id: str, profile: str, count: int, *, sku: str = ANY_SKU, priority: int = 0
) -> Demand:
    """Return a raw request for `count` slices of `profile`, without a model behind it."""
    return Demand(request_id, priority, slices=(Part(sku, profile, 1, count),))
