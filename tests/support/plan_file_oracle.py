"""What a plan's JSON says, judged by the documents that it was made from, without the planner or the packer.

`problem_of` reads documents as docs/packing.md has them, and `packing_of` the layouts and figures of the
JSON; `packing_agreement` and `packing_optimum` then compare the two. What one replica carries is sized by
`tangram.capacity`, which knows nothing of plans; prices and NVLink domains are those of `tangram gpus`.
"""

import random
import re
from collections import Counter
from functools import cache
from types import SimpleNamespace

from tangram.capacity.sizing import SizingRequest, size
from tangram.capacity.sizing.candidate_shapes import TENSOR_PARALLEL, precisions_on
from tangram.catalog import gpu as catalog_gpu
from tangram.catalog import known_model
from tangram.fleet import Shape
from tangram.packing import (
    Demand,
    GPUState,
    GrowablePool,
    Instance,
    Offer,
    Problem,
    Spread,
    slice_request,
)
from tangram.packing.transition import Step

from .oracle import BOARDS, FULL
from .packing_agreement import disagreements, worse
from .packing_optimum import optimum
from .packing_simulator import Refused, SimulatedFleet
from .plan_files import SLICES, documents

CLASSES = {"tangram-low": 0, "tangram-standard": 1000, "tangram-high": 10_000}
MOVE_SHARE = 1e-3  # of its GPU's price per hour: what moving an instance without an LLMDeployment costs
UNLOADED = 1e-3  # requests per second
SECONDS = 2  # deterministic, of each stage of the optimiser: without proof its bound counts


# ---- documents


def identity(document):
    """How a plan names an LLMDeployment or a SliceRequest."""
    meta = document["metadata"]
    outside = document["kind"] == "LLMDeployment" and meta.get("namespace", "default") != "default"
    return f"{meta['namespace']}/{meta['name']}" if outside else meta["name"]


def rates_of(document, skus):
    """{(SKU, profile, tensor parallelism): requests per second of one replica} of an LLMDeployment."""
    spec = document["spec"]
    placement, objectives = spec.get("placement", {}), spec.get("objectives", {})
    traffic, engine = spec.get("traffic", {}), spec.get("engine", {})
    allowed, denied = placement.get("allowedSKUs", ()), placement.get("deniedSKUs", ())
    found = {}
    for sku in skus:
        if sku in denied or (allowed and sku not in allowed):
            continue
        found |= _sized(
            spec["model"]["uri"].rpartition("/")[2],
            sku,
            engine.get("precision", "AsStored"),
            engine.get("maxModelLen"),
            engine.get("maxRunningRequests", 64),
            objectives.get("ttft", {}).get("milliseconds"),
            objectives.get("tpot", {}).get("milliseconds"),
            max((each["percentile"] for each in objectives.values()), default=90),
            traffic.get("inputTokens", {}).get("mean", 1024),
            traffic.get("outputTokens", {}).get("mean", 256),
        )
    mig, sizes = placement.get("mig", "Allowed"), placement.get("tensorParallel") or TENSOR_PARALLEL
    return {
        (sku, profile, size): rate
        for (sku, profile, size), rate in found.items()
        if size in sizes
        and (mig != "Required" or profile != FULL)
        and (mig != "Forbidden" or profile == FULL)
    }


@cache
def _sized(model, sku, form, longest, running, ttft, tpot, percentile, prompt, answer):
    """All shapes of one GPU model: of the formats on one shape the fastest counts."""
    architecture, board = known_model(model), catalog_gpu(sku)
    formats = {
        "Any": precisions_on(architecture, board),
        "AsStored": (architecture.precision,),
    }.get(form, (form,))
    longest = min(architecture.max_position_embeddings, longest or architecture.max_position_embeddings)
    request = SizingRequest(
        prompt,
        answer,
        UNLOADED,
        ttft,
        tpot,
        percentile,
        max_model_len=longest,
        max_running=running,
    )
    hardware = [(FULL, size) for size in TENSOR_PARALLEL] + [(name, 1) for name in BOARDS[sku].profiles]
    shapes = [Shape(sku, profile, size, form) for profile, size in hardware for form in formats]
    found = {}
    for row in size(architecture, request, among=shapes).rows:
        key = (sku, row.shape.profile, row.shape.tensor_parallel)
        found[key] = max(found.get(key, 0), row.max_rate)
    return found


def problem_of(documents):
    """The packing problem that documents state."""
    return _Reading(documents).problem()


