"""Which limit keeps the engine from admitting more requests: KV cache, sequences or tokens of a step."""

from dataclasses import dataclass, replace

from tangram.capacity.diagnosis import scrape as m
from tangram.capacity.diagnosis.bound import work
from tangram.capacity.diagnosis.findings import CANNOT_TELL, Finding, numbers
from tangram.capacity.diagnosis.pressure import FULL, MORE_KV, count
from tangram.capacity.diagnosis.scrape import Interval, Scrape, ratio

QUESTION = "scheduler policy?"

_FULL_STEP = 0.9  # of the token budget
_MOST_STEPS = 0.5
_MORE_SLOTS = "Raise --max-num-seqs while the KV cache has room and TPOT has slack; else add replicas."
_OTHER_CAUSES = "Look for adapters, priorities or a stuck prefill."
_MORE_TOKENS = (
    "Raise --max-num-batched-tokens if TPOT has slack: prompts then take fewer steps; else add replicas."
)


@dataclass(frozen=True, slots=True)
class EngineFlags:
    """Flags of the engine that its page does not always have. None: unknown."""

    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None

    def completed(self, scrape: Scrape) -> "EngineFlags":
        """Fill flags that are not set from the page: our engine exports them, vLLM does not."""
        seqs, tokens = (count(scrape.config(label)) for label in ("max_num_seqs", "max_num_batched_tokens"))
        return EngineFlags(
            self.max_num_seqs or (int(seqs) if seqs else None),
            self.max_num_batched_tokens or (int(tokens) if tokens else None),
        )


def admission_limit(interval: Interval, limits: EngineFlags) -> Finding:
    """Return the limit for which the scheduler holds requests back, if any."""
    running, waiting = interval.gauge(m.RUNNING), interval.gauge(m.WAITING)
    if running is None or waiting is None:
        gauges = {m.RUNNING[0]: running, m.WAITING[0]: waiting}
        missing = tuple(name for name, value in gauges.items() if value is None)
        return _finding(CANNOT_TELL, "the page lacks the numbers of running and waiting requests", missing)
    done = work(interval)
    full = _full_steps(interval, limits.max_num_batched_tokens)
    evidence = numbers(
        ("running, first reading", running[0], ""),
        ("running, second reading", running[1], ""),
        ("waiting, first reading", waiting[0], ""),
        ("waiting, second reading", waiting[1], ""),
        ("sequence limit", limits.max_num_seqs, ""),
        ("tokens per step, mean", done.tokens_per_step, ""),
        ("token budget of a step", limits.max_num_batched_tokens, ""),
        ("steps that filled the budget", None if full is None else full * 100, "%"),
        ("prompt tokens found in the prefix cache", _hit_percent(interval), "%"),
        ("requests refused", interval.increase(m.REJECTIONS), ""),
    )
    return replace(_held_by(interval, running, waiting, limits, full), numbers=evidence)


def _finding(verdict: str, reason: str, missing: tuple[str, ...] = (), next_step: str = "") -> Finding:
    return Finding(QUESTION, verdict, reason, (), missing, next_step)


def _held_by(
    interval: Interval,
    running: tuple[float, float],
    waiting: tuple[float, float],
    limits: EngineFlags,
    full: float | None,
) -> Finding:
    if max(waiting) == 0:
        return _finding("admits at once", "no request waited at either reading")
    slots = (limits.max_num_seqs or 0) * interval.after.engines
    return (
        _by_cache(interval)
        or _by_limits(max(running), slots, full, limits)
        or _by_looks(running, waiting, slots, limits)
    )


def _by_cache(interval: Interval) -> Finding | None:
    usage = interval.highest(m.KV_USAGE)
    if interval.increase(m.PREEMPTIONS) or (usage and min(usage) >= FULL):
        reason = "requests wait while the KV cache is full or preempts"
        return _finding("held by KV cache", reason, (), MORE_KV)
    return None


def _by_limits(running: float, slots: int, full: float | None, limits: EngineFlags) -> Finding | None:
    if slots and running >= slots:
        reason = f"all {slots} slots (--max-num-seqs) are taken while requests wait"
        return _finding("held by sequence limit", reason, (), _MORE_SLOTS)
    if full is not None and full >= _MOST_STEPS:
        reason = f"{full:.0%} of the steps filled the token budget of {limits.max_num_batched_tokens}"
        return _finding("held by token budget", reason, _unknown(limits), _MORE_TOKENS)
    return None


def _by_looks(
    running: tuple[float, float], waiting: tuple[float, float], slots: int, limits: EngineFlags
) -> Finding:
    """Return a verdict where no limit is known to be met; equal numbers at both readings suggest one."""
    if min(waiting) == 0:
        return _finding("waits now and then", "requests waited at one reading only", _unknown(limits))
    if not slots and running[0] == running[1] > 0:
        reason = f"exactly {running[0]:.0f} ran at both readings while requests waited; the KV cache had room"
        return _finding("held by sequence limit, it seems", reason, _unknown(limits), _MORE_SLOTS)
    reason = "requests wait at both readings, and neither the KV cache nor a known limit explains it"
    return _finding(CANNOT_TELL, reason, _unknown(limits), _OTHER_CAUSES)


def _unknown(limits: EngineFlags) -> tuple[str, ...]:
    """Name the flags that are unknown; vLLM exports neither."""
    flags = {"--max-num-seqs": limits.max_num_seqs, "--max-num-batched-tokens": limits.max_num_batched_tokens}
    return tuple(flag for flag, value in flags.items() if value is None)


def _full_steps(interval: Interval, budget: int | None) -> float | None:
    """Share of steps that came near the token budget, from the buckets."""
    if budget is None:
        return None
    most = interval.share_at_most(m.STEP_TOKENS, budget * _FULL_STEP)
    return None if most is None else 1 - most[1]


def _hit_percent(interval: Interval) -> float | None:
    share = ratio(interval.increase(m.CACHE_HITS), interval.increase(m.CACHE_QUERIES))
    return None if share is None else min(1.0, share) * 100
