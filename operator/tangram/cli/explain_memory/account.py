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


def terms(account: MemoryAccount) -> tuple[MemoryTerm, ...]:
    """Return the parts in the order in which the engine takes them, without empty ones."""
    replica, budget, limits = account.replica, account.budget, account.budget.limits
    reserve = f"{1 - limits.utilisation:.0%} (--gpu-memory-utilization {limits.utilisation:g}) and a margin"
    sizes = captured_sizes(limits.max_running)
    parts = (
        MemoryTerm("reserve", budget.reserve, f"not used: {reserve}", "white"),
        MemoryTerm("context", budget.context, "CUDA context, kernels, libraries", "yellow"),
        MemoryTerm("graphs", budget.graphs, f"captured decode steps of {len(sizes)} batch sizes", "magenta"),
        MemoryTerm("NCCL", budget.collectives, "buffers between the GPUs", "red"),
        MemoryTerm(
            "buffers", budget.workspace, "per-request rows, keys and values in transfer", "bright_yellow"
        ),
        MemoryTerm("activations", budget.activations, _step(account), "cyan"),
        MemoryTerm("weights", budget.weights, _weights(replica), "blue"),
        _cache(account),
    )
    estimated = {"context", "graphs", "NCCL"}
    return tuple(
        MemoryTerm(t.name, t.size, t.meaning, t.color, unverified=t.name in estimated)
        for t in parts
        if t.size > 0
    )


def _step(account: MemoryAccount) -> str:
    limits = account.budget.limits
    return f"peak of a step of {limits.step_tokens} tokens, {limits.max_running} requests"


def _weights(replica: ReplicaSetup) -> str:
    total = f"{replica.architecture.parameters / 1e9:.3g} B parameters in {replica.weights}"
    return total if replica.tensor_parallel == 1 else f"{total}, over {replica.tensor_parallel} GPUs"


def _cache(account: MemoryAccount) -> MemoryTerm:
    budget, longest = account.budget, account.replica.limits.max_model_len
    if budget.fits:
        return MemoryTerm("KV cache", budget.kv, f"the remainder: {budget.kv_tokens} tokens", "green")
    return MemoryTerm(
        "KV cache", budget.kv_needed, f"needed for one request of {longest} tokens", "bright_red"
    )
