"""The scaling law with and without its forecast on a real cluster: two bursts, and how long each takes to be served.

    python -m benchmarks.autoscaling_e2e

A real control plane, kubelet and Prometheus on this machine, the tiny model on stand-ins of GPU slices, and the
windows of the end-to-end tests. To have no forecast, the series from which it knows the lengths of requests are
dropped for one LLMDeployment: the same operator then follows missed objectives and queues alone.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from e2e.autoscaled import REQUIRED, Autoscaled, ask_prometheus
from e2e.cluster import providers
from e2e.demo import install
from e2e.demo.graph import run_steps, stderr_line
from e2e.demo.stage import Stage, registry_for
from e2e.kube import Kube, instant, wait_until

FORECAST, REACTIVE = "forecast", "reactive"
LOAD = "burst"
BURSTS = 2
CLIENTS, TOKENS, BURST_S = 40, 48, 90
FALL_WITHIN_S = 400
STEP_S = 5  # between two values of a series
_LENGTHS = "vllm:request_(prompt|generation)_tokens_.*"
_DROPPED = f"""
    metric_relabel_configs:
      - source_labels: [__name__, tangram_dev_llmdeployment]
        regex: {_LENGTHS};{REACTIVE}
        action: drop
"""


@dataclass(frozen=True, slots=True)
class Burst:
    """What one burst led to."""

    law: str
    number: int
    orders: tuple[tuple[float, int], ...]  # seconds after its begin, and the replicas that were ordered
    recovered_s: float | None  # until the objective was met to the end of the burst
    missed_s: float  # seconds during which the objective was missed
    fallen_s: float | None  # from its end to one replica, before the next burst


@contextmanager
def cluster() -> Iterator[Stage]:
    """Yield a cluster of its own with everything installed, and end it."""
    provider = providers.select("auto")
    values = (install.VALUES, install.ROOT / "e2e/tests/values.yaml")
    stage = Stage(provider, registry_for(provider.name), values=values)
    try:
        run_steps(stage.steps())
        yield stage
    finally:
        provider.down(stderr_line)


def hide_lengths(kube: Kube) -> None:
    """Let Prometheus drop the lengths of requests of one LLMDeployment."""
    config = kube.get("configmap", "prometheus", "-n", "tangram-monitoring")
    text = config["data"]["prometheus.yml"].rstrip("\n") + _DROPPED
    patch = json.dumps({"data": {"prometheus.yml": text}})
    kube.kubectl("patch", "configmap", "prometheus", "-n", "tangram-monitoring", "--type=merge", "-p", patch)
    kube.kubectl("rollout", "restart", "deploy/prometheus", "-n", "tangram-monitoring")
    kube.kubectl("rollout", "status", "deploy/prometheus", "-n", "tangram-monitoring", "--timeout=90s")


def bursts(stage: Stage, law: str) -> list[Burst]:
    """Put two bursts on one LLMDeployment, each on one replica; the second finds what the first one taught."""
    chat = Autoscaled(stage.cluster(), law, slots=16, most=5)
    chat.kube.apply(json.dumps(chat.manifest()))
    chat.kube.kubectl("wait", "--for=condition=Ready", f"llmdep/{law}", "--timeout=180s", timeout=190)
    found = [burst(stage, chat, number) for number in range(1, BURSTS + 1)]
    chat.kube.kubectl("delete", "llmdep", law, "--wait", "--timeout=60s")
    return found


def burst(stage: Stage, chat: Autoscaled, number: int) -> Burst:
    kube = chat.kube
    chat.load(stage.references["silicon"], LOAD, clients=CLIENTS, tokens=TOKENS, seconds=BURST_S)
    started = wait_until(lambda: kube.get("job", LOAD)["status"].get("startTime"), 60, "the burst to begin")
    begin = instant(str(started))
    kube.kubectl("wait", "--for=condition=complete", f"job/{LOAD}", f"--timeout={2 * BURST_S}s", timeout=260)
    end, changes = datetime.now(UTC), chat.changes()  # the status keeps five
    shares = [(at, share) for at, share in attainments(chat, begin, end) if at <= BURST_S]
    stderr_line(f"{chat.name} {number}: {[(round(at), round(share, 2)) for at, share in shares]}")
    orders = [
        ((instant(change["time"]) - begin).total_seconds(), int(change["to"]))
        for change in reversed(changes)
        if begin <= instant(change["time"]) <= end
    ]
    missed_s = STEP_S * sum(share < REQUIRED for _, share in shares)
    fallen_s = None
    if number < BURSTS:
        wait_until(lambda: chat.replicas() == (1, 1), FALL_WITHIN_S, "one replica again", every=1)
        fallen_s = (datetime.now(UTC) - end).total_seconds()
    return Burst(chat.name, number, tuple(orders), recovery_s(shares), missed_s, fallen_s)


def attainments(chat: Autoscaled, begin: datetime, end: datetime) -> list[tuple[float, float]]:
    """Return the attainment every `STEP_S` seconds from `begin` on, by the seconds since then."""
    answer = ask_prometheus(
        chat.kube,
        "query_range",
        query=chat.attainment_query,
        start=str(begin.timestamp()),
        end=str(end.timestamp()),
        step=str(STEP_S),
    )
    points = answer[0]["values"] if answer else []
    shares = [(float(at) - begin.timestamp(), float(share)) for at, share in points]
    return [(at, share) for at, share in shares if not math.isnan(share)]


def recovery_s(shares: Sequence[tuple[float, float]]) -> float | None:
    """Return after how many seconds the objective was met again and to the end; None if it is missed at the
    end. 0: it was never missed."""
    missed = [at for at, share in shares if share < REQUIRED]
    later = [at for at, _ in shares if not missed or at > missed[-1]]
    if not later:
        return None
    return later[0] if missed else 0.0


def main() -> None:
    with cluster() as stage:
        hide_lengths(stage.cluster())
        found = [one for law in (FORECAST, REACTIVE) for one in bursts(stage, law)]
    print(f"{os.cpu_count()} cores, load average {os.getloadavg()[1]:.1f} at the end\n")
    print(
        "| law | burst | orders (s after its begin: replicas) | objective met again | missed for | one replica after |"
    )
    print("| --- | ---: | --- | ---: | ---: | ---: |")
    for one in found:
        orders = ", ".join(f"{at:.0f}: {to}" for at, to in one.orders)
        recovered, fallen = (
            "-" if seconds is None else f"{seconds:.0f} s" for seconds in (one.recovered_s, one.fallen_s)
        )
        print(f"| {one.law} | {one.number} | {orders} | {recovered} | {one.missed_s:.0f} s | {fallen} |")


if __name__ == "__main__":
    main()
