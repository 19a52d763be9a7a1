"""KV pressure? Find how full the KV cache is, and whether requests suffer from it."""

from tangram.capacity.diagnosis import scrape as m
from tangram.capacity.diagnosis.findings import CANNOT_TELL, Finding, numbers
from tangram.capacity.diagnosis.scrape import Interval, Scrape

QUESTION = "KV pressure?"

FULL = 0.9  # vLLM keeps blocks in reserve for what runs already, so admission stops before 1
FILLING = 0.7

MORE_KV = (
    "Make room: fp8 KV cache (--kv-cache-dtype fp8) halves it, fewer bytes of weights leave more; a lower "
    "--max-num-seqs or --max-model-len ends the recomputing; else a GPU with more memory or more replicas."
)


def pressure(interval: Interval, *, restarted: bool) -> Finding:
    """Return how full the KV cache is, and whether requests suffer from it."""
    usage = interval.highest(m.KV_USAGE)
    if usage is None:
        name = "vllm:kv_cache_usage_perc (before 0.9: vllm:gpu_cache_usage_perc)"
        return Finding(QUESTION, CANNOT_TELL, "the page lacks the usage of the KV cache", (), (name,))
    if max(usage) > 1:
        reason = f"the usage is given as {max(usage):g}, which is not a share of 1"
        return Finding(QUESTION, CANNOT_TELL, reason, (), ("a usage between 0 and 1",))
    preemptions = None if restarted else interval.increase(m.PREEMPTIONS)
    waiting = interval.gauge(m.WAITING)
    evidence = numbers(
        ("usage, first reading", usage[0] * 100, "%"),
        ("usage, second reading", usage[1] * 100, "%"),
        ("preemptions in between", preemptions, ""),
        ("waiting at the second reading", waiting and waiting[1], ""),
        ("capacity", capacity_tokens(interval.after), "tokens"),
    )
    missing = () if preemptions is not None else ("vllm:num_preemptions_total",)
    if restarted:
        missing = ("preemptions: the readings are not of one engine process",)
    verdict, reason, step = _verdict(usage, preemptions, waiting)
    return Finding(QUESTION, verdict, reason, evidence, missing, step)


def _verdict(
    usage: tuple[float, float], preemptions: float | None, waiting: tuple[float, float] | None
) -> tuple[str, str, str]:
    if preemptions:
        reason = f"{preemptions:.0f} sequences lost their blocks and had to be computed again"
        return "high", reason, MORE_KV
    if min(usage) >= FULL and waiting and min(waiting) > 0:
        return "high", f"the cache is {min(usage):.0%} full or more, and requests wait", MORE_KV
    if max(usage) >= FILLING:
        reason = f"the cache is up to {max(usage):.0%} full, but no sequence lost blocks"
        return "moderate", reason, "Watch the preemptions when the load grows."
    return "low", f"at most {max(usage):.0%} of the cache was in use at the two readings", ""


def capacity_tokens(scrape: Scrape) -> float | None:
    """Tokens that the KV cache of one engine holds; None where the page lacks it.

    vLLM's hybrid models allocate in blocks of several sizes; there only `kv_cache_size_tokens` is right.
    """
    tokens = count(scrape.config("kv_cache_size_tokens"))
    if tokens:
        return tokens
    blocks, size = count(scrape.config("num_gpu_blocks")), count(scrape.config("block_size"))
    return blocks * size if blocks and size else None


def count(text: str | None) -> float | None:
    """Read a label that should hold a count; vLLM writes None where it has not decided."""
    return float(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 16 else None
