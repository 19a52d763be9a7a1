"""A memory budget as people read it, a bar and its terms, and as programs do."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import click

from tangram.capacity.memory.budget import GIB, UNMEASURED, MemoryBudget
from tangram.capacity.memory.engine_buffers import MIB, captured_sizes
from tangram.capacity.memory.relief import Relief, ReplicaSetup
from tangram.cli.explain_memory.bar import Segment, bar
from tangram.cli.output import UNVERIFIED_MARK, Column, note, notes, table
from tangram.fleet import WHOLE_GPU


@dataclass(frozen=True, slots=True)
class MemoryAccount:
    """What was asked and found."""

    replica: ReplicaSetup
    budget: MemoryBudget
    request: tuple[int, int]  # tokens of prompt and answer
    reliefs: tuple[Relief, ...]  # what would make it fit


@dataclass(frozen=True, slots=True)
class Term:
    """One part of the memory."""

    name: str
    size: int  # bytes
    meaning: str
    color: str
    unverified: bool = False


def terms(asked: MemoryAccount) -> tuple[Term, ...]:
    """Return the parts in the order in which they are taken; those of no size are left out."""
    replica, budget, limits = asked.replica, asked.budget, asked.budget.limits
    kept = f"{1 - limits.utilisation:.0%} (--gpu-memory-utilization {limits.utilisation:g}) and a margin"
    sizes = captured_sizes(limits.max_running)
    found = (
        Term("reserve", budget.reserve, f"left alone: {kept}", "white"),
        Term("context", budget.context, "CUDA context, kernels, libraries", "yellow"),
        Term("graphs", budget.graphs, f"captured decode steps of {len(sizes)} batch sizes", "magenta"),
        Term("NCCL", budget.collectives, "buffers between the GPUs", "red"),
        Term(
            "buffers", budget.workspace, "rows of requests, and keys and values on their way", "bright_yellow"
        ),
        Term("activations", budget.activations, _step(asked), "cyan"),
        Term("weights", budget.weights, _weights(replica), "blue"),
        _cache(asked),
    )
    marked = {"context", "graphs", "NCCL"}
    return tuple(
        Term(t.name, t.size, t.meaning, t.color, unverified=t.name in marked) for t in found if t.size > 0
    )


def show_account(asked: MemoryAccount) -> None:
    """Print the bar, its terms, and what they mean for requests."""
    budget, found = asked.budget, terms(asked)
    note(_title(asked), indent="  ")
    click.echo()
    bar([Segment(term.name[0].upper(), term.size, term.color) for term in found], budget.total)
    click.echo()
    columns = (
        Column(""),
        Column("TERM"),
        Column("GiB", right=True),
        Column("SHARE", right=True),
        Column("WHAT IT IS"),
    )
    table(columns, [_row(term, budget.total) for term in found])
    notes(_conclusions(asked))
    notes(_marks(asked))


def account_document(asked: MemoryAccount) -> dict[str, Any]:
    """Return all of it. Bytes are those of one GPU or slice."""
    replica, budget, limits = asked.replica, asked.budget, asked.budget.limits
    architecture = replica.architecture
    return {
        "model": {
            "name": architecture.name,
            "parameters": architecture.parameters,
            "source": architecture.source,
            "unverified": list(architecture.unverified),
        },
        "sku": replica.sku,
        "profile": None if replica.profile == WHOLE_GPU else replica.profile,
        "tensor_parallel": replica.tensor_parallel,
        "weights": replica.weights,
        "kv": replica.kv,
        "max_model_len": limits.max_model_len,
        "max_num_seqs": limits.max_running,
        "max_num_batched_tokens": limits.step_tokens,
        "gpu_memory_utilization": limits.utilisation,
        "block_size": limits.block_size,
        "total_bytes": budget.total,
        "terms": [
            {"name": t.name, "bytes": t.size, "what": t.meaning, "unverified": t.unverified}
            for t in terms(asked)
        ],
        "fits": budget.fits,
        "missing_bytes": budget.missing,
        "kv_cache": {
            "bytes": max(0, budget.kv),
            "tokens": budget.kv_tokens,
            "bytes_of_the_longest_request": budget.kv_needed,
            "longest_requests": budget.concurrent(limits.max_model_len),
            "input": asked.request[0],
            "output": asked.request[1],
            "concurrent_requests": budget.concurrent(sum(asked.request)),
        },
        "would_fit_with": [
            {f"--{option}": value for option, value in each.options} for each in asked.reliefs
        ],
        "unverified": list(budget.unverified),
    }


def _title(asked: MemoryAccount) -> str:
    replica = asked.replica
    where = replica.sku if replica.profile == WHOLE_GPU else f"{replica.profile} of {replica.sku}"
    shared = f", one of {replica.tensor_parallel} that share the model" if replica.tensor_parallel > 1 else ""
    mark = UNVERIFIED_MARK if replica.architecture.unverified else ""
    hardware_mark = UNVERIFIED_MARK if _doubtful(asked) else ""
    return (
        f"{replica.architecture.name}{mark} ({replica.weights} weights, {replica.kv} KV cache) on {where}"
        f"{hardware_mark}{shared}: {asked.budget.total / GIB:.1f} GiB"
    )


def _row(term: Term, total: int) -> list[str]:
    mark = UNVERIFIED_MARK if term.unverified else ""
    share = f"{term.size / total:.1%}"
    return [term.name[0].upper(), term.name + mark, f"{term.size / GIB:.2f}", share, term.meaning]


def _step(asked: MemoryAccount) -> str:
    limits = asked.budget.limits
    return f"peak of a step of {limits.step_tokens} tokens, {limits.max_running} requests"


def _weights(replica: ReplicaSetup) -> str:
    whole = f"{replica.architecture.parameters / 1e9:.3g} B parameters in {replica.weights}"
    return whole if replica.tensor_parallel == 1 else f"{whole}, over {replica.tensor_parallel} GPUs"


def _cache(asked: MemoryAccount) -> Term:
    budget, longest = asked.budget, asked.replica.limits.max_model_len
    if budget.fits:
        return Term("KV cache", budget.kv, f"all that is left: {budget.kv_tokens} tokens", "green")
    return Term("KV cache", budget.kv_needed, f"needed for one request of {longest} tokens", "bright_red")


def _conclusions(asked: MemoryAccount) -> Iterator[str]:
    budget, limits = asked.budget, asked.replica.limits
    prompt, answer = asked.request
    if not budget.fits:
        yield f"Does not fit: {_amount(budget.missing)} short of a request of {limits.max_model_len} tokens."
        yield _advice(asked)
        return
    by_memory = budget.kv // budget.request_bytes(prompt + answer)
    capped = (
        f", of which --max-num-seqs lets {limits.max_running} run" if by_memory > limits.max_running else ""
    )
    yield (
        f"Fits. Room for {by_memory} requests of {prompt} + {answer} tokens at once{capped};"
        f" for {budget.kv // budget.kv_needed} of the longest, {limits.max_model_len} tokens."
    )
    yield f"One token takes {budget.footprint.kv_bytes(1) / 1024:.3g} KiB of KV cache on each GPU."


def _advice(asked: MemoryAccount) -> str:
    if not asked.reliefs:
        return "No single change of length, batch, formats or GPUs makes it fit; it takes a larger GPU."
    first, *others = (" ".join(f"--{o} {value}" for o, value in each.options) for each in asked.reliefs)
    return f"It would fit with {first}" + (f"; or with {', or '.join(others)}." if others else ".")


def _doubtful(asked: MemoryAccount) -> tuple[str, ...]:
    return tuple(fact for fact in asked.budget.unverified if fact not in UNMEASURED)


def _marks(asked: MemoryAccount) -> Iterator[str]:
    yield (
        f"{UNVERIFIED_MARK} context, graphs and NCCL are estimates for a GPU or slice of this size, not"
        " measured on one. The engine measures at start what it really has."
    )
    if doubtful := _doubtful(asked):
        yield f"{UNVERIFIED_MARK} {asked.replica.sku}: no source to rely on for {', '.join(doubtful)}."
    if asked.replica.architecture.unverified:
        facts = ", ".join(asked.replica.architecture.unverified)
        yield f"{UNVERIFIED_MARK} {asked.replica.architecture.name}: recalled or assumed: {facts}."


def _amount(size: int) -> str:
    return f"{size / GIB:.1f} GiB" if size >= GIB / 10 else f"{size / MIB:.0f} MiB"