_ANY = 8  # GPUs of a node may be those of a gang, unless an inventory says otherwise


class _Reading:
    def __init__(self, documents):
        self.specs = [d["spec"] for d in documents if d["kind"] == "Inventory"]
        self.inventory = {key: value for spec in self.specs for key, value in spec.items()}
        self.pools = {d["metadata"]["name"]: d["spec"] for d in documents if d["kind"] == "GPUPool"}
        self.models = [d for d in documents if d["kind"] == "LLMDeployment"]
        self.requests = [d for d in documents if d["kind"] == "SliceRequest"]
        self.classes = CLASSES | {
            d["metadata"]["name"]: d["value"] for d in documents if d["kind"] == "PriorityClass"
        }
        self.gpus = [gpu for spec in self.specs for gpu in spec["gpus"]]
        self.paused = {identity(d) for d in self.models if d["spec"].get("paused")}
        self.off = {identity(d) for d in self.models if d["spec"].get("replicas") == 0} - self.paused
        self.names = {identity(d) for d in self.models}

    def problem(self):
        """Everything sorted, as a problem wants it."""
        growable = tuple(filter(None, (self._growable(*each) for each in sorted(self.pools.items()))))
        gpus = tuple(sorted((self._gpu(each) for each in self.gpus), key=lambda gpu: gpu.id))
        skus = sorted({gpu.sku for gpu in gpus} | {pool.sku for pool in growable})
        listed = dict(self.inventory.get("prices", {}))
        hourly = self._hourly(gpus, growable, listed)
        there = self._slices_there(gpus, growable)
        demands = [
            self._model(d, skus, hourly, there)
            for d in self.models
            if identity(d) not in self.paused | self.off
        ]
        demands += [self._request(d) for d in self.requests]
        budgets = [
            (name, pool["disruptionBudget"])
            for name, pool in sorted(self.pools.items())
            if "disruptionBudget" in pool
        ]
        return Problem(
            gpus,
            tuple(sorted(demands, key=lambda each: each.id)),
            tuple(sorted(({sku: _usual_price(sku) for sku in skus} | listed).items())),
            growable=growable,
            move_budget=self.inventory.get("moveBudget"),
            horizon_h=self.inventory.get("horizonHours", 1.0),
            move_budgets=tuple(budgets),
        )

    def _slices_there(self, gpus, growable):
        """Slices that exist, and of GPUs in MIG mode the one that is all of the board: those count, too."""
        cut = [gpu for gpu in gpus if gpu.mig_enabled]
        found = {(gpu.sku, i.profile) for gpu in cut for i in gpu.instances}
        for sku in {gpu.sku for gpu in cut} | {pool.sku for pool in growable if pool.mig_enabled}:
            found |= {(sku, name) for name in BOARDS[sku].profiles if BOARDS[sku].share(name) == 1}
        return found

    def _hourly(self, gpus, growable, listed):
        """Of a GPU model, by which slices are priced: as listed, else the cheapest of the fleet's."""
        found = {}
        priced = [(gpu.sku, gpu.price_per_hour) for gpu in gpus]
        for sku, price in [*priced, *((pool.sku, pool.price_per_gpu_hour) for pool in growable)]:
            known = _usual_price(sku) if price is None else price
            found[sku] = min(known, found.get(sku, known))
        return found | listed

    def _gpu(self, gpu):
        sku, held = gpu["sku"], [self._instance(gpu, i) for i in gpu.get("instances", ())]
        held = [each for each in held if each is not None]
        pool, cuttable = self.pools.get(gpu.get("pool"), {}), gpu.get("cuttable", True)
        policy = pool.get("migPolicy", "IdleOnly") if gpu.get("pool") in self.pools else "Full"
        busy = any(i.get("owner") for i in gpu.get("instances", ()))
        told = gpu.get("migEnabled")
        slices = any(i["profile"] != FULL for i in gpu.get("instances", ()))
        in_mig = slices if told is None else told
        backends = {"NVML": "nvml", "MIGManager": "mig-manager", None: gpu.get("backend", "nvml")}
        backend = backends[pool.get("backend")]
        in_use = policy == "IdleOnly" and busy  # NVML may cut what is idle of a GPU in MIG mode
        frozen = policy == "Ignore" or (in_use and not (in_mig and backend == "nvml"))
        if frozen or in_use:
            held = [each if each.owner is None else _still(each) for each in held]
        price = gpu.get("pricePerGPUHour", pool.get("pricePerGPUHour"))
        return GPUState(
            gpu["id"],
            gpu["node"],
            sku,
            gpu.get("zone", ""),
            gpu.get("pool", ""),
            cuttable and not frozen,
            in_mig,
            bool(
                told is None and not gpu.get("instances") and cuttable and BOARDS[sku].profiles and not frozen
            ),
            backend,
            gpu.get("nvlinkGPUs", _ANY),
            None if price is None else float(price),
            tuple(sorted(held, key=lambda each: each.start)),
        )

    def _instance(self, gpu, instance):
        owner = instance.get("owner")
        if owner in self.off:
            if instance["profile"] == FULL:
                return None
            owner = None
        cost = instance.get("moveCost")
        if owner is not None and owner not in self.names and cost is None:
            price = gpu.get("pricePerGPUHour", self.pools.get(gpu.get("pool"), {}).get("pricePerGPUHour"))
            price = (
                self.inventory.get("prices", {}).get(gpu["sku"], _usual_price(gpu["sku"]))
                if price is None
                else price
            )
            cost = self.inventory.get("moveCost", float(price) * MOVE_SHARE)
        movable = instance.get("movable", True) and owner not in self.paused
        return Instance(instance["profile"], instance["start"], owner, movable, cost, instance.get("gang"))

    def _growable(self, name, pool):
        mine = [gpu for gpu in self.gpus if gpu.get("pool") == name]
        nodes = {gpu["node"] for gpu in mine}
        more = pool.get("nodes", {}).get("max", 0) - len(nodes)
        if more <= 0:
            return None
        sku = pool.get("sku") or mine[0]["sku"]
        price = pool.get("pricePerGPUHour", self.inventory.get("prices", {}).get(sku, _usual_price(sku)))
        size = len(mine) // len(nodes) if nodes else pool["nodes"].get("gpusPerNode", 8)
        mig = pool["nodes"].get("migEnabled", False)
        return GrowablePool(name, sku, size, more, float(price), mig, pool.get("zone", ""), _ANY)

    def _model(self, document, skus, hourly, there):
        spec = document["spec"]
        placement, scaling = spec.get("placement", {}), spec.get("scaling", {})
        offers = [
            Offer(
                *shape,
                rate,
                hourly[shape[0]] * (shape[2] if shape[1] == FULL else BOARDS[shape[0]].share(shape[1])),
            )
            for shape, rate in rates_of(document, skus).items()
            if rate > 0 and (_is_usual(*shape[:2]) or shape[:2] in there)
        ]
        rate, least, most = (
            spec.get("traffic", {}).get("requestsPerSecond"),
            scaling.get("minReplicas", 1),
            scaling.get("maxReplicas"),
        )
        if spec.get("replicas") is not None:
            rate, least, most = None, spec["replicas"], spec["replicas"]
        elif rate is None:
            most = least if most is None else most
        spread, budget = placement.get("spread", {}), placement.get("budgetPerHour")
        return Demand(
            identity(document),
            priority=self.classes[spec.get("priorityClassName", "tangram-standard")],
            spread=Spread(float(spread.get("node", 1)), float(spread.get("zone", 1))),
            budget_per_hour=None if budget is None else float(budget),
            pools=tuple(placement.get("pools", ())),
            offers=tuple(sorted(offers)),
            rate=0.0 if rate is None else float(rate),
            min_replicas=least,
            max_replicas=most,
        )

    def _request(self, document):
        spec = document["spec"]
        more = {"sku": spec["sku"]} if "sku" in spec else {}
        return slice_request(
            document["metadata"]["name"],
            spec["profile"],
            spec["count"],
            priority=spec.get("priority", 0),
            **more,
        )


