"""Random documents for `tangram plan`: fleets, pools, LLMDeployments, slice requests.

Equal seeds, equal documents. Nothing of the product is imported; layouts are legal by the published boards.
Files of the kind `slices` have SliceRequests alone, on GPUs of any board that no two of a node need share.
"""

import random

from .oracle import BOARDS, FULL
from .packing_facts import options
from .packing_problems import linked_gpus

VERSION = "tangram.dev/v1alpha1"
PRICES = {
    "A100-40GB-SXM": 1.3,
    "A100-80GB-SXM": 1.6,
    "A30": 0.7,
    "B200-180GB-SXM": 7.5,
    "H100-80GB-SXM": 3.07,
    "H100-94GB-NVL": 3.6,
    "H200-141GB-SXM": 3.9,
    "L4": 0.55,
    "L40S": 1.1,
    "RTX-PRO-6000-SERVER": 1.2,
}
MODEL_SKUS = ("A100-40GB-SXM", "A30", "H100-80GB-SXM", "H200-141GB-SXM", "L4", "L40S")  # of files with models
MODELS = {  # name -> (TTFT and TPOT objectives to choose from, ms)
    "llama-3.1-8b": ((400, 900, 2000), (25, 40, 60)),
    "qwen2.5-7b": ((400, 900, 2000), (25, 40, 80)),
    "llama-3.2-1b": ((150, 400, 1500), (8, 15, 40)),
    "qwen2.5-1.5b": ((150, 400, 1500), (8, 15, 40)),
    "gemma-2-9b": ((500, 1200), (40, 80)),
    "phi-4": ((600, 1500), (40, 80)),
    "qwen2.5-32b": ((900, 2500), (60, 120)),
    "llama-3.1-70b": ((900, 2500), (60, 120)),
}
SMALL = ("llama-3.1-8b", "qwen2.5-7b", "llama-3.2-1b", "qwen2.5-1.5b")
KINDS = (
    "plenty",
    "shortage",
    "precisions",
    "running",
    "running-short",
    "churned",
    "spread",
    "spread-running",
    "budgets",
    "pinned",
    "surplus",
    "growing",
    "growing-empty",
    "gangs",
    "mig-manager",
    "move-budgets",
    "pool-prices",
    "policies",
    "requests",
    "replicas",
    "headroom",
    "several",
)
RUNNING = (
    "running",
    "running-short",
    "churned",
    "spread-running",
    "pinned",
    "surplus",
    "move-budgets",
    "policies",
    "replicas",
)
SHORT = ("shortage", "precisions", "running-short", "growing", "pinned")
SLICES = "slices"  # none of KINDS: a plan of slices alone takes a fraction of the time


def documents(kind, seed, rates, gpus=4):
    """Documents with at most `gpus` GPUs. `rates`: LLMDeployment document, SKUs -> {shape: requests/s}.

    `several` combines several kinds and has up to two GPUs more.
    """
    rng = random.Random(f"files/{kind}/{seed}")
    if kind == SLICES:
        return _Slices(rng, gpus).documents()
    if kind == "several":
        return _Draw(rng.sample(KINDS[:-1], rng.randint(3, 6)), rng, rates, gpus + 2).documents()
    return _Draw([kind], rng, rates, gpus).documents()


def inventory_of(documents):
    """The spec of the only Inventory."""
    return next(document["spec"] for document in documents if document["kind"] == "Inventory")


def _document(kind, name, spec):
    return {"apiVersion": VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}


