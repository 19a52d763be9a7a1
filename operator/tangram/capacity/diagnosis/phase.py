"""Prefill, decode or queue? Find where the time of a request goes."""

from collections.abc import Mapping

from tangram.capacity.diagnosis import scrape as m
from tangram.capacity.diagnosis.bound import StepWork, work
from tangram.capacity.diagnosis.findings import CANNOT_TELL, Finding, numbers
from tangram.capacity.diagnosis.scrape import Interval, ratio

QUESTION = "prefill, decode or queue?"

# Tokens from which on a step of any GPU of the catalog takes the time of its arithmetic (the largest ridge).
_LARGE_STEP = 512
_SHARED_STEPS = (
    "Prompts set the pace of the answers: a lower --max-num-batched-tokens shortens the gaps (and lengthens "
    "TTFT); prefix caching, fp8 arithmetic or replicas of their own for long prompts take the load off."
)

_NEXT: Mapping[str, str] = {
    "queue": "More replicas (or a larger share of the GPU) shorten the queue; first see below what holds "
    "requests back: KV cache, sequence limit or token budget.",
    "prefill": "Prompts cost most: prefix caching where they share a beginning, fp8 arithmetic, shorter "
    "prompts; a larger --max-num-batched-tokens shortens TTFT and lengthens the gaps between tokens.",
    "decode": "Answers cost most: fewer bytes per step (fp8 or 4-bit weights, fp8 KV), more bandwidth, "
    "speculative decoding at low load, or a lower max_tokens.",
}


def phase(interval: Interval) -> Finding:
    """Return where the time of a request goes, from the sums over requests that ended in between."""
    queue, prefill, decode = (interval.increase(names, "_sum") for names in (m.QUEUE, m.PREFILL, m.DECODE))
    ended = interval.increase(m.E2E, "_count")
    if queue is None or prefill is None or decode is None or not queue + prefill + decode:
        return _by_tokens(interval)
    whole = queue + prefill + decode
    parts = {"queue": queue, "prefill": prefill, "decode": decode}
    verdict = max(parts, key=lambda phase: parts[phase])
    reason = "of the time of the requests that ended, " + ", ".join(
        f"{value / whole:.0%} was {phase}" for phase, value in parts.items()
    )
    requests, done = interval.increase(m.QUEUE, "_count"), work(interval)
    evidence = numbers(
        ("requests that ended", ended, ""),
        *((f"{phase} per request", ratio(value, requests), "s") for phase, value in parts.items()),
        ("time to first token, mean", interval.mean(m.TTFT), "s"),
        ("time between tokens, mean", _milliseconds(interval.mean(m.ITL)), "ms"),
    )
    share = _prompt_share(done)
    if verdict == "decode" and share is not None:
        reason += f"; but {share:.0%} of the tokens in its steps were prompts of others"
        return Finding(QUESTION, verdict, reason, evidence, (), _SHARED_STEPS)
    return Finding(QUESTION, verdict, reason, evidence, (), _NEXT[verdict])


def _prompt_share(done: StepWork) -> float | None:
    """Part of the tokens that were prompts, where steps were so large that prompts set their pace."""
    if done.tokens_per_step is None or done.tokens_per_step < _LARGE_STEP:
        return None
    share = ratio(done.computed, (done.computed or 0.0) + done.decoded)
    return share if share is not None and share > 0.5 else None


def _by_tokens(interval: Interval) -> Finding:
    """Answer from the times of tokens: no request ended, or the engine is old."""
    first, later = interval.increase(m.TTFT, "_sum"), interval.increase(m.ITL, "_sum")
    phases = (m.QUEUE, m.PREFILL, m.DECODE)
    absent = tuple(names[0] for names in phases if interval.after.total(names, "_sum") is None)
    missing = absent or ("a request that ended between the readings (a longer --interval)",)
    evidence = numbers(("until first tokens", first, "s"), ("between later tokens", later, "s"))
    if not first and not later:
        return Finding(QUESTION, CANNOT_TELL, "no time of any phase was recorded", evidence, missing)
    before, after = first or 0.0, later or 0.0
    share = after / (before + after)
    reason = (
        f"{share:.0%} of the recorded time was between the tokens of answers, the rest before their first"
    )
    if share >= 0.5:
        return Finding(QUESTION, "decode", reason, evidence, missing, _NEXT["decode"])
    waiting, running = interval.gauge(m.WAITING), interval.gauge(m.RUNNING)
    if waiting and running and min(waiting) > max(running):
        return Finding(QUESTION, "queue", f"{reason}; more wait than run", evidence, missing, _NEXT["queue"])
    if waiting is not None and max(waiting) == 0:
        return Finding(
            QUESTION, "prefill", f"{reason}; no request waits", evidence, missing, _NEXT["prefill"]
        )
    return Finding(QUESTION, "queue or prefill", reason, evidence, missing, _NEXT["queue"])


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3