def _is_usual(sku, profile):
    """Whether `tangram size` lists a slice: none that differs in media engines alone, and no full board."""
    return profile == FULL or (BOARDS[sku].share(profile) < 1 and "+" not in profile)


def _still(instance):
    return Instance(
        instance.profile, instance.start, instance.owner, False, instance.move_cost, instance.gang
    )


@cache
def _usual_price(sku):
    return catalog_gpu(sku).price_per_hour


# ---- the plan


def packing_of(plan):
    """The packing that a plan's JSON describes, with its own figures."""
    return SimpleNamespace(
        status=plan["status"],
        objective=plan["objective"],
        bound=plan["bound"],
        gap=plan["gap"],
        cost_per_hour=plan["costPerHour"],
        idle_per_hour=plan["idlePerHour"],
        move_cost=plan["moveCost"],
        stages=[SimpleNamespace(**{"demands": 0} | each) for each in plan["stages"]],
        layouts=[_layout(each) for each in plan["gpus"]],
        choices=list(_choices(plan)),
        moves=[
            SimpleNamespace(owner=m["owner"], source=_site(m["from"]), target=_site(m["to"]), cost=m["cost"])
            for m in plan["moves"]
        ],
        unmet=[
            SimpleNamespace(demand=u["name"], priority=u["priority"], share=u["share"]) for u in plan["unmet"]
        ],
        grown=[(each["pool"], each["count"]) for each in plan["newNodes"]],
    )


