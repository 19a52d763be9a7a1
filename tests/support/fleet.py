"""Builders of snapshots and intents with few words, and a stand-in cluster that performs plans."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tangram import catalog
from tangram.fleet import (
    WHOLE_GPU,
    ApplyDeployment,
    ApplyService,
    CheckpointFacts,
    Claim,
    Evaluation,
    FactsKey,
    FinishEvaluation,
    FinishInspection,
    FleetSnapshot,
    Inspection,
    Intent,
    MIGPolicy,
    Node,
    Objective,
    Plan,
    RemoveDeployment,
    ScaleDeployment,
    Shape,
    StartEvaluation,
    StartInspection,
    Workload,
)

IMAGE = "engine:1"
NOW = 1_795_255_200.0
PRODUCTS = {
    "H100-80GB-SXM": "NVIDIA-H100-80GB-HBM3",
    "A100-80GB-SXM": "NVIDIA-A100-SXM4-80GB",
    "A10": "NVIDIA-A10",
    "L4": "NVIDIA-L4",
    "H100-94GB-NVL": "NVIDIA-H100-NVL",
    "GB200-186GB": "NVIDIA-GB200",
}

# Llama-3.2-1B, Llama-3.1-8B and Llama-3.1-70B in bf16
FACTS_1B = CheckpointFacts(
    "LlamaForCausalLM", "sha256:1b", "bf16", 16, 2048, 32, 8, 64, 128256, 131072,
    1_235_814_400, 2_471_645_608, 525_336_576, tied_embeddings=True,
    attention_bias=False, qk_norm=False,
)  # fmt: skip
FACTS_8B = CheckpointFacts(
    "LlamaForCausalLM", "sha256:8b", "bf16", 32, 4096, 32, 8, 128, 128256, 131072,
    8_030_261_248, 16_060_556_376, 1_050_673_152, tied_embeddings=False,
    attention_bias=False, qk_norm=False,
)  # fmt: skip
FACTS_70B = CheckpointFacts(
    "LlamaForCausalLM", "sha256:70b", "bf16", 80, 8192, 64, 8, 128, 128256, 131072,
    70_553_706_496, 141_107_412_992, 2_101_346_304, tied_embeddings=False,
    attention_bias=False, qk_norm=False,
)  # fmt: skip
CHECKPOINTS = {"image:///m/1b": FACTS_1B, "image:///m/8b": FACTS_8B, "image:///m/70b": FACTS_70B}


def node(name: str, sku: str = "H100-80GB-SXM", *, usable: bool = True, **offer: int) -> Node:
    """`gpu=8` or, for slices, `mig_1g_10gb=7`."""
    names = {"gpu": "nvidia.com/gpu"}
    resources = {
        names.get(k, "nvidia.com/" + k.replace("_", "-", 1).replace("_", ".")): v for k, v in offer.items()
    }
    return Node(name, sku, PRODUCTS[sku], usable, tuple(sorted(resources.items())))


def intent(name: str = "m", uri: str = "image:///m/1b", **changes: Any) -> Intent:
    base = Intent(
        uid=f"uid-{name}",
        namespace="ns",
        name=name,
        generation=1,
        created_at=NOW - 1000,
        model_uri=uri,
        served_name=name,
        max_model_len=4096,
        max_running_requests=64,
        ttft=None,
        tpot=None,
        allowed_skus=(),
        denied_skus=(),
        mig=MIGPolicy.ALLOWED,
        min_replicas=1,
        max_replicas=1,
        paused=False,
    )
    if "min_replicas" in changes:
        changes.setdefault("max_replicas", max(1, changes["min_replicas"]))
    return replace(base, **changes)


def tpot(milliseconds: int) -> Objective:
    return Objective(90, milliseconds)


def shape(profile: str = WHOLE_GPU, sku: str = "H100-80GB-SXM", precision: str = "bf16") -> Shape:
    return Shape(sku, profile, 1, precision)


def workload(
    owner: Intent, at: Shape, replicas: int = 1, *, available: int | None = None, **changes: Any
) -> Workload:
    n = replicas if available is None else available
    base = Workload(
        uid=f"dep-{owner.name}-{at.variant}",
        name=f"{owner.name}-{at.variant}",
        namespace=owner.namespace,
        owner_uid=owner.uid,
        shape=at,
        replicas=replicas,
        ready=n,
        available=n,
        updated=replicas,
        settled=True,
        total=replicas,
        owner_generation=owner.generation,
    )
    return replace(base, **changes)


def claims(owner: Intent | None, at: Shape, on: str, count: int = 1) -> tuple[Claim, ...]:
    return tuple(Claim(on, at.resource, at.gpus, owner.uid if owner else None) for _ in range(count))


def snapshot(*nodes: Node, **changes: Any) -> FleetSnapshot:
    facts = tuple((FactsKey("ns", uri, IMAGE), found) for uri, found in CHECKPOINTS.items())
    return replace(FleetSnapshot(nodes=nodes, facts=facts, engine_image=IMAGE), **changes)


class Cluster:
    """Performs plans on a snapshot; `settle` schedules pods where there is room and makes them ready."""

    def __init__(self, observed: FleetSnapshot, intents: tuple[Any, ...]) -> None:
        self.observed, self.intents = observed, intents

    def perform(self, plan: Plan) -> None:
        owners = {i.uid: i for i in self.intents}
        for action in plan.actions:
            match action:
                case ApplyDeployment():
                    self._apply(action, owners[action.owner_uid])
                case RemoveDeployment():
                    self._keep(lambda w, uid=action.uid: w.uid != uid)
                case ScaleDeployment():
                    self._scale(action.uid, action.replicas)
                case ApplyService():
                    service = (owners[action.owner_uid].namespace, owners[action.owner_uid].name)
                    self._set(services=tuple(sorted({*self.observed.services, service})))
                case StartInspection():
                    job = Inspection(
                        action.key, "ns", "job-" + action.key.uri, "job-uid-" + action.key.uri, NOW
                    )
                    self._set(inspections=(*self.observed.inspections, job))
                case StartEvaluation():
                    free = (n for n in self.observed.nodes if n.usable and n.sku == action.shape.sku)
                    node = next(n.name for n in free if dict(n.allocatable).get(action.shape.resource))
                    held = Claim(node, action.shape.resource, 1, None)
                    uid = f"job-{action.key}"
                    job = Evaluation(action.key, action.shape.profile, uid, uid, NOW)
                    self._set(
                        evaluations=(*self.observed.evaluations, job), claims=(*self.observed.claims, held)
                    )
                case FinishEvaluation():
                    gone = next(e for e in self.observed.evaluations if e.job_uid == action.uid)
                    kept = tuple(e for e in self.observed.evaluations if e != gone)
                    resource = Shape(gone.key.sku, gone.profile).resource
                    skus = {n.name: n.sku for n in self.observed.nodes}
                    claims = list(self.observed.claims)
                    claims.remove(
                        next(
                            c
                            for c in claims
                            if (skus[c.node], c.resource, c.owner_uid) == (gone.key.sku, resource, None)
                        )
                    )
                    self._set(evaluations=kept, claims=tuple(claims))
                case FinishInspection():
                    kept = tuple(i for i in self.observed.inspections if i.job_uid != action.uid)
                    self._set(inspections=kept)

    def settle(self) -> None:
        """Schedule pods as far as there is room (oldest Deployment first) and let them become ready."""
        free: dict[tuple[str, str], int] = defaultdict(int)
        for n in self.observed.nodes:
            for resource, count in n.allocatable:
                free[(n.name, resource)] = count
        kept = [c for c in self.observed.claims if c.owner_uid is None]
        for claim in kept:
            free[(claim.node, claim.resource)] -= claim.count
        done = []
        for w in self.observed.workloads:
            bound = 0
            for n in self.observed.nodes:
                while (
                    n.usable
                    and n.sku == w.shape.sku
                    and bound < w.replicas
                    and free[(n.name, w.shape.resource)] >= w.shape.gpus
                ):
                    free[(n.name, w.shape.resource)] -= w.shape.gpus
                    kept.append(Claim(n.name, w.shape.resource, w.shape.gpus, w.owner_uid))
                    bound += 1
            done.append(
                replace(w, ready=bound, available=bound, updated=w.replicas, total=w.replicas, settled=True)
            )
        self._set(claims=tuple(kept), workloads=tuple(done))

    def _apply(self, action: ApplyDeployment, owner: Intent) -> None:
        new = workload(owner, action.shape, action.replicas, available=0)
        old = {w.uid: w for w in self.observed.workloads}
        if new.uid in old:
            was = old[new.uid]
            ready = min(was.ready, new.replicas)
            new = replace(
                was, replicas=new.replicas, ready=ready, available=ready, owner_generation=owner.generation
            )
        old[new.uid] = new
        self._set(workloads=tuple(old.values()))

    def _scale(self, uid: str, count: int) -> None:
        def scaled(w: Workload) -> Workload:
            return replace(w, replicas=count, ready=min(w.ready, count), available=min(w.available, count))

        self._set(workloads=tuple(scaled(w) if w.uid == uid else w for w in self.observed.workloads))

    def _keep(self, wanted: Any) -> None:
        self._set(workloads=tuple(w for w in self.observed.workloads if wanted(w)))

    def _set(self, **changes: Any) -> None:
        self.observed = replace(self.observed, **changes)


def capacity(observed: FleetSnapshot) -> Mapping[tuple[str, str], int]:
    """Independent oracle: units per (SKU, resource) on usable nodes, less what strangers hold."""
    total: dict[tuple[str, str], int] = defaultdict(int)
    for n in observed.nodes:
        for resource, count in n.allocatable if n.usable else ():
            taken = sum(
                c.count
                for c in observed.claims
                if (c.node, c.resource, c.owner_uid) == (n.name, resource, None)
            )
            if n.sku is not None:
                total[(n.sku, resource)] += max(0, count - taken)
    return total


def whole_gpu_price(sku: str) -> float:
    found = catalog.gpu(sku)
    assert found is not None
    assert found.price_per_hour is not None
    return found.price_per_hour
