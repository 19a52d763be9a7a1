"""What random arrivals add to the means of continuous batching: a table, made by the step simulation.

For a replica whose requests come at random, the table (queueing.yaml) gives by how much TTFT and TPOT exceed
what `batching` computes for a replica on which nothing fluctuates, as mean and percentiles. Its axes:

    utilisation    rate over the highest rate that the replica carries
    variability    coefficient of variation of the gaps between arrivals
    slots          requests that run at the same time      \\
    slope          share of a full decode step that grows     } batch class
                   with the batch                             |
    prefill        share of the time that prompts take     /  at the highest rate

Waits are in units of 1 / highest rate: the mean time between two departures of a full replica. In these units
models, GPUs and lengths fall together. Between entries the wait is linear in u / (1 - u), beyond the last one
proportional to it: it is monotone in the utilisation u and has no bound as u goes to 1. The file is made by
`python -m benchmarks.queueing_table`.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from tangram.catalog.reading.packaged_yaml import packaged_yaml

COLUMNS = ("mean", "p50", "p90", "p95", "p99")
Row = tuple[float, ...]  # one number per column
_NOTHING: Row = (0.0,) * len(COLUMNS)
_Scale = Callable[[float], float]
_SCALES: tuple[_Scale, ...] = (math.log, math.log, float, float)  # variability and slots by their ratios


@dataclass(frozen=True, slots=True)
class BatchClass:
    """The properties of a replica that decide its queue."""

    slots: float
    slope: float
    prefill: float


class Curve:
    """Waits of one replica by utilisation."""

    def __init__(self, loads: Row, waits: "_Blend", slowdowns: "_Blend") -> None:
        self.loads = loads  # utilisations of the rows
        self.waits = waits  # over the mean TTFT, in times between departures
        self.slowdowns = slowdowns  # over the mean TPOT, in mean TPOTs of the full replica

    def wait(self, utilisation: float, column: int) -> float:
        """Return the wait's mean or one of its percentiles; infinite from utilisation 1 on."""
        if utilisation >= 1:
            return math.inf
        last = self.loads[-1]
        if utilisation > last:
            return _odds(utilisation) / _odds(last) * self.waits.row(len(self.loads))[column]
        return self.waits.between(_odds_of(self.loads), _odds(utilisation), column)

    def slowdown(self, utilisation: float, column: int) -> float:
        """Return by how much TPOT exceeds its mean path; that of the last row beyond it."""
        return self.slowdowns.between(_from_zero(self.loads), min(utilisation, self.loads[-1]), column)


class _Blend:
    """Rows by load, 0 first, each the weighted sum of rows of the nearest classes; computed on first use."""

    def __init__(self, corners: "Sequence[tuple[tuple[Row, ...], float]]", factor: float) -> None:
        self.corners = corners
        self.factor = factor
        self.made: dict[int, Row] = {0: _NOTHING}

    def row(self, number: int) -> Row:
        """Return the row of a load: 0 is no load, 1 the first of the table."""
        computed = self.made.get(number)
        if computed is None:
            sums = [0.0] * len(COLUMNS)
            for rows, weight in self.corners:
                for column, value in enumerate(rows[number - 1]):
                    sums[column] += weight * value
            computed = self.made[number] = tuple(self.factor * value for value in sums)
        return computed

    def between(self, knots: Row, value: float, column: int) -> float:
        """Interpolate between the rows at the knots around a value."""
        right = min(max(1, bisect_right(knots, value)), len(knots) - 1)
        share = (value - knots[right - 1]) / (knots[right] - knots[right - 1])
        low = self.row(right - 1)[column]
        return low + share * (self.row(right)[column] - low)


@dataclass(frozen=True)
class Table:
    """The file; rows stay text until they are used."""

    loads: Row
    axes: tuple[Row, ...]  # variability, slots, slope, prefill
    rows: Mapping[str, tuple[str, str]]

    @cached_property
    def scaled(self) -> tuple[Row, ...]:
        """The axes as they are interpolated along."""
        return tuple(tuple(map(scale, axis)) for axis, scale in zip(self.axes, _SCALES, strict=True))

    @cached_property
    def classes(self) -> "dict[Row, tuple[tuple[Row, ...], tuple[Row, ...]]]":
        """Waits and slowdowns of the classes parsed so far."""
        return {}

    def curve(self, variability: float, batch: BatchClass, wait: float = 1.0, slowdown: float = 1.0) -> Curve:
        """Interpolate between the classes that were simulated; outside of them the nearest holds.

        Beyond the most variable arrivals that were simulated the wait grows with their variance. `wait` and
        `slowdown`: by how much those of other lengths than the simulated ones are longer.
        """
        point = (variability, batch.slots, batch.slope, batch.prefill)
        corners = self._corners(point)
        beyond = max(1.0, variability / self.axes[0][-1]) ** 2
        return Curve(
            self.loads,
            _Blend([(waits, weight) for (waits, _), weight in corners], beyond * wait),
            _Blend([(slowdowns, weight) for (_, slowdowns), weight in corners], slowdown),
        )

    def _corners(self, point: Row) -> "list[tuple[tuple[tuple[Row, ...], tuple[Row, ...]], float]]":
        """Return the entries around a point with their weights."""
        corners = [((), 1.0)]  # type: list[tuple[tuple[float, ...], float]]
        for axis, knots, scale, value in zip(self.axes, self.scaled, _SCALES, point, strict=True):
            ends = _bracket(knots, scale(min(max(value, axis[0]), axis[-1])))
            corners = [
                ((*key, axis[index]), weight * share)
                for key, weight in corners
                for index, share in ends
                if share
            ]
        return [(self._class(key), weight) for key, weight in corners]

    def _class(self, key: Row) -> tuple[tuple[Row, ...], tuple[Row, ...]]:
        curves = self.classes.get(key)
        if curves is None:
            waits, slowdowns = self.rows[row_key(*key)]
            curves = self.classes[key] = (_parsed(waits), _parsed(slowdowns))
        return curves


def row_key(variability: float, slots: float, slope: float, prefill: float) -> str:
    """Return the name of a row in the file."""
    return f"cv {variability:g} slots {slots:g} slope {slope:g} prefill {prefill:g}"


@cache
def table() -> Table:
    """Return the table that is shipped with this package."""
    return parse(packaged_yaml("tangram.capacity", "queueing.yaml"))


def parse(document: Mapping[str, Any]) -> Table:
    """Build the table from the document."""
    axes = document["axes"]
    rows = {key: (row["wait"], row["slowdown"]) for key, row in document["rows"].items()}
    names = ("variability", "slots", "slope", "prefill")
    return Table(tuple(axes["utilisation"]), tuple(tuple(axes[name]) for name in names), rows)


def _parsed(text: str) -> tuple[Row, ...]:
    """Return the rows of a text: utilisations divided by commas, columns by spaces."""
    return tuple(tuple(float(number) for number in row.split()) for row in text.split(","))


def _odds(utilisation: float) -> float:
    return utilisation / (1 - utilisation)


@cache
def _from_zero(loads: Row) -> Row:
    return (0.0, *loads)


@cache
def _odds_of(loads: Row) -> Row:
    return tuple(_odds(load) for load in _from_zero(loads))


def _bracket(knots: Sequence[float], value: float) -> tuple[tuple[int, float], tuple[int, float]]:
    """Return the two knots around a value inside of them, with their shares."""
    right = min(max(1, bisect_right(knots, value)), len(knots) - 1)
    share = (value - knots[right - 1]) / (knots[right] - knots[right - 1])
    return (right - 1, 1 - share), (right, share)