class _Draw:
    def __init__(self, kinds, rng, rates, most):
        self.kinds, self.rng, self.rates = {*kinds}, rng, rates
        self.skus = rng.sample(MODEL_SKUS, rng.choice((1, 1, 2, 2, 3)))
        if self.kinds & {"mig-manager", "spread", "policies", "requests"} and not self._cut():
            self.skus[0] = rng.choice([sku for sku in MODEL_SKUS if BOARDS[sku].profiles])
        self.count = 0 if "growing-empty" in self.kinds else rng.randint(1, most)
        self.load = (
            1.6
            if self.kinds & {*SHORT}
            else self._of({"plenty": 0.4, "surplus": 0.2}, rng.choice((0.5, 0.9, 1.4)))
        )
        self.prices = {sku: round(PRICES[sku] * rng.uniform(0.8, 1.2), 2) for sku in self.skus}
        self.pools = {name: self._pool(name) for name in ("p0", "p1")} if self._has_pools() else {}

    def _of(self, values, otherwise):
        """Return the value of the first kind that has one."""
        return next((value for kind, value in values.items() if kind in self.kinds), otherwise)

    def _has_pools(self):
        pooled = {"growing", "growing-empty", "pool-prices", "policies", "move-budgets", "spread-running"}
        return bool(self.kinds & pooled) or self.rng.random() < 0.2

    def _cut(self):
        return [sku for sku in self.skus if BOARDS[sku].profiles]

    def documents(self):
        rng = self.rng
        gpus = self._gpus()
        spec = {"gpus": gpus, "prices": dict(self.prices)}
        many = rng.randint(1, 3)
        models = [self._model(f"d{i}", 1 / many) for i in range(many)]
        if "requests" in self.kinds or rng.random() < 0.2:
            models = models[:1] if "requests" in self.kinds and rng.random() < 0.5 else models
            models += [self._request(f"raw{i}") for i in range(rng.randint(1, 2))]
        if self.kinds & {*RUNNING} or rng.random() < 0.35:
            self._occupy(gpus, models)
        self._terms(spec)
        written = [_document("Inventory", "fleet", spec), *models]
        written += [_document("GPUPool", name, pool) for name, pool in self.pools.items()]
        return [*written, *self._classes(models)]

    # ---- the fleet

    def _gpus(self):
        rng, gpus, node = self.rng, [], 0
        while len(gpus) < self.count:
            sku, more = rng.choice(self.skus), {}
            gangs = "gangs" in self.kinds
            size = min(rng.choice((2, 4) if gangs else (1, 1, 2, 4)), self.count + 1 - len(gpus))
            if BOARDS[sku].profiles:
                style = rng.random()
                if style < 0.4:
                    more["migEnabled"] = True
                elif style < (0.9 if gangs else 0.55):
                    more["migEnabled"] = False
                if rng.random() < (0.85 if "mig-manager" in self.kinds else 0.05):
                    more["backend"] = "mig-manager"
                    more["migEnabled"] = rng.random() < 0.85
            if self.pools:
                more["pool"] = rng.choice(sorted(self.pools))
                if self.pools[more["pool"]].get("sku", sku) != sku:  # its nodes have the SKU that it states
                    continue
            if self.kinds & {"spread", "spread-running"} or rng.random() < 0.3:
                more["zone"] = f"z{node % 2}"
            if rng.random() < (0.5 if gangs else 0.1):
                more["nvlinkGPUs"] = linked_gpus(rng, 0.4)
            for i in range(size):
                gpu = {"id": f"n{node}-{i}", "node": f"n{node}", "sku": sku} | more
                if rng.random() < 0.04:
                    gpu["cuttable"] = False
                gpus.append(gpu)
            node += 1
        return gpus

    def _pool(self, name):
        rng = self.rng
        spec = {"nodeSelector": {"pool": name}}
        if "policies" in self.kinds:
            spec["migPolicy"] = rng.choice(("Ignore", "IdleOnly", "Recommend", "Full"))
        else:
            spec["migPolicy"] = "Full"
        if self.kinds & {"move-budgets", "policies", "spread-running"} and rng.random() < 0.5:
            spec["disruptionBudget"] = rng.randint(0, 2)
        sku = rng.choice(self.skus)
        if "pool-prices" in self.kinds or self.kinds & {"growing", "growing-empty"}:
            spec["pricePerGPUHour"] = f"{PRICES[sku] * rng.uniform(0.5, 1.5):.2f}"
        if rng.random() < 0.1:
            spec["backend"] = rng.choice(("NVML", "MIGManager"))
        if self.kinds & {"growing", "growing-empty"}:
            spec["sku"] = sku
            spec["nodes"] = {"max": rng.randint(0, 3), "gpusPerNode": rng.choice((1, 2))}
            if BOARDS[sku].profiles and rng.random() < 0.7:
                spec["nodes"]["migEnabled"] = True
            if rng.random() < 0.4:
                spec["zone"] = rng.choice(("z0", "z1"))
        return spec

    def _terms(self, spec):
        rng = self.rng
        if rng.random() < 0.4:
            spec["horizonHours"] = rng.choice((0.1, 1, 8, 720))
        if "move-budgets" in self.kinds or rng.random() < 0.08:
            spec["moveBudget"] = rng.choice((0, 0, 1, 2))
        if rng.random() < 0.15:
            spec["moveCost"] = rng.choice((0, 0.05, 1))
        if "headroom" in self.kinds and self._cut():
            sku = rng.choice(self._cut())
            profile = rng.choice([name for name in BOARDS[sku].profiles if "+" not in name])
            spec["headroom"] = [{"sku": sku, "profile": profile, "count": rng.randint(1, 3)}]

    # ---- demand

    def _model(self, name, part):
        rng, kinds = self.rng, self.kinds
        model = rng.choice(
            sorted(MODELS) if kinds & {"gangs", "precisions"} else [*SMALL, rng.choice(sorted(MODELS))]
        )
        ttft, tpot = MODELS[model]
        spec = {
            "model": {"uri": f"pvc://models/{model}"},
            "engine": {"maxModelLen": 8192},
            "objectives": {
                "tpot": {"percentile": rng.choice((50, 90, 90, 99)), "milliseconds": rng.choice(tpot)}
            },
        }
        if rng.random() < 0.7:
            spec["objectives"]["ttft"] = {"percentile": 90, "milliseconds": rng.choice(ttft)}
        if rng.random() < (0.8 if "precisions" in kinds else 0.25):
            spec["engine"]["precision"] = rng.choice(("Any", "Any", "int8", "fp8"))
        if rng.random() < 0.2:
            spec["engine"]["maxRunningRequests"] = rng.choice((8, 32, 256))
        body = _document("LLMDeployment", name, spec)
        if rng.random() < 0.15:
            body["metadata"]["namespace"] = rng.choice(("default", "team"))
        placement = self._placement()
        if placement:
            spec["placement"] = placement
        self._load(body, part)
        if rng.random() < (0.6 if kinds & {"precisions", "running-short", "pinned"} else 0.2):
            spec["priorityClassName"] = rng.choice(
                ("tangram-low", "tangram-standard", "tangram-high", "urgent")
            )
        return body

    def _load(self, body, part):
        rng, spec = self.rng, body["spec"]
        lengths = rng.choice(((1024, 256), (512, 128), (3000, 150)))
        traffic = {"inputTokens": {"mean": lengths[0]}, "outputTokens": {"mean": lengths[1]}}
        spec["traffic"] = traffic
        often = 0.7 if "budgets" in self.kinds else 0.15
        scaling = {}
        if rng.random() < often:
            scaling["minReplicas"] = rng.randint(1, 4)
        if rng.random() < (0.5 if "pinned" in self.kinds else often):
            scaling["maxReplicas"] = rng.randint(scaling.get("minReplicas", 1), 6)
        if scaling:
            spec["scaling"] = scaling
        if "replicas" in self.kinds and rng.random() < 0.6:
            spec["replicas"] = rng.choice((0, 1, 2, 3))
        if "replicas" in self.kinds and rng.random() < 0.3:
            spec["paused"] = True
        best = {}
        for (sku, profile, size), rate in self.rates(body, self.skus).items():
            share = size if profile == FULL else BOARDS[sku].share(profile)
            best[sku] = max(best.get(sku, 0), rate / share)
        room = sum(best.values()) / len(best) * max(self.count, 2) if best else 1
        if rng.random() < 0.92:
            rate = max(0.01, room * part * self.load * rng.uniform(0.3, 1.7))
            traffic["requestsPerSecond"] = f"{rate:.3g}" if rate < 100 else f"{rate:.0f}"

    def _placement(self):
        rng, placement = self.rng, {}
        if rng.random() < self._of({"budgets": 0.7, "pinned": 0.4}, 0.1):
            placement["budgetPerHour"] = f"{rng.uniform(0.4, 6):.2f}"
        if self.kinds & {"spread", "spread-running"} or rng.random() < 0.08:
            placement["spread"] = {"node": rng.choice(("0.5", "0.34", "0.25", "1"))}
            if rng.random() < 0.4:
                placement["spread"]["zone"] = rng.choice(("0.5", "0.6"))
        if self.pools and rng.random() < 0.25:
            placement["pools"] = rng.sample(sorted(self.pools), rng.choice((1, 1, 2)))
        if rng.random() < 0.12:
            placement["mig"] = rng.choice(("Required", "Forbidden"))
        if rng.random() < 0.08 and placement.get("mig") != "Required":
            placement["tensorParallel"] = rng.choice(([1], [1, 2], [2, 4]))
        if len(self.skus) > 1 and rng.random() < 0.1:
            placement[rng.choice(("allowedSKUs", "deniedSKUs"))] = [rng.choice(self.skus)]
        return placement

    def _request(self, name):
        rng = self.rng
        sku = rng.choice(self._cut() or self.skus)
        plain = [profile for profile in BOARDS[sku].profiles if "+" not in profile]
        spec = {"profile": rng.choice([*plain, *plain, FULL]), "count": rng.randint(0, 5)}
        if rng.random() < 0.5:
            spec["sku"] = sku
        if rng.random() < 0.6:
            spec["priority"] = rng.choice((0, 1000, 1000, 5000))
        return _document("SliceRequest", name, spec)

    def _classes(self, models):
        if not any(model["spec"].get("priorityClassName") == "urgent" for model in models):
            return
        yield {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": "urgent", "labels": {"tangram.dev/priority-class": "true"}},
            "value": self.rng.choice((-5, 500, 1000, 2_000_000)),
            "preemptionPolicy": "Never",
        }

    # ---- running replicas

    def _occupy(self, gpus, models):
        """A legal state as earlier plans may have left it: boards filled at random, then partly emptied."""
        owners = self._owners(models)
        keep = self._of({"churned": 0.5, "running-short": 1.0}, self.rng.choice((0.7, 0.95)))
        nodes = {}
        for gpu in gpus:
            nodes.setdefault(gpu["node"], []).append(gpu)
        for alike in nodes.values():
            mig = alike[0].get("migEnabled")
            if mig is None and BOARDS[alike[0]["sku"]].profiles and self.rng.random() < 0.3:
                continue
            if mig or (mig is None and BOARDS[alike[0]["sku"]].profiles):
                for gpu in alike:
                    self._fill(gpu, owners, keep)
            else:
                self._gangs(alike, owners, keep)

    def _owners(self, models):
        """Shape -> names of owners that may run on it; sometimes a shape that does not serve the model."""
        owners = {}
        for body in models:
            name, spec = body["metadata"]["name"], body["spec"]
            if body["metadata"].get("namespace", "default") != "default":
                name = f"{body['metadata']['namespace']}/{name}"
            if body["kind"] == "LLMDeployment":
                shapes = list(self.rates(body, self.skus))
            else:
                shapes = [
                    (sku, spec["profile"], 1) for sku in ([spec["sku"]] if "sku" in spec else self.skus)
                ]
            for shape in shapes:
                owners.setdefault(shape, []).append(name)
            if body["kind"] == "LLMDeployment" and self.rng.random() < 0.1 and self._cut():
                sku = self.rng.choice(self._cut())
                owners.setdefault((sku, self.rng.choice(sorted(BOARDS[sku].profiles)), 1), []).append(name)
        return owners

    def _fill(self, gpu, owners, keep):
        rng, sku = self.rng, gpu["sku"]
        names = {p for p in BOARDS[sku].profiles if "+" not in p or rng.random() < 0.05}
        places, chosen = options(sku, names), []
        requested = [p for p in places if (sku, p[0], 1) in owners]
        rng.shuffle(places)
        rng.shuffle(requested)
        for place in [*requested, *places]:
            if rng.random() < 0.85 and not BOARDS[sku].wrong([*chosen, place]):
                chosen.append(place)
        held = [{"profile": p, "start": s} | self._owner((sku, p, 1), owners, keep) for p, s in chosen]
        if held and (rng.random() < 0.9 or gpu.get("cuttable") is False):
            gpu["instances"] = held

    def _owner(self, shape, owners, keep):
        rng = self.rng
        if rng.random() > keep:
            return {}
        named = owners.get(shape, [])
        if not named or rng.random() < 0.06:
            held = {"owner": rng.choice(("job", "notebook", "other/web"))}
            return held if rng.random() < 0.6 else held | {"movable": False}
        held = {"owner": rng.choice(named)}
        if rng.random() < self._of({"pinned": 0.4, "surplus": 0.3}, 0.08):
            held["movable"] = False
        if rng.random() < 0.06:
            held["moveCost"] = rng.choice((0.01, 0.6))
        return held

    def _gangs(self, gpus, owners, keep):
        rng, sku, i = self.rng, gpus[0]["sku"], 0
        linked = gpus[0].get("nvlinkGPUs", {"L4": 1, "L40S": 1, "A30": 2}.get(sku, 8))
        while i < len(gpus):
            legal = [k for k in (1, 2, 4) if i + k <= len(gpus) and (k <= linked or k == len(gpus))]
            size = rng.choice([k for k in legal if k == 1 or (sku, FULL, k) in owners])
            held = self._owner((sku, FULL, size), owners, keep)
            if held:
                gang = {"gang": f"{held['owner']}/{gpus[i]['id']}"} if size > 1 else {}
                for gpu in gpus[i : i + size]:
                    gpu["instances"] = [{"profile": FULL, "start": 0} | held | gang]
            i += size


