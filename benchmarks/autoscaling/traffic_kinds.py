"""Kinds of traffic that every service sees one day, generated: what a law is judged on beside recorded traces.

Each has three hours or less and some ten thousand requests, so that a run takes seconds. `KINDS` are the ones that
the operator's law was made with. `drawn_kinds` draws others by a seed: a law is judged on a seed that nobody has seen.
"""

from __future__ import annotations

import heapq
import math
import random
import zlib
from dataclasses import dataclass

from tangram.fleet.lengths import Lengths
from tangram.simulator.traffic.synthetic_traffic import RatePoint, TrafficDescription, generated
from tangram.simulator.traffic.trace import Trace

MINUTE = 60.0
CHAT = (Lengths(800.0, 1700.0), Lengths(200.0, 450.0))  # tokens of prompts and of answers
SHORT = (Lengths(500.0, 900.0), Lengths(120.0, 240.0))
LONG_ANSWERS = (Lengths(700.0, 1500.0), Lengths(2500.0, 5000.0))
LONG_PROMPTS = (Lengths(18_000.0, 27_000.0), Lengths(60.0, 120.0))
LABELS = (Lengths(38_000.0, 45_000.0), Lengths(5.0, 9.0))  # of long documents: an answer takes no time
CODE = (Lengths(3000.0, 6000.0), Lengths(40.0, 90.0))


@dataclass(frozen=True, slots=True)
class TrafficKind:
    """Requests of one or more classes, which arrive beside each other."""

    classes: tuple[TrafficDescription, ...]


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


def _launch(quiet: float, peak: float, after: float, decay: float) -> tuple[tuple[float, float], ...]:
    """Return `quiet` minutes of next to nothing, a leap to `peak`, and its decay to `after` over 70 minutes."""
    falling = ((quiet + at, after + (peak - after) * math.exp(-at / decay)) for at in range(0, 71, 5))
    return ((0.0, 0.2), (quiet, 0.2), *falling)


KINDS = {
    "idle-step": TrafficKind((_class(CHAT, *_steps((0, 0.002), (25, 3.0), (100, 3.0))),)),
    "fail-over": TrafficKind((_class(CHAT, *_steps((0, 1.7), (35, 3.4), (70, 1.7), (100, 1.7))),)),
    "gaps": TrafficKind((_class(CHAT, *_pulses(3.0, 0.0, minutes=10, every=35, end=105), cv=1.5),)),
    "on-off": TrafficKind((_class(CHAT, *_pulses(0.5, 4.0, minutes=12, every=24, end=120), cv=2.0),)),
    "long-answers": TrafficKind(
        (_class(SHORT, (0, 4.5), (80, 4.5)), _class(LONG_ANSWERS, (0, 0.3), (80, 0.3)))
    ),
    "launch": TrafficKind((_class(CHAT, *_launch(30.0, 5.0, 1.5, 25.0)),)),
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
    "silent-step": TrafficKind((_class(CHAT, *_steps((0, 0.0), (40, 2.2), (150, 2.2))),)),
    "two-fail-overs": TrafficKind(
        (_class(CHAT, *_steps((0, 1.2), (30, 3.6), (50, 1.2), (85, 3.0), (125, 1.2), (150, 1.2)), cv=1.3),)
    ),
    "batch-on-ramp": TrafficKind(
        (
            _class(CHAT, (0, 0.5), (80, 3.0), (140, 1.0)),
            _class(SHORT, *_pulses(0.2, 5.0, minutes=14, every=45, end=135), cv=1.5),
        )
    ),
    "answers-and-prompts": TrafficKind(
        (
            _class(SHORT, (0, 2.5), (110, 2.5)),
            _class(LONG_ANSWERS, (0, 0.12), (110, 0.24)),
            _class(LONG_PROMPTS, (0, 0.1), (110, 0.05)),
        )
    ),
    "bursty-classes": TrafficKind(
        (
            _class(CHAT, (0, 1.6), (120, 1.6), cv=2.5),
            _class(CODE, *_pulses(0.2, 1.8, minutes=8, every=30, end=120), cv=2.0),
        )
    ),
    "short-answers": TrafficKind((_class(LABELS, (0, 1.0), (17, 1.0)),)),
}


