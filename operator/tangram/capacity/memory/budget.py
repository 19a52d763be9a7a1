"""What a GPU's or slice's memory is spent on, and what is left for the KV cache.

    KV cache = total - reserve - context - graphs - collectives - workspace - activations - weights

Terms are those of one rank of the bundled engine, which measures at start what is predicted here. Sizes of
tensors are exact; those that only a CUDA runtime could measure (`UNMEASURED`) are defaults, scaled to the
slice.
"""

from dataclasses import dataclass

from tangram.capacity.hardware import Hardware
from tangram.capacity.memory.engine_buffers import (
    MIB,
    EngineSettings,
    captured_sizes,
    graph_tensor_bytes,
    kernel_buffers,
    rows_bytes,
    torch_buffers,
)
from tangram.capacity.memory.footprint import Footprint
from tangram.catalog import share
from tangram.fleet import CheckpointFacts

GIB = 1024 * MIB

# The engine's own margin inside that, at least 1 % of the total: libraries allocate on their own as well.
MARGIN_BYTES = 256 * MIB
# Driver context, kernel code and library workspaces: a part that every process pays, and one that grows with
# the SMs (local memory), of which a slice has its share. Recalled from A100 and H100 boards, not measured.
CONTEXT_BYTES = 256 * MIB
CONTEXT_BYTES_PER_BOARD = 256 * MIB
# A captured decode step keeps its launch records and a private pool: about 0.5 GiB for 35 batch sizes of a
# 32-layer model in vLLM's start-up log (recalled). Divided by both it is this much.
GRAPH_BYTES_PER_LAYER = MIB // 2
# Communicator buffers of one rank; NVIDIA's aiconfigurator reserves as much.
COLLECTIVES_BYTES = 350 * MIB
UNMEASURED = ("context", "graphs", "collectives")


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """The memory account of one rank, in bytes. The terms add up to `total` unless `kv` is negative."""

    footprint: Footprint
    limits: EngineSettings
    total: int
    reserve: int  # what the utilisation leaves alone, and the engine's margin
    context: int
    graphs: int
    collectives: int
    workspace: int  # kept between steps: rotary table, rows of requests, partial and collected keys, values
    activations: int  # peak of the largest step
    weights: int
    unverified: tuple[str, ...]  # terms not measured on silicon, and facts of the GPU without a source

    @property
    def kv(self) -> int:
        """Bytes left for the KV cache; negative where not even the rest fits."""
        return self.total - self.overhead - self.weights

    @property
    def overhead(self) -> int:
        """Bytes of everything but weights and KV cache."""
        fixed = self.reserve + self.context + self.graphs + self.collectives
        return fixed + self.workspace + self.activations

    @property
    def kv_needed(self) -> int:
        """Bytes that one request of the full length takes: the engine refuses to start with less."""
        return self.request_bytes(self.limits.max_model_len)

    @property
    def missing(self) -> int:
        """By how many bytes it does not fit; 0 if it fits."""
        return max(0, self.kv_needed - self.kv)

    @property
    def fits(self) -> bool:
        """Whether the engine would start: room for one request of the full length."""
        return not self.missing

    @property
    def kv_tokens(self) -> int:
        """Tokens that the cache holds in requests of the full length."""
        longest = self.limits.max_model_len
        return max(0, int(self.kv / (self.footprint.kv_bytes(longest) / longest)))

    def request_bytes(self, tokens: int) -> int:
        """Bytes of cache that one request of `tokens` takes up, in whole blocks."""
        return int(self.footprint.kv_bytes(self.limits.stored(tokens)))

    def concurrent(self, tokens: int) -> int:
        """Requests of `tokens` (prompt and output) that run at once, as far as memory and limits allow."""
        return min(self.limits.max_running, max(0, self.kv) // self.request_bytes(tokens))

    def __str__(self) -> str:
        """Return the account as text."""
        estimated = {"context": self.context, "graphs": self.graphs, "collectives": self.collectives}
        names = " and ".join(name for name, size in estimated.items() if size)
        parts = (
            f"weights {_gib(self.weights)} + KV of one request {_gib(self.kv_needed)}"
            f" + engine {_gib(self.overhead - self.reserve)}, of which {names}"
            f" {_gib(sum(estimated.values()))} estimated + reserve {_gib(self.reserve)}"
        )
        needs = self.weights + self.kv_needed + self.overhead
        return f"needs {_gib(needs)} GiB ({parts}), has {_gib(self.total)} GiB"


def memory_budget(footprint: Footprint, hardware: Hardware, limits: EngineSettings) -> MemoryBudget:
    """Return what the memory of one rank on `hardware` is spent on.

    A slice of unpublished memory size has none: nothing fits, and `unverified` names the size.
    """
    total = hardware.memory_mib * MIB
    limits = limits.on(hardware.sms)
    persistent, activations = (kernel_buffers if hardware.kernels else torch_buffers)(footprint, limits)
    return MemoryBudget(
        footprint=footprint,
        limits=limits,
        total=total,
        reserve=reserve_bytes(total, limits.utilisation),
        context=CONTEXT_BYTES + int(CONTEXT_BYTES_PER_BOARD * share(hardware.sku, hardware.profile)),
        graphs=_graph_bytes(footprint, limits) if hardware.kernels else 0,
        collectives=COLLECTIVES_BYTES if footprint.ranks > 1 else 0,
        workspace=persistent + rows_bytes(footprint.vocab_size, limits) + footprint.dequantised_bytes,
        activations=activations,
        weights=footprint.weight_bytes,
        unverified=(*UNMEASURED[: 3 if footprint.ranks > 1 else 2], *hardware.unverified),
    )


def _graph_bytes(footprint: Footprint, limits: EngineSettings) -> int:
    records = GRAPH_BYTES_PER_LAYER * footprint.layers * len(captured_sizes(limits.max_running))
    return records + graph_tensor_bytes(footprint, limits)


def reserve_bytes(total: int, utilisation: float) -> int:
    """Bytes that the engine leaves alone: what it may not use, and its margin inside the rest."""
    return total - int(total * utilisation) + max(MARGIN_BYTES, total // 100)


def _gib(size: float) -> str:
    return f"{size / GIB:.1f}"


def model_length(facts: CheckpointFacts, requested: int | None) -> int:
    """Return the length in tokens that is served: `requested`, at most what the checkpoint allows."""
    limit = facts.max_position_embeddings
    return limit if requested is None else min(requested, limit)
