"""The whole prediction of a row, as `tangram predict` makes it: step times in the closed loop, bursts included."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from benchmarks.calibrate.fit import Fit, fit
from benchmarks.calibrate.points import Column, Points
from tangram.capacity.accuracy.points import Point
from tangram.capacity.accuracy.points import points as read
from tangram.capacity.accuracy.score import predict
from tangram.capacity.steps.calibration import Basis, Calibrated
from tangram.capacity.steps.step_model import Coefficients
from tangram.catalog import known_model

BURSTS = np.linspace(0.0, 1.0, 51)
BURST_PRIOR = 10  # rows' worth of belief that a version's share is its engine's
MANY = 20  # rows that tell a version's share by themselves
_NAMES = {field.name for field in fields(Coefficients)}


@dataclass(frozen=True)
class Times:
    """TTFT and TPOT of rows without bursts and in bursts alone; what a share of bursts gives lies between."""

    steady_ttft: Column
    burst_ttft: Column
    steady_tpot: Column
    burst_tpot: Column

    def ttft(self, burst: Column | float, request_s: float) -> Column:
        mean: Column = (1 - burst) * self.steady_ttft + burst * self.burst_ttft + request_s
        return mean

    def tpot(self, burst: Column | float) -> Column:
        mean: Column = (1 - burst) * self.steady_tpot + burst * self.burst_tpot
        return mean

    def pick(self, mask: Column) -> Times:
        return Times(
            self.steady_ttft[mask], self.burst_ttft[mask], self.steady_tpot[mask], self.burst_tpot[mask]
        )


def points_of(p: Points) -> list[Point]:
    return list(read(p.rows))


def times(p: Points, found: Fit) -> Times:
    """Predict every row twice: without bursts, and in bursts alone."""
    rows = []
    for point in points_of(p):
        label = f"{point.engine}|{point.version}"
        values = {name: value for name, value in found.of(point.engine, label).items() if name in _NAMES}
        steady = Calibrated(Coefficients(**values), Basis.VERSION, "", 0, None, None, unverified=False)
        model = known_model(point.model)
        if model is None:
            raise ValueError(point.model)
        one, other = (predict(point, model, replace(steady, burst=share)) for share in (0.0, 1.0))
        rows.append((one.ttft_s, other.ttft_s, one.tpot_s, other.tpot_s))
    return Times(*(np.array(column) for column in zip(*rows, strict=True)))


@dataclass(frozen=True)
class Bursts:
    """Shares of requests in a burst: of all, by engine, by "engine|version"; seconds per request outside steps."""

    common: float
    engines: dict[str, float]
    versions: dict[str, float]
    request_s: float

    def of(self, engine: str, version: str) -> float:
        return self.versions.get(version, self.engines.get(engine, self.common))

    def column(self, p: Points) -> Column:
        pairs = zip(p.labels["engine"], p.labels["version"], strict=True)
        return np.array([self.of(str(engine), str(version)) for engine, version in pairs])


def fit_bursts(p: Points, t: Times, request_s: float | None = None) -> Bursts:
    """The shares that explain TTFT and TPOT best (mean absolute logarithm), engines and versions shrunk."""
    if request_s is None:
        tried = [fit_bursts(p, t, seconds) for seconds in (0.0, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05)]
        return min(tried, key=lambda each: float(np.median(_ttft_error(p, t, each))))
    costs = np.array([_cost(p, t, share, request_s) for share in BURSTS])  # by share and row
    dense = p.labels["kind"] == "dense"
    common = _best(costs[:, dense], np.zeros(len(BURSTS)))
    engines, versions = {}, {}
    for engine in sorted(set(p.labels["engine"])):
        told = (p.labels["engine"] == engine) & (p.labels["told"] == "yes")
        names = sorted(set(p.labels["version"][told]))
        of = {str(name): costs[:, p.labels["version"] == name] for name in names}
        # The mean of versions, not of rows: the next version is as likely to be like any of them.
        alone = [_best(cost, np.zeros(len(BURSTS))) for cost in of.values() if cost.shape[1] >= MANY]
        engines[str(engine)] = round(float(np.mean(alone)), 2) if alone else common
        near = BURST_PRIOR * np.abs(BURSTS - engines[str(engine)])
        versions |= {name: _best(cost, near) for name, cost in of.items()}
    return Bursts(common, engines, versions, request_s)


def _cost(p: Points, t: Times, share: float, request_s: float) -> Column:
    ttft = np.abs(np.log(t.ttft(share, request_s) / p["ttft"]))
    cost: Column = np.minimum(ttft, 1.0) + np.abs(np.log(t.tpot(share) / p["tpot"]))
    return cost


def _best(costs: Column, prior: Column) -> float:
    return round(float(BURSTS[np.argmin(costs.sum(axis=1) + prior)]), 2)


def _ttft_error(p: Points, t: Times, bursts: Bursts) -> Column:
    error: Column = np.abs(t.ttft(bursts.column(p), bursts.request_s) / p["ttft"] - 1)
    return error


def predictions(p: Points, t: Times, bursts: Bursts) -> tuple[Column, Column]:
    """TTFT and TPOT in seconds."""
    share = bursts.column(p)
    return t.ttft(share, bursts.request_s), t.tpot(share)


def hold_out(p: Points, label: str, start: Fit, t: Times, request_s: float) -> tuple[Column, Column]:
    """TTFT and TPOT of every row by a fit, of steps and of bursts, that has not seen the rows of its `label`."""
    ttft, tpot = np.full(len(p), np.nan), np.full(len(p), np.nan)
    for value in sorted(set(p.labels[label])):
        mask = p.labels[label] == value
        seen = p.take(~mask)
        bursts = fit_bursts(seen, t.pick(~mask), request_s)
        rows = p.take(mask)
        ttft[mask], tpot[mask] = predictions(rows, times(rows, fit(seen, start)), bursts)
    return ttft, tpot
