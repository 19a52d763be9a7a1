"""A memory budget as JSON and YAML show it."""

from typing import Any

from tangram.cli.explain_memory.account import MemoryAccount, terms
from tangram.fleet import WHOLE_GPU


def account_document(account: MemoryAccount) -> dict[str, Any]:
    """Return the budget and its terms, in bytes of one GPU or slice."""
    replica, budget, limits = account.replica, account.budget, account.budget.limits
    architecture = replica.architecture
    return {
        "model": {
            "name": architecture.name,
            "parameters": architecture.parameters,
            "source": architecture.source,
            "served_by_bundled_engine": architecture.served_by_engine,
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
            for t in terms(account)
        ],
        "fits": budget.fits,
        "missing_bytes": budget.missing,
        "kv_cache": {
            "bytes": max(0, budget.kv),
            "tokens": budget.kv_tokens,
            "bytes_of_the_longest_request": budget.kv_needed,
            "longest_requests": budget.concurrent(limits.max_model_len),
            "input": account.request[0],
            "output": account.request[1],
            "concurrent_requests": budget.concurrent(sum(account.request)),
        },
        "would_fit_with": [
            {f"--{option}": value for option, value in relief.options} for relief in account.reliefs
        ],
        "unverified": list(budget.unverified),
    }
