"""Find what limits a running engine, from two readings of its /metrics.

The questions come in this order, because each answer narrows the next: compute or memory bound? prefill,
decode or queue? KV pressure? scheduler policy? An answer names the numbers it rests on; "cannot tell" names
what is missing.
"""

from collections.abc import Callable
from dataclasses import replace

from tangram.capacity.diagnosis import admission_limit, bound, phase, pressure
from tangram.capacity.diagnosis import scrape as m
from tangram.capacity.diagnosis.admission_limit import EngineFlags
from tangram.capacity.diagnosis.findings import CANNOT_TELL, Diagnosis, Finding
from tangram.capacity.diagnosis.scrape import Interval, Scrape
from tangram.capacity.hardware import Hardware
from tangram.capacity.steps.step_model import StepModel


def diagnose(
    before: Scrape,
    after: Scrape,
    seconds: float,
    *,
    hardware: Hardware | None = None,
    step: StepModel | None = None,
    limits: EngineFlags | None = None,
) -> Diagnosis:
    """Answer the four questions for one served model (`Scrape.of_model`).

    `seconds` lie between the readings. `hardware` is what one rank runs on; `step` adds the model on it.
    Raises ValueError unless `seconds` is above 0.
    """
    if not 0 < seconds < float("inf"):
        raise ValueError("seconds between two readings are above 0")
    interval = Interval(before, after, seconds)
    flags = (limits or EngineFlags()).completed(after)
    obstacle = _obstacle(interval)
    answers = (
        _unless(obstacle, bound.QUESTION, lambda: bound.bound(interval, hardware, step)),
        _unless(obstacle, phase.QUESTION, lambda: phase.phase(interval)),
        pressure.pressure(interval, restarted=interval.restart() is not None),
        _unless(obstacle, admission_limit.QUESTION, lambda: admission_limit.admission_limit(interval, flags)),
    )
    model = next(iter(after.models), "")
    used = step.hardware if step else hardware
    return Diagnosis(
        model, after.engines, seconds, answers, _notes(interval), used.unverified if used else ()
    )


def _unless(obstacle: Finding | None, question: str, answer: Callable[[], Finding]) -> Finding:
    """Return the answer to a question, unless an obstacle is all that there is to say."""
    return answer() if obstacle is None else replace(obstacle, question=question)


def _obstacle(interval: Interval) -> Finding | None:
    """Return why an interval is no evidence about a working engine: what to answer to most questions."""
    if fallen := interval.restart():
        return _unusable(
            f"the engine restarted between the readings, or they are of two engines ({fallen})",
            ("two readings of one engine process",),
            "Read again; read one pod, not a Service in front of several.",
        )
    if any(interval.increase(*counter) for counter in _PROGRESS):
        return None
    running = interval.gauge(m.RUNNING)
    if running is not None and min(running) > 0:
        return _unusable(
            f"{min(running):.0f} requests run, but not one token was made in {interval.seconds:.0f} s",
            ("progress",),
            "Look at the engine's log and its GPU: it hangs, or a step takes longer than this.",
        )
    if not any(interval.after.series(*counter) for counter in _PROGRESS):
        names = tuple(names[0] + suffix for names, suffix in _PROGRESS)
        return _unusable("the page has no counter of tokens", names, "Check that the URL is an engine's.")
    return _unusable(
        "there was no traffic between the readings",
        ("requests in between",),
        "Read while the engine works, or send it some load.",
    )


# One of them grows with every step.
_PROGRESS = ((m.GENERATION_TOKENS, ""), (m.PROMPT_TOKENS, ""), (m.STEP_TOKENS, "_count"))


def _unusable(reason: str, missing: tuple[str, ...], next_step: str) -> Finding:
    return Finding("", CANNOT_TELL, reason, (), missing, next_step)


def _notes(interval: Interval) -> tuple[str, ...]:
    """Return notes for the reader beside the answers."""
    after = interval.after
    unusable = sorted({*interval.before.unusable, *after.unusable})
    usage = after.values(m.KV_USAGE)
    notes = (
        unusable and f"left out, not a number an engine can mean: {', '.join(unusable[:8])}",
        after.engines > 1
        and f"{after.engines} engines: counts are added up, KV usage is that of the fullest"
        + (f" ({min(usage):.0%} to {max(usage):.0%})" if usage else ""),
        (refused := interval.increase(m.REJECTIONS))
        and f"{refused:.0f} requests were refused by a queue limit",
        after.config("enable_prefix_caching") == "False" and "prefix caching is off",
    )
    return tuple(str(note) for note in notes if note)
