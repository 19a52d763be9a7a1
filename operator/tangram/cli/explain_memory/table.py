"""A memory budget as people read it: a bar, its terms, and how many requests it holds."""

from collections.abc import Iterator

import click

from tangram.capacity.memory.budget import GIB, UNMEASURED
from tangram.capacity.memory.engine_buffers import MIB
from tangram.cli.explain_memory.account import MemoryAccount, terms
from tangram.cli.explain_memory.memory_bar import bar
from tangram.cli.options.model import OTHER_RUNTIMES_NOTE
from tangram.cli.output import UNVERIFIED_MARK, Column, note, notes, table, unverified_mark
from tangram.fleet import WHOLE_GPU


def show_account(account: MemoryAccount) -> None:
    """Print the bar, its terms, and how many requests fit."""
    budget, parts = account.budget, terms(account)
    note(_title(account), indent="  ")
    click.echo()
    bar(parts, budget.total)
    click.echo()
    table(_columns(budget.total), parts)
    notes(_conclusions(account))
    notes(_marks(account))


def _title(account: MemoryAccount) -> str:
    replica = account.replica
    where = replica.sku if replica.profile == WHOLE_GPU else f"{replica.profile} of {replica.sku}"
    shared = f", one of {replica.tensor_parallel} that share the model" if replica.tensor_parallel > 1 else ""
    mark = unverified_mark(replica.architecture.unverified)
    hardware_mark = unverified_mark(_unsourced(account))
    return (
        f"{replica.architecture.name}{mark} ({replica.weights} weights, {replica.kv} KV cache) on {where}"
        f"{hardware_mark}{shared}: {account.budget.total / GIB:.1f} GiB"
    )


def _columns(total: int) -> tuple[Column, ...]:
    return (
        Column("", lambda term: term.letter),
        Column("TERM", lambda term: term.name + unverified_mark(term.unverified)),
        Column("GiB", lambda term: term.size / GIB, ".2f", right=True),
        Column("SHARE", lambda term: term.size / total, ".1%", right=True),
        Column("WHAT IT IS", lambda term: term.meaning),
    )


def _conclusions(account: MemoryAccount) -> Iterator[str]:
    budget, limits = account.budget, account.replica.limits
    prompt, answer = account.request
    if not budget.fits:
        yield f"Does not fit: a request of {limits.max_model_len} tokens lacks {_amount(budget.missing)}."
        yield _advice(account)
        return
    fitting = budget.kv // budget.request_bytes(prompt + answer)
    capped = f" (--max-num-seqs: at most {limits.max_running} run)" if fitting > limits.max_running else ""
    yield (
        f"Fits. The KV cache holds {fitting} requests of {prompt} + {answer} tokens at once{capped},"
        f" or {budget.kv // budget.kv_needed} of the longest, {limits.max_model_len} tokens."
    )
    yield f"One token takes {budget.footprint.kv_bytes_per_token / 1024:.3g} KiB of KV cache on each GPU."
    if state := budget.footprint.state_bytes:
        yield f"A request of any length also keeps {state / MIB:.3g} MiB of state of its recurrent layers."


def _advice(account: MemoryAccount) -> str:
    if not account.reliefs:
        return "No single change of length, batch, precision or GPU count makes it fit: choose a larger GPU."
    first, *others = (" ".join(f"--{o} {value}" for o, value in relief.options) for relief in account.reliefs)
    return f"It would fit with {first}" + (f"; or with {', or '.join(others)}." if others else ".")


def _unsourced(account: MemoryAccount) -> tuple[str, ...]:
    return tuple(fact for fact in account.budget.unverified if fact not in UNMEASURED)


def _marks(account: MemoryAccount) -> Iterator[str]:
    yield (
        f"{UNVERIFIED_MARK} context, graphs and NCCL are estimates for a GPU or slice of this size, not"
        " measurements. The engine measures the real values when it starts."
    )
    if unsourced := _unsourced(account):
        yield f"{UNVERIFIED_MARK} {account.replica.sku}: no reliable source for {', '.join(unsourced)}."
    if not account.replica.architecture.served_by_engine:
        yield OTHER_RUNTIMES_NOTE
    if account.replica.architecture.unverified:
        architecture = account.replica.architecture
        facts = ", ".join(architecture.unverified)
        yield f"{UNVERIFIED_MARK} {architecture.name}: no reliable source for {facts}."


def _amount(size: int) -> str:
    return f"{size / GIB:.1f} GiB" if size >= GIB / 10 else f"{size / MIB:.0f} MiB"