class _Slices:
    """Documents of SliceRequests, and of GPUs each with a board, a backend and a MIG mode of its own."""

    def __init__(self, rng, most):
        self.rng, self.count = rng, rng.randint(1, most)
        self.skus = rng.sample(sorted(PRICES), rng.choice((1, 1, 2)))
        self.fill = rng.choice((0, 0.3, 0.6, 0.9))
        self.pinned = rng.choice((0, 0, 0.2))
        self.backends = rng.choice((["nvml"], ["nvml"], ["mig-manager"], ["nvml", "mig-manager"]))
        self.own_price, self.uncut = (0.5 * (rng.random() < 0.15), 0.6 * (rng.random() < 0.15))
        self.mode_stated = 0.6 * (rng.random() < 0.3)
        self.requests = {f"r{i}": self._request() for i in range(rng.randint(0, 6))}

    def documents(self):
        rng = self.rng
        spec = {"gpus": [self._gpu(f"g{i}") for i in range(self.count)], "prices": PRICES}
        for key, values, often in (
            ("moveCost", (0, 0.1, 0.6, 3), 0.4),
            ("moveBudget", (0, 1, 2, 3), 0.3),
            ("horizonHours", (0.1, 2, 24), 0.2),
        ):
            if rng.random() < often:
                spec[key] = rng.choice(values)
        cut = [sku for sku in self.skus if BOARDS[sku].profiles]
        if cut and rng.random() < 0.15:
            sku = rng.choice(cut)
            spec["headroom"] = [{"sku": sku, "profile": self._profile(sku), "count": rng.randint(1, 3)}]
        written = [_document("Inventory", "fleet", spec)]
        written += [_document("SliceRequest", name, wanted) for name, wanted in self.requests.items()]
        return [*written, self._pool()] if rng.random() < 0.1 else written

    def _profile(self, sku):
        names = list(BOARDS[sku].profiles)
        plain = [name for name in names if "+" not in name and "-" not in name]
        return self.rng.choice(names if self.rng.random() < 0.2 else plain)

    def _request(self):
        rng, sku = self.rng, self.rng.choice(self.skus)
        whole = not BOARDS[sku].profiles or rng.random() < 0.15
        spec = {"profile": FULL if whole else self._profile(sku)}
        spec["count"] = rng.choice((0, 1, 1, 1, 2, 2, 4, 5, 8))
        if rng.random() < 0.7:
            spec["sku"] = sku
        if rng.random() < 0.3:
            spec["priority"] = rng.choice((-1, 1, 5))
        return spec

    def _gpu(self, name):
        rng, sku = self.rng, self.rng.choice(self.skus)
        gpu, board = {"id": name, "node": f"n{rng.randint(0, 1)}", "sku": sku}, BOARDS[sku]
        if rng.random() < self.own_price:
            gpu["pricePerGPUHour"] = rng.choice((0.25, 1, 2, 5))
        held = self._instances(sku)
        if held:
            gpu["instances"] = held
        if rng.random() < self.uncut:
            gpu["cuttable"] = False
        if board.profiles:
            gpu["backend"] = rng.choice(self.backends)
            if gpu["backend"] == "mig-manager" or rng.random() < self.mode_stated:
                free = gpu["backend"] == "mig-manager" or rng.random() < 0.5  # of an empty one
                gpu["migEnabled"] = held[0]["profile"] != FULL if held else free
        return gpu

    def _instances(self, sku):
        rng, board, held = self.rng, BOARDS[sku], []
        whole = not board.profiles or rng.random() < 0.15
        for _ in range(0 if rng.random() > self.fill else rng.randint(1, 7)):
            profile = FULL if whole else self._profile(sku)
            one = {"profile": profile, "start": 0 if whole else rng.choice(board.profiles[profile].starts)}
            if board.wrong([(i["profile"], i["start"]) for i in [*held, one]]) is None:
                held.append(one | self._owner(sku, profile))
        return held

    def _owner(self, sku, profile):
        """The name of a request for such a slice, a name that no request has, or none."""
        rng, wanted = self.rng, (profile, sku)
        if rng.random() < 0.25 and profile != FULL:
            return {}
        fits = [name for name, spec in self.requests.items() if (spec["profile"], spec.get("sku")) == wanted]
        if fits and rng.random() < 0.7:
            held = {"owner": rng.choice(fits)}
        else:
            held = {"owner": f"s{rng.randint(0, 5)}"}
            if rng.random() < self.pinned:
                held["movable"] = False
        return held | ({"moveCost": rng.choice((0.05, 1))} if rng.random() < 0.05 else {})

    def _pool(self):
        rng, sku = self.rng, self.rng.choice(self.skus)
        nodes = {"max": rng.randint(1, 2), "gpusPerNode": rng.randint(1, 2)}
        if BOARDS[sku].profiles:
            nodes["migEnabled"] = rng.random() < 0.5
        spec = {"nodeSelector": {"pool": "elastic"}, "sku": sku, "nodes": nodes, "backend": "NVML"}
        spec["pricePerGPUHour"] = rng.choice(("0.4", 2, 6))
        return _document("GPUPool", "elastic", spec)