def _layout(gpu):
    held = [_placed(i) for i in gpu["instances"]] + [_placed(i | {"owner": None}) for i in gpu["free"]]
    held.sort(key=lambda each: each.start)
    return SimpleNamespace(id=gpu["id"], instances=tuple(held), in_use=gpu["inUse"], recut=gpu["recut"])


def _placed(instance):
    owner, gang = instance.get("owner"), instance.get("gang")
    return SimpleNamespace(start=instance["start"], profile=instance["profile"], owner=owner, gang=gang)


def _site(site):
    return SimpleNamespace(**site)


def _choices(plan):
    """What became of each demand, as listed: of requests the parts are those that stand."""
    for each in plan["deployments"]:
        name = each["name"] if each["namespace"] == "default" else f"{each['namespace']}/{each['name']}"
        parts = [
            SimpleNamespace(
                sku=p["sku"], profile=p["profile"], tensor_parallel=p["tensorParallel"], count=p["replicas"]
            )
            for p in each["chosen"]
        ]
        yield SimpleNamespace(
            demand=name, parts=parts, unmet=each["unmet"], price_per_hour=each["costPerHour"]
        )


def steps_of(plan):
    """The steps as the simulator of a fleet takes them."""
    for step in plan["steps"]:
        layout = tuple(SimpleNamespace(**each) for each in step.get("layout", ()))
        yield Step(
            step["number"],
            step["kind"],
            step["node"],
            tuple(step.get("gpus", ())),
            step.get("profile", ""),
            step.get("start", 0),
            step.get("owner", ""),
            layout,
            step.get("migEnabled", False),
            step.get("pool", ""),
            tuple(step["after"]),
        )


# ---- what is wrong


def judged(planner, kind, seeds):
    """What is wrong with the plans of some files, and where the optimiser has better, by seed.

    A plan of slices alone is proved: nothing of a few GPUs takes the solver long.
    """
    wrong, behind = {}, {}
    for seed in seeds:
        asked = documents(kind, seed, rates_of)
        plan, best = planner.plan(*asked), optimum(problem_of(asked), SECONDS)
        lines = faults(asked, plan, best)
        if kind == SLICES and plan["status"] != "OPTIMAL":
            lines.append(f"is {plan['status']}")
        if lines:
            wrong[seed] = lines
        if line := worse(packing_of(plan), best):
            behind[seed] = line
    return wrong, behind


def faults(asked, plan, best=()):
    """What is wrong with a plan, one line each. `best`: the stages of `packing_optimum.optimum`."""
    problem, packing = problem_of(asked), packing_of(plan)
    named = {choice.demand for choice in packing.choices}
    silent = named - {demand.id for demand in problem.demands}
    lines = [
        f"{c.demand}: {c.parts} of one that is paused or off"
        for c in packing.choices
        if c.demand in silent and c.parts
    ]
    packing.choices = [c for c in packing.choices if c.demand not in silent]
    lines += _requests(problem, packing, plan)
    in_use = sum(layout.in_use for layout in packing.layouts)
    if plan["gpusInUse"] != in_use:
        lines.append(f"{in_use} GPUs are in use, listed are {plan['gpusInUse']}")
    return [
        *lines,
        *disagreements(problem, packing, best),
        *_rates(asked, plan),
        *_steps(problem, packing, plan),
    ]


