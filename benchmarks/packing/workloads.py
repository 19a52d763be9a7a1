"""LLMDeployments over real models and objectives, sized with the product's own catalog and sizing."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from tangram.capacity.sizing import ServingShape
from tangram.catalog import gpu
from tangram.eligibility.shapes.serving_shapes import AssessedShapes
from tangram.packing import Demand, GPUState, Problem
from tangram.plan.fleet_input.documents.llm_deployment import read_llm_deployment
from tangram.plan.offers.fleet_shapes import replicas
from tangram.plan.place.best.demands import demand, running_replicas, size_all
from tangram.plan.place.best.replica_bounds import ReplicaBounds

# Model, requests' tokens in and out, objectives (P90, ms; None: not asked).
SMALL = (
    ("Qwen2.5-0.5B", 512, 64, 300, 20),
    ("Qwen2.5-1.5B", 1024, 128, 500, 30),
    ("Llama-3.2-1B", 768, 128, 400, 25),
    ("Llama-3.2-3B", 1024, 256, 600, 30),
    ("Qwen3-4B", 1024, 256, 800, 40),
    ("Phi-3-mini", 512, 256, 600, 40),
    ("Qwen2.5-7B", 1024, 256, 1000, 50),
    ("Llama-3.1-8B", 1024, 256, 800, 40),
    ("Mistral-7B-v0.3", 2048, 128, 1500, 60),
    ("Qwen3-8B", 512, 512, None, 50),
)
TINY = SMALL[:3]
LARGE = (
    ("Gemma-3-12B", 1024, 256, 1000, 50),
    ("Qwen2.5-14B", 1024, 256, 1500, 60),
    ("Mistral-Small-24B", 1024, 256, 1500, 60),
    ("Qwen3-30B-A3B", 1024, 256, 1500, 60),
    ("Qwen3-32B", 1024, 256, 2000, 70),
    ("gpt-oss-20b", 1024, 512, 1000, 40),
    ("gpt-oss-120b", 1024, 512, 2000, 60),
    ("Llama-3.1-70B", 1024, 256, 2000, 80),
    ("Llama-3.3-70B", 2048, 256, 3000, 100),
)
LENGTH = 8192  # tokens, longest request


@dataclass(frozen=True, slots=True)
class Nodes:
    """Nodes of one kind."""

    sku: str
    count: int
    size: int  # GPUs


def fleet(nodes: Sequence[Nodes]) -> tuple[GPUState, ...]:
    """Empty GPUs; those that MIG can cut may be cut or left whole."""
    return tuple(
        GPUState(
            f"{kind.sku}-{node:04}-{number}",
            f"{kind.sku}-{node:04}",
            kind.sku,
            convertible=_can_be_cut(kind.sku),
        )
        for kind in sorted(nodes, key=lambda n: n.sku)
        for node in range(kind.count)
        for number in range(kind.size)
    )


def _can_be_cut(sku: str) -> bool:
    facts = gpu(sku)
    return facts is not None and facts.mig_key is not None


def prices(skus: Sequence[str]) -> dict[str, float]:
    found = {sku: facts.price_per_hour for sku in skus if (facts := gpu(sku))}
    return {sku: price for sku, price in found.items() if price is not None}


@cache
def menu(
    model: tuple[str, int, int, int | None, int | None], skus: tuple[str, ...], mig: str = "Allowed"
) -> AssessedShapes:
    """Every shape that serves a model within its objectives."""
    name, inputs, outputs, ttft, tpot = model
    objectives = {
        metric: {"percentile": 90, "milliseconds": ms}
        for metric, ms in (("ttft", ttft), ("tpot", tpot))
        if ms is not None
    }
    document = {
        "apiVersion": "tangram.dev/v1alpha1",
        "kind": "LLMDeployment",
        "metadata": {"name": name.lower().replace(".", "-")},
        "spec": {
            "model": {"uri": f"pvc://models/{name}"},
            "engine": {"maxModelLen": LENGTH},
            "objectives": objectives,
            "traffic": {
                "requestsPerSecond": 1,
                "inputTokens": {"mean": inputs},
                "outputTokens": {"mean": outputs},
            },
            "placement": {"mig": mig},
        },
    }
    asked = read_llm_deployment(document, "benchmark", {})
    return size_all([asked], frozenset(skus), prices(skus))[asked.id]


def deployment(number: int, each: AssessedShapes, rps: float) -> AssessedShapes:
    """The same model under another name, with `rps` requests per second."""
    asked = replace(
        each.requirements, intent=replace(each.requirements.intent, name=f"d{number:03}"), rps=rps
    )
    offers = sorted(each.serving, key=lambda o: (replicas(asked, o) * o.price_per_hour, o.key))
    return replace(each, requirements=asked, serving=tuple(offers))


def demands(deployments: Sequence[AssessedShapes], fleet_now: Problem) -> tuple[Demand, ...]:
    """As the product turns LLMDeployments into demands."""
    rooms = ReplicaBounds(fleet_now, [each.requirements.id for each in deployments])
    running = running_replicas(fleet_now)
    found = (demand(each, rooms, running) for each in deployments)
    return tuple(sorted(found, key=lambda each: each.id))


def cheapest_rate(each: AssessedShapes) -> ServingShape:
    """The offer with the least dollars per request."""
    return min(each.serving, key=lambda o: (o.price_per_hour / o.rate, o.key))


def draw(
    rng: random.Random,
    models: Sequence[tuple[str, int, int, int | None, int | None]],
    skus: tuple[str, ...],
    count: int,
    spend: Mapping[str, float],
) -> list[AssessedShapes]:
    """`count` deployments whose cheapest shapes would cost log-uniformly between spend's `low` and `high` USD/h."""
    found: list[AssessedShapes] = []
    while len(found) < count:
        each = menu(rng.choice(models), skus)
        if each.serving:
            dollars = spend["low"] * (spend["high"] / spend["low"]) ** rng.random()
            offer = cheapest_rate(each)
            found.append(deployment(len(found), each, dollars / offer.price_per_hour * offer.rate))
    return found
