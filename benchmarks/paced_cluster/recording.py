"""What a replay on the cluster led to, as JSON: enough to simulate it again and to compare."""

from __future__ import annotations

import json
import statistics
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

PERCENTILES = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class Answer:
    """One request and its answer as the client saw it; times in seconds."""

    arrival_s: float
    prompt_tokens: int
    answer_tokens: int
    outcome: str  # "served", or what became of it
    ttft_s: float
    tpot_s: float | None  # None: an answer of one token

    def attains(self, ttft_s: float, tpot_s: float) -> bool:
        """Whether the request met both objectives."""
        in_time = self.ttft_s <= ttft_s and (self.tpot_s is None or self.tpot_s <= tpot_s)
        return self.outcome == "served" and in_time


@dataclass(frozen=True, slots=True)
class Course:
    """A number of replicas over time: (seconds since the beginning of the replay, replicas), sorted."""

    changes: tuple[tuple[float, int], ...]

    def at(self, second: float) -> int:
        """Return the number at an instant; before the first change, that of the first."""
        place = bisect_right(self.changes, second, key=lambda change: change[0])
        return self.changes[max(0, place - 1)][1]

    def by_minute(self, minutes: int) -> list[float]:
        """Return the mean of each minute, over its seconds."""
        return [
            statistics.fmean(self.at(60 * minute + second) for second in range(60))
            for minute in range(minutes)
        ]


@dataclass(frozen=True, slots=True)
class PacedSteps:
    """Steps of all engines, as their logs count them."""

    steps: int
    late: int  # that lasted more than a twentieth longer than their pace
    real_s: float
    paced_s: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run led to, on the cluster or simulated."""

    attainment: float  # share of all requests that met both objectives
    ttft_s: tuple[float, ...]  # of requests that were served, by `PERCENTILES`
    tpot_s: tuple[float, ...]
    desired: Course
    ready: Course


@dataclass(frozen=True, slots=True)
class Recording:
    """One replay on the cluster."""

    title: str  # on what
    pace_ms: tuple[float, float, float]
    llmdeployment: Mapping[str, Any]  # the object, with the facts of its model in its status
    settings: Mapping[str, Any]  # of the operator
    starts_s: tuple[float, ...]  # from the creation of a pod to its readiness
    lead_s: float  # from the first ready replica to the beginning of the replay
    duration_s: float  # from there to the end of what is compared
    steps: PacedSteps
    answers: tuple[Answer, ...]
    desired: Course
    ready: Course
    simulations: tuple[Outcome, ...] = ()  # one per seed, under the law that was measured

    @property
    def objectives_s(self) -> tuple[float, float]:
        """TTFT and TPOT."""
        objectives = self.llmdeployment["spec"]["objectives"]
        return objectives["ttft"]["milliseconds"] / 1e3, objectives["tpot"]["milliseconds"] / 1e3

    @property
    def outcome(self) -> Outcome:
        """What the clients saw."""
        served = [answer for answer in self.answers if answer.outcome == "served"]
        return Outcome(
            statistics.fmean(answer.attains(*self.objectives_s) for answer in self.answers),
            percentiles([answer.ttft_s for answer in served]),
            percentiles([answer.tpot_s for answer in served if answer.tpot_s is not None]),
            self.desired,
            self.ready,
        )

    def write(self, file: Path) -> None:
        """Write it as JSON, a line per request and per simulation."""
        fields = asdict(self)
        rows = [list(answer.values()) for answer in fields.pop("answers")]
        lists = {"answers": rows, "simulations": fields.pop("simulations")}
        text = json.dumps(fields, indent=1)[:-2]
        for name, values in lists.items():
            lines = ",\n".join(json.dumps(value) for value in values)
            text += f',\n "{name}": [\n{lines}\n]'
        file.write_text(text + "\n}\n")


def read(file: Path) -> Recording:
    """Return what `Recording.write` wrote."""
    fields = json.loads(file.read_text())
    parts = {
        "pace_ms": tuple(fields["pace_ms"]),
        "starts_s": tuple(fields["starts_s"]),
        "steps": PacedSteps(**fields["steps"]),
        "answers": tuple(Answer(*row) for row in fields["answers"]),
        "desired": _course(fields["desired"]),
        "ready": _course(fields["ready"]),
        "simulations": tuple(
            Outcome(
                one["attainment"],
                tuple(one["ttft_s"]),
                tuple(one["tpot_s"]),
                _course(one["desired"]),
                _course(one["ready"]),
            )
            for one in fields["simulations"]
        ),
    }
    return Recording(**{**fields, **parts})


def _course(fields: Mapping[str, Any]) -> Course:
    return Course(tuple((at, count) for at, count in fields["changes"]))


def percentiles(values: Sequence[float]) -> tuple[float, ...]:
    """Return `PERCENTILES` of the values, without interpolation."""
    ordered = sorted(values)
    return tuple(ordered[int(percentile / 100 * (len(ordered) - 1))] for percentile in PERCENTILES)
