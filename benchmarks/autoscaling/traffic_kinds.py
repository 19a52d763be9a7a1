"""Kinds of traffic that every service sees one day, generated: what a law is judged on beside recorded traces.

Five of them are held out: the operator's law was changed while they were unseen, and run on them once, afterwards.
Each has three hours or less and some ten thousand requests, so that a run takes seconds.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass

from tangram.fleet.lengths import Lengths
from tangram.simulator.traffic.synthetic_traffic import RatePoint, TrafficDescription, generated
from tangram.simulator.traffic.trace import Trace

MINUTE = 60.0
CHAT = (Lengths(800.0, 1700.0), Lengths(200.0, 450.0))  # tokens of prompts and of answers
SHORT = (Lengths(500.0, 900.0), Lengths(120.0, 240.0))
LONG_ANSWERS = (Lengths(700.0, 1500.0), Lengths(2500.0, 5000.0))
LONG_PROMPTS = (Lengths(18_000.0, 27_000.0), Lengths(60.0, 120.0))
CODE = (Lengths(3000.0, 6000.0), Lengths(40.0, 90.0))


@dataclass(frozen=True, slots=True)
class TrafficKind:
    """Requests of one or more classes, which arrive beside each other."""

    classes: tuple[TrafficDescription, ...]
    is_held_out: bool = False


def _class(
    lengths: tuple[Lengths, Lengths], *rates: tuple[float, float], cv: float = 1.0
) -> TrafficDescription:
    """Return a class of requests; rates are per second, by the minute at which they hold."""
    return TrafficDescription(tuple(RatePoint(MINUTE * at, rate) for at, rate in rates), *lengths, cv)


def _steps(*rates: tuple[float, float]) -> tuple[tuple[float, float], ...]:
    """Return rates that leap to the next one at its minute; the last one ends the traffic."""
    steps: list[tuple[float, float]] = []
    for place, (at, rate) in enumerate(rates):
        steps += [(at, rates[place - 1][1])] if place else []
        steps.append((at, rate))
    return tuple(steps)


def _pulses(
    base: float, high: float, *, minutes: float, every: float, end: float
) -> tuple[tuple[float, float], ...]:
    """Return rates with a pulse at the end of each period."""
    starts = [every * place for place in range(round(end / every))]
    pairs = [step for at in starts for step in ((at, base), (at + every - minutes, high))]
    return _steps(*pairs, (end, base))


def _launch() -> tuple[tuple[float, float], ...]:
    """Return half an hour of next to nothing, a leap, and its decay over an hour."""
    decay = ((30.0 + at, 1.5 + 3.5 * math.exp(-at / 25)) for at in range(0, 71, 5))
    return ((0.0, 0.2), (30.0, 0.2), *decay)


KINDS = {
    "idle-step": TrafficKind((_class(CHAT, *_steps((0, 0.002), (25, 3.0), (100, 3.0))),)),
    "fail-over": TrafficKind((_class(CHAT, *_steps((0, 1.7), (35, 3.4), (70, 1.7), (100, 1.7))),)),
    "gaps": TrafficKind((_class(CHAT, *_pulses(3.0, 0.0, minutes=10, every=35, end=105), cv=1.5),)),
    "on-off": TrafficKind((_class(CHAT, *_pulses(0.5, 4.0, minutes=12, every=24, end=120), cv=2.0),)),
    "long-answers": TrafficKind(
        (_class(SHORT, (0, 4.5), (80, 4.5)), _class(LONG_ANSWERS, (0, 0.3), (80, 0.3)))
    ),
    "launch": TrafficKind((_class(CHAT, *_launch()),)),
    "nightly-batch": TrafficKind(
        (
            _class(CHAT, (0, 1.0), (105, 1.0)),
            _class(SHORT, *_pulses(0.0, 6.0, minutes=10, every=35, end=105)),
        )
    ),
    "ramp": TrafficKind((_class(CHAT, (0, 0.7), (40, 4.0), (65, 4.0), (90, 0.7), (100, 0.7), cv=1.5),)),
    "long-prompts": TrafficKind(
        (_class(SHORT, (0, 2.0), (100, 2.0)), _class(LONG_PROMPTS, (0, 0.2), (100, 0.2)))
    ),
    "two-classes": TrafficKind(
        (
            _class(CHAT, (0, 2.0), (50, 0.7), (100, 2.0)),
            _class(CODE, (0, 0.3), (50, 1.5), (100, 0.3), cv=3.0),
        )
    ),
    "silent-step": TrafficKind((_class(CHAT, *_steps((0, 0.0), (40, 2.2), (150, 2.2))),), is_held_out=True),
    "two-fail-overs": TrafficKind(
        (_class(CHAT, *_steps((0, 1.2), (30, 3.6), (50, 1.2), (85, 3.0), (125, 1.2), (150, 1.2)), cv=1.3),),
        is_held_out=True,
    ),
    "batch-on-ramp": TrafficKind(
        (
            _class(CHAT, (0, 0.5), (80, 3.0), (140, 1.0)),
            _class(SHORT, *_pulses(0.2, 5.0, minutes=14, every=45, end=135), cv=1.5),
        ),
        is_held_out=True,
    ),
    "answers-and-prompts": TrafficKind(
        (
            _class(SHORT, (0, 2.5), (110, 2.5)),
            _class(LONG_ANSWERS, (0, 0.12), (110, 0.24)),
            _class(LONG_PROMPTS, (0, 0.1), (110, 0.05)),
        ),
        is_held_out=True,
    ),
    "bursty-classes": TrafficKind(
        (
            _class(CHAT, (0, 1.6), (120, 1.6), cv=2.5),
            _class(CODE, *_pulses(0.2, 1.8, minutes=8, every=30, end=120), cv=2.0),
        ),
        is_held_out=True,
    ),
}


def kind_traffic(name: str) -> Trace:
    """Return the requests of a kind, always the same ones; a run with another seed draws minutes of them anew."""
    seed = 100 * (1 + list(KINDS).index(name))
    traces = (
        generated(described, seed + place).requests for place, described in enumerate(KINDS[name].classes)
    )
    return Trace(tuple(heapq.merge(*traces, key=lambda request: request.arrival_s)))
