"""Results of `diagnose`: one finding per question, with its numbers."""

import math
from dataclasses import dataclass

CANNOT_TELL = "cannot tell"


@dataclass(frozen=True, slots=True)
class Number:
    """One number that an answer rests on."""

    name: str
    value: float
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """One question answered, or what is missing to answer it."""

    question: str
    verdict: str
    reason: str
    numbers: tuple[Number, ...] = ()
    missing: tuple[str, ...] = ()  # metrics or flags that would settle the answer, or sharpen it
    next_step: str = ""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The findings of two readings, in the order of the questions."""

    model: str
    engines: int
    seconds: float
    answers: tuple[Finding, ...]
    notes: tuple[str, ...] = ()
    unverified: tuple[str, ...] = ()  # facts of the hardware without a good source


def numbers(*named_values: tuple[str, float | None, str]) -> tuple[Number, ...]:
    """Keep what is known, and finite, of (name, value, unit)."""
    return tuple(
        Number(name, value, unit)
        for name, value, unit in named_values
        if value is not None and math.isfinite(value)
    )
