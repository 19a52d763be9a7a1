"""Changes that make a model fit: the smallest of each kind, each tried with the memory budget."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from operator import attrgetter

from tangram.capacity.hardware import hardware
from tangram.capacity.memory.budget import MemoryBudget, memory_budget
from tangram.capacity.memory.engine_buffers import EngineSettings
from tangram.capacity.memory.footprint import footprint
from tangram.catalog import Architecture, InputError, gpu
from tangram.catalog.models.precision import precision
from tangram.fleet import WHOLE_GPU

FORMATS = ("fp8", "int8", "int4")
TENSOR_PARALLEL = (2, 4, 8, 16)
FEWER_RUNNING = (256, 128, 64, 32, 16, 8, 4, 1)
FEWER_TOKENS = (8192, 4096, 2048, 1024, 512)


@dataclass(frozen=True, slots=True)
class ReplicaSetup:
    """A model on a GPU or slice, as it is to be started."""

    architecture: Architecture
    sku: str
    profile: str
    weights: str  # format of the weights
    kv: str  # of the KV cache
    tensor_parallel: int
    limits: EngineSettings

    def budget(self) -> MemoryBudget:
        """Return the account of one rank. Raises `InputError` where it cannot be started at all."""
        where = hardware(self.sku, self.profile)
        held = footprint(self.architecture, self.weights, self.kv, self.tensor_parallel, where)
        return memory_budget(held, where, self.limits)


@dataclass(frozen=True, slots=True)
class Relief:
    """A change that makes it fit."""

    options: tuple[tuple[str, str], ...]  # as on the command line: (("max-model-len", "8192"),)
    replica: ReplicaSetup


def reliefs(replica: ReplicaSetup, shortest: int) -> tuple[Relief, ...]:
    """Return the changes that work, one of each kind, from the one that costs users least.

    `shortest`: tokens of a request that must still be possible.
    """
    settings = _first(replica, shortest, (_length, _batch, _running, _cache, _format))
    if not settings:
        settings = _first(replica, shortest, (_format_and_length,))
    return settings + _first(replica, shortest, (_share, _hardware))


_Kind = Callable[[ReplicaSetup, int], Iterator[Relief]]


def _first(replica: ReplicaSetup, shortest: int, kinds: tuple[_Kind, ...]) -> tuple[Relief, ...]:
    """Return the first change of each kind with which the replica fits."""
    changes = (kind(replica, shortest) for kind in kinds)
    firsts = (next((relief for relief in change if _fits(relief.replica)), None) for change in changes)
    return tuple(relief for relief in firsts if relief)


def _fits(replica: ReplicaSetup) -> bool:
    try:
        return replica.budget().fits
    except InputError:
        return False


def _length(replica: ReplicaSetup, shortest: int) -> Iterator[Relief]:
    """The longest request for which there is room."""

    def of(length: int) -> ReplicaSetup:
        return replace(replica, limits=replace(replica.limits, max_model_len=length))

    low, high = shortest, replica.limits.max_model_len
    if low >= high or not _fits(of(low)):
        return
    while high - low > 1:  # low fits, high does not
        middle = (low + high) // 2
        low, high = (middle, high) if _fits(of(middle)) else (low, middle)
    yield Relief((("max-model-len", str(low)),), of(low))


def _batch(replica: ReplicaSetup, shortest: int) -> Iterator[Relief]:
    """A smaller step needs less memory on the way, and prompts take more of them."""
    chosen = replica.limits.on(hardware(replica.sku, replica.profile).sms).step_tokens
    for tokens in FEWER_TOKENS:
        if replica.limits.max_running <= tokens < chosen:
            changed = replace(replica, limits=replace(replica.limits, max_batched_tokens=tokens))
            yield Relief((("max-num-batched-tokens", str(tokens)),), changed)


def _running(replica: ReplicaSetup, shortest: int) -> Iterator[Relief]:
    for most in FEWER_RUNNING:
        if most < replica.limits.max_running:
            changed = replace(replica, limits=replace(replica.limits, max_running=most))
            yield Relief((("max-num-seqs", str(most)),), changed)


def _cache(replica: ReplicaSetup, shortest: int) -> Iterator[Relief]:
    if replica.kv != "fp8":
        yield Relief((("kv", "fp8"),), replace(replica, kv="fp8"))


def _format(replica: ReplicaSetup, shortest: int) -> Iterator[Relief]:
    """The format with the most bits; it takes a quantised checkpoint."""
    for name in FORMATS:
        if precision(name).bits < precision(replica.weights).bits:
            yield Relief((("weights", name),), replace(replica, weights=name))


def _format_and_length(replica: ReplicaSetup, shortest: int) -> Iterator[Relief]:
    """A narrower format and shorter requests, where neither is enough."""
    for narrower in _format(replica, shortest):
        for shorter in _length(narrower.replica, shortest):
            yield Relief((*narrower.options, *shorter.options), shorter.replica)


def _share(replica: ReplicaSetup, shortest: int) -> Iterator[Relief]:
    """More GPUs; slices have no links to share a model over."""
    for count in TENSOR_PARALLEL:
        if replica.profile == WHOLE_GPU and count > replica.tensor_parallel:
            yield Relief((("tp", str(count)),), replace(replica, tensor_parallel=count))


def _hardware(replica: ReplicaSetup, shortest: int) -> Iterator[Relief]:
    """The smallest larger slice of the same board, then the whole of it."""
    board = gpu(replica.sku)
    if board is None or replica.profile == WHOLE_GPU:
        return
    usable = (profile for profile in board.profiles if profile.memory_is_known)
    profiles = sorted(usable, key=attrgetter("dominant_share", "name"))
    for name in (*(profile.name for profile in profiles), WHOLE_GPU):
        yield Relief((("profile", name),), replace(replica, profile=name))
