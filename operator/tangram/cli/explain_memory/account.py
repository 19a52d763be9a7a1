"""The memory of one replica by term, in the order in which the engine takes it."""

from dataclasses import dataclass

from tangram.capacity.memory.budget import MemoryBudget
from tangram.capacity.memory.engine_buffers import captured_sizes
from tangram.capacity.memory.relief import Relief, ReplicaSetup


@dataclass(frozen=True, slots=True)
class MemoryAccount:
    """A replica, its memory budget, and one request."""

    replica: ReplicaSetup
    budget: MemoryBudget
    request: tuple[int, int]  # tokens of prompt and answer
    reliefs: tuple[Relief, ...]  # single changes with which it fits; empty if it fits


@dataclass(frozen=True, slots=True)
class MemoryTerm:
    """One part of the memory."""

    name: str
    size: int  # bytes
    meaning: str
    color: str
    unverified: bool = False

    @property
    def letter(self) -> str:
        """The letter that stands for it in the bar."""
        return self.name[0].upper()


def terms(account: MemoryAccount) -> tuple[MemoryTerm, ...]:
    """Return the parts in the order in which the engine takes them, without empty ones."""
    replica, budget, limits = account.replica, account.budget, account.budget.limits
    reserve = f"{1 - limits.utilisation:.0%} (--gpu-memory-utilization {limits.utilisation:g}) and a margin"
    graphs = f"captured decode steps of {len(captured_sizes(limits.max_running))} batch sizes"
    buffers = "per-request rows, keys and values in transfer"
    step = f"peak of a step of {limits.step_tokens} tokens, {limits.max_running} requests"
    weights = f"{replica.architecture.parameters / 1e9:.3g} B parameters in {replica.weights}"
    if replica.tensor_parallel > 1:
        weights += f", over {replica.tensor_parallel} GPUs"
    parts = (
        MemoryTerm("reserve", budget.reserve, f"not used: {reserve}", "white"),
        MemoryTerm("context", budget.context, "CUDA context, kernels, libraries", "yellow", unverified=True),
        MemoryTerm("graphs", budget.graphs, graphs, "magenta", unverified=True),
        MemoryTerm("NCCL", budget.collectives, "buffers between the GPUs", "red", unverified=True),
        MemoryTerm("buffers", budget.workspace, buffers, "bright_yellow"),
        MemoryTerm("activations", budget.activations, step, "cyan"),
        MemoryTerm("weights", budget.weights, weights, "blue"),
        _cache(account),
    )
    return tuple(term for term in parts if term.size > 0)


def _cache(account: MemoryAccount) -> MemoryTerm:
    budget, longest = account.budget, account.replica.limits.max_model_len
    if budget.fits:
        return MemoryTerm("KV cache", budget.kv, f"the remainder: {budget.kv_tokens} tokens", "green")
    needed = f"needed for one request of {longest} tokens"
    return MemoryTerm("KV cache", budget.kv_needed, needed, "bright_red")
