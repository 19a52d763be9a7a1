"""A tenant beside a hostile one: what it keeps of its objectives, over what it has alone on its share of the fleet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.routing.admitted import AdmittedRun, serve_admitted
from benchmarks.routing.fleet import TPOT_OBJECTIVE_S, TenantRequest, engines_of
from tangram.capacity.load.traffic import open_traffic
from tangram.routing.tenants import TenantPolicy

TTFT_OBJECTIVE_S, DEADLINE_S = 0.5, 2.0
FLEET, SHARE = ("h100",) * 4, ("h100",) * 2
HONEST, HOSTILE = "honest", "hostile"
# (requests/s, prompt tokens, answer tokens): each more than the whole fleet serves, but the last.
ATTACKS = {
    "a flood": (300.0, 1000, 250),
    "long prompts": (20.0, 30_000, 50),
    "long answers": (40.0, 200, 4000),
    "tiny requests": (800.0, 50, 20),
}


@dataclass(frozen=True)
class TenantRow:
    """Attainments of the honest tenant, from 0 to 1."""

    attack: str
    alone: float
    attacked: float
    refused: int  # of its requests
    hostile_served: int
    hostile_refused: int


def honest_traffic(seconds: float, rate: float = 40.0, seed: int = 1) -> list[TenantRequest]:
    """Return requests that half of the fleet serves within their objectives."""
    sent = open_traffic(round(seconds * rate), rate, 1000, 250, 1.0, seed, 60_000)
    return [TenantRequest(request, HONEST) for request in sent]


def attacked(attack: str, seconds: float, policies: Mapping[str, TenantPolicy] | None = None) -> TenantRow:
    """Simulate the honest tenant alone on its share, and both on the fleet."""
    honest = honest_traffic(seconds)
    rate, prompt, answer = ATTACKS[attack]
    sent = open_traffic(round(seconds * rate), rate, prompt, answer, 1.0, 9, 60_000)
    both = [*honest, *(TenantRequest(request, HOSTILE) for request in sent)]
    both.sort(key=lambda request: request.sent.arrival_s)
    alone = serve_admitted(engines_of(SHARE), honest, {}, DEADLINE_S)
    beside = serve_admitted(engines_of(FLEET), both, policies or {}, DEADLINE_S)
    refused = beside.refused.keys() | beside.late
    hostile = {number for number, request in enumerate(both) if request.tenant == HOSTILE}
    return TenantRow(
        attack,
        _attainment(alone, honest),
        _attainment(beside, both),
        len(refused - hostile),
        len(hostile - refused),
        len(hostile & refused),
    )


def markdown(rows: list[TenantRow]) -> str:
    """Return a table."""
    lines = [
        "| beside it | alone on its share | attacked | of the hostile requests served |",
        "| --- | ---: | ---: | ---: |",
    ]
    for row in rows:
        share = row.hostile_served / (row.hostile_served + row.hostile_refused)
        lines.append(f"| {row.attack} | {row.alone:.1%} | {row.attacked:.1%} | {share:.0%} |")
    return "\n".join(lines)


def _attainment(run: AdmittedRun, requests: list[TenantRequest]) -> float:
    return run.attainment(requests, HONEST, TTFT_OBJECTIVE_S, TPOT_OBJECTIVE_S)