def drawn_kinds(seed: int) -> dict[str, TrafficKind]:
    """Return ten kinds whose rates, times and burstiness are drawn by a seed; their names end in it."""
    number = random.Random(seed).uniform
    idle, steady = number(15, 45), number(1.5, 4.0)
    quiet, peak, after, decay = number(15, 40), number(3.0, 6.0), number(0.8, 2.0), number(10, 40)
    base, fails, over = number(1.0, 2.0), number(25, 45), number(15, 50)
    daytime, batch, batch_minutes, batch_every = (
        number(0.6, 1.5),
        number(3.0, 7.0),
        number(8, 18),
        number(28, 45),
    )
    busy, gap, gap_every = number(2.0, 4.0), number(5, 15), number(25, 40)
    low, high, climb, stay = number(0.4, 1.0), number(2.5, 5.0), number(20, 50), number(10, 40)
    off, on, half = number(0.2, 0.8), number(2.5, 5.0), number(6, 18)
    short, long_answers = number(3.0, 5.0), number(0.15, 0.4)
    questions, long_prompts = number(1.5, 3.0), number(0.04, 0.16)
    chat, code, turn = number(1.2, 2.5), number(0.8, 1.8), number(30, 70)
    burstiness = [number(1.0, 2.5) for _ in range(10)]
    classes = {
        "idle-step": (_class(CHAT, *_steps((0, 0.002), (idle, steady), (110, steady)), cv=burstiness[0]),),
        "launch": (_class(CHAT, *_launch(quiet, peak, after, decay), cv=burstiness[1]),),
        "fail-over": (
            _class(
                CHAT,
                *_steps((0, base), (fails, 2 * base), (fails + over, base), (110, base)),
                cv=burstiness[2],
            ),
        ),
        "nightly-batch": (
            _class(CHAT, (0, daytime), (3 * batch_every, daytime)),
            _class(
                SHORT, *_pulses(0.0, batch, minutes=batch_minutes, every=batch_every, end=3 * batch_every)
            ),
        ),
        "gaps": (
            _class(
                CHAT, *_pulses(busy, 0.0, minutes=gap, every=gap_every, end=3 * gap_every), cv=burstiness[4]
            ),
        ),
        "ramp": (
            _class(
                CHAT,
                (0, low),
                (climb, high),
                (climb + stay, high),
                (2 * climb + stay, low),
                (130, low),
                cv=burstiness[5],
            ),
        ),
        "on-off": (
            _class(CHAT, *_pulses(off, on, minutes=half, every=2 * half, end=8 * half), cv=burstiness[6]),
        ),
        "long-answers": (
            _class(SHORT, (0, short), (90, short), cv=burstiness[7]),
            _class(LONG_ANSWERS, (0, long_answers), (90, long_answers)),
        ),
        "long-prompts": (
            _class(SHORT, (0, questions), (100, questions), cv=burstiness[8]),
            _class(LONG_PROMPTS, (0, long_prompts), (100, long_prompts)),
        ),
        "two-classes": (
            _class(CHAT, (0, chat), (turn, 0.3 * chat), (100, chat)),
            _class(CODE, (0, 0.2 * code), (turn, code), (100, 0.2 * code), cv=burstiness[9]),
        ),
    }
    return {f"{name}@{seed}": TrafficKind(of_kind) for name, of_kind in classes.items()}


def kind_of(name: str) -> TrafficKind:
    """Return the kind of a name: one of `KINDS`, or a drawn one."""
    _, drawn, seed = name.partition("@")
    return drawn_kinds(int(seed))[name] if drawn else KINDS[name]


def kind_traffic(name: str) -> Trace:
    """Return the requests of a kind, always the same ones; a run with another seed draws minutes of them anew."""
    seed = zlib.crc32(name.encode()) if "@" in name else 100 * (1 + list(KINDS).index(name))
    traces = (
        generated(described, seed + place).requests for place, described in enumerate(kind_of(name).classes)
    )
    return Trace(tuple(heapq.merge(*traces, key=lambda request: request.arrival_s)))
