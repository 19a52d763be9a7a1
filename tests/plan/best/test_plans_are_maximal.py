"""No plan leaves a replica out that would serve more on GPUs that are idle; what plans claim of room is true.

Judged by trying every place for one more replica, with nothing of the solver.
"""

import random
from collections import Counter

import pytest

from tangram.packing import GPUState, board
from tangram.plan.fleet_input.documents.fleet_input import FleetInput
from tangram.plan.fleet_input.documents.llm_deployment import read_llm_deployment
from tangram.plan.place.best.pack import pack
from tangram.plan.place.best.packing_problem import fleet_problem
from tangram.plan.result.plan_document import plan_document

SKUS = ("A30", "H100-80GB-SXM", "L4")
RATES = (2.0, 6.0, 15.0, 40.0, 90.0)


def document(rng, number):
    scaling = {"minReplicas": rng.choice((1, 1, 2, 4)), "maxReplicas": rng.choice((4, 20, 200))}
    placement = {"budgetPerHour": f"{rng.choice((1.0, 3.0, 9.0))}"} if rng.random() < 0.25 else {}
    if rng.random() < 0.2:
        placement["spread"] = {"node": "0.5"}
    spec = {
        "model": {"uri": "pvc://m/llama-3.1-8b"},
        "engine": {"maxModelLen": 8192, "precision": rng.choice(("Any", "AsStored"))},
        "objectives": {"ttft": {"milliseconds": 600}, "tpot": {"milliseconds": 50}},
        "traffic": {
            "requestsPerSecond": f"{rng.choice(RATES)}",
            "inputTokens": {"mean": 1024},
            "outputTokens": {"mean": 256},
        },
        "scaling": scaling,
        "placement": placement,
        "priorityClassName": rng.choice(("tangram-high", "tangram-standard")),
    }
    return {"kind": "LLMDeployment", "metadata": {"name": f"m{number}"}, "spec": spec}


def fleet(seed):
    rng = random.Random(seed)
    gpus = []
    for number in range(rng.randint(1, 6)):
        sku = rng.choice(SKUS)
        gpus.append(GPUState(f"g{number}", f"{sku}-{number // 2}", sku, convertible=board(sku) is not None))
    asked = tuple(read_llm_deployment(document(rng, n), "test", {}) for n in range(rng.randint(1, 4)))
    return FleetInput(gpus=tuple(gpus), deployments=asked)


def has_room(plan, shape):
    """Whether one more replica of a shape could stand on the GPUs, all that stands there kept."""
    idle = Counter(gpu["node"] for gpu in plan["gpus"] if gpu["sku"] == shape.sku and not gpu["instances"])
    if shape.profile == "gpu":
        return any(count >= shape.gpus for count in idle.values())
    cut = board(shape.sku)
    masks = {(o.profile, o.start): o for o in cut.options}
    for gpu in plan["gpus"]:
        if gpu["sku"] != shape.sku or any(i["profile"] == "gpu" for i in gpu["instances"]):
            continue
        there = [masks[i["profile"], i["start"]] for i in gpu["instances"]]
        if any(legal(cut, [*there, o]) for o in cut.options if o.profile == shape.profile):
            return True
    return False


def legal(cut, options):
    used = sum(o.mask for o in options)
    apart = all(not a.mask & b.mask for n, a in enumerate(options) for b in options[n + 1 :])
    return apart and used == used & (2**16 - 1) and sum(o.compute for o in options) <= cut.compute_slices


def spread_allows(plan, name, share, count):
    """Whether some node is left on which one more replica would not be too many of `count`."""
    on = Counter(g["node"] for g in plan["gpus"] for i in g["instances"] if i.get("owner") == name)
    most = max(1, int(share * count + 1e-9))
    return any(on[g["node"]] < most for g in plan["gpus"])


def more(plan, each, choice):
    """The shapes of which one more replica would serve more, and has room."""
    who, counts = each.requirements, {part.shape: part.count for part in choice.parts}
    rates = {shape.key: shape.rate for shape in each.serving}
    prices = {shape.key: shape.price_per_hour for shape in each.serving}
    total, served = sum(counts.values()), sum(rates[s] * n for s, n in counts.items())
    price = sum(prices[s] * n for s, n in counts.items())

    def unmet(replicas, rate):
        return max(0.0, 1 - rate / who.rps, 1 - replicas / who.least)

    now = unmet(total, served)
    for shape in each.serving:
        key = shape.key
        if unmet(total + 1, served + shape.rate) > now - 1e-5 or total >= (who.most or total + 1):
            continue
        if who.intent.budget_per_hour is not None and price + prices[key] > who.intent.budget_per_hour + 1e-9:
            continue
        if not spread_allows(plan, who.id, who.intent.spread.node, total + 1):
            continue
        if has_room(plan, key):
            yield str(key)


def planned(given):
    asked = fleet_problem(given)
    packing = pack(asked)
    return asked, packing, plan_document(asked, packing)


@pytest.mark.parametrize("seed", range(24))
def test_no_replica_that_would_serve_more_is_left_out_and_reasons_are_true(seed):
    given = fleet(seed)

    asked, packing, plan = planned(given)

    for choice in packing.choices:
        if choice.unmet > 0:
            assert list(more(plan, asked.assessed[choice.demand], choice)) == []
    for item in plan["unmet"]:
        if "the whole fleet has no room" in item["reason"]:
            alone = tuple(each for each in given.deployments if each.intent.name == item["name"])
            assert planned(FleetInput(gpus=given.gpus, deployments=alone))[1].unmet