def _requests(problem, packing, plan):
    """Requests tell counts only: what stands is completed into choices, so that all of them are compared."""
    listed = {each["name"]: each for each in plan["requests"]}
    asked = [demand.id for demand in problem.demands if demand.slices]
    if sorted(each["name"] for each in plan["requests"]) != asked:
        yield f"requests are {asked}, listed are {plan['requests']}"
    hourly = _Prices(problem)
    short = {u["name"]: u for u in plan["unmet"]}
    for demand in problem.demands:
        if not demand.slices:
            continue
        standing = Counter()
        sku = {g["id"]: g["sku"] for g in plan["gpus"]}
        for layout in packing.layouts:
            standing.update((sku[layout.id], i.profile, 1) for i in layout.instances if i.owner == demand.id)
        parts = [
            SimpleNamespace(sku=s, profile=p, tensor_parallel=k, count=n) for (s, p, k), n in standing.items()
        ]
        count = demand.slices[0].count
        if listed.get(demand.id, {}).get("placed") != standing.total() or listed[demand.id]["count"] != count:
            yield f"{demand.id}: {standing} stand, listed is {listed.get(demand.id)}"
        missing = count - standing.total()
        if short.get(demand.id, {}).get("count", 0) != missing:
            yield f"{demand.id}: {missing} are missing, listed is {short.get(demand.id)}"
        share = short.get(demand.id, {}).get("share", 0)
        price = sum(hourly.of(shape) * n for shape, n in standing.items())
        packing.choices.append(
            SimpleNamespace(demand=demand.id, parts=parts, unmet=share, price_per_hour=price)
        )


class _Prices:
    def __init__(self, problem):
        self.by_sku = dict(problem.prices)

    def of(self, shape):
        return self.by_sku[shape[0]] * (shape[2] if shape[1] == FULL else BOARDS[shape[0]].share(shape[1]))


def _rates(documents, plan):
    """What chosen shapes are said to carry, against their sizes."""
    models = {identity(d): d for d in documents if d["kind"] == "LLMDeployment"}
    for each in plan["deployments"]:
        name = each["name"] if each["namespace"] == "default" else f"{each['namespace']}/{each['name']}"
        for part in each["chosen"]:
            if "requestsPerSecond" not in part:
                continue
            shape = (part["sku"], part["profile"], part["tensorParallel"])
            rate = rates_of(models[name], [part["sku"]]).get(shape, 0) * part["replicas"]
            if abs(part["requestsPerSecond"] - rate) > 1e-3 * rate:
                yield f"{name}: {part} carries {rate}"


def _steps(problem, packing, plan):
    """What the fleet refuses when the steps are done one by one, in their order and in two others."""
    steps = list(steps_of(plan))
    if [step.number for step in steps] != list(range(1, len(steps) + 1)):
        yield "steps are not numbered"
        return
    stated = {gpu.id for gpu in problem.gpus if not gpu.convertible}
    for step in steps:
        if max(step.after, default=0) >= step.number:
            yield f"step {step.number} is after {step.after}"
        if step.kind == "set-mode" and not stated.isdisjoint(step.gpus):
            yield f"step {step.number} sets the MIG mode of {step.gpus}"
    now, then = Counter(_owners(problem.gpus)), Counter(_owners(packing.layouts))
    owners = {*now, *then}
    minimum = {owner: min(now[owner], then[owner]) for owner in owners}
    most = {owner: max(now[owner], then[owner]) + 1 for owner in owners}
    for order in (None, 1, 2):
        fleet = SimulatedFleet(problem, minimum, most)
        try:
            if order is None:
                fleet.run(steps)
            else:
                fleet.run_in_any_order(steps, random.Random(order))
            if "stepsMissing" not in plan:
                fleet.check_ends_as(packing)
        except Refused as refused:
            yield f"steps in order {order}: {refused}"


def _owners(gpus):
    seen = set()
    for gpu in gpus:
        for i in gpu.instances:
            if i.owner is not None and i.gang is not None:
                if (i.owner, i.gang) not in seen:
                    seen.add((i.owner, i.gang))
                    yield i.owner
            elif i.owner is not None:
                yield i.owner


def headline_faults(plan, text):
    """Where the first lines of the table contradict the JSON."""
    proved = all(
        s["proved"] for s in plan["stages"] if s["name"].startswith("unmet") or s["name"] == "dollars"
    )
    text = " ".join(text.split())
    if plan["status"] != "FALLBACK" and text.startswith("Proved best") != proved:
        yield f"{text[:60]}: stages {plan['stages']}"
    if proved and (plan["gap"] > 1e-6 or not re.search(r"gap 0\.00%", text)):
        yield f"a proof with a gap: {text}"
    if not proved and plan["bound"] > 0 and f"gap {plan['gap']:.2%}" not in text:
        yield f"the gap is {plan['gap']}: {text}"
    for stage in plan["stages"]:
        if (
            stage["name"].startswith("unmet")
            and stage["value"] - stage["bound"] > 1e-5
            and "could be served" not in text
        ):
            yield f"{stage} is not told: {text}"
