"""A small fleet as the mirrors hold it, and one round over it: all that is pure between watch and write."""

import copy
import json
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tangram.fleet import ApplyDeployment, Intent, ParsedIntent, Plan, Shape, StartInspection
from tangram.kube.kinds import uid_of
from tangram.plan import plan, transitions
from tangram.scaling import ScalingParams
from tangram.shell.measure.fault_log import FaultLog
from tangram.shell.measure.metrics import OperatorMetrics, ready_replicas
from tangram.shell.measure.scaler import Scaler
from tangram.shell.objects import manifests
from tangram.shell.process.observation import Observer
from tangram.shell.process.round_report import llm_deployment_status
from tangram.shell.report.pool_status import pool_statuses
from tangram.shell.settings import Settings
from tangram.shell.snapshot.intents import parsed_intents
from tangram.shell.watch import kept_fields
from tangram.shell.watch.mirror_view import MirrorView
from tests.support.apiserver import FACTS, gpu_node

NOW = 1_795_255_200.0
IMAGE = "engine:1"
SETTINGS = Settings(engine_image=IMAGE)
SLICE = Shape("H100-80GB-SXM", "1g.10gb", 1, FACTS["dtype"])
PRODUCT = "NVIDIA-H100-80GB-HBM3"
PARAMS = ScalingParams(window_s=60, scrape_interval_s=15, up_after_s=10, down_after_s=120)

Object = dict[str, Any]


def llm_deployment(name: str, **spec: Any) -> Object:
    """Return one whose checkpoint is known."""
    model = {"uri": f"image:///{name}"}
    return {
        "apiVersion": "tangram.dev/v1alpha1",
        "kind": "LLMDeployment",
        "metadata": {
            "name": name,
            "namespace": "ns",
            "uid": f"uid-{name}",
            "generation": 1,
            "resourceVersion": "5",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "annotations": {"note": "x"},
            "labels": {"team": "y"},
        },
        "spec": {"model": model, "scaling": {"minReplicas": 1, "maxReplicas": 2}} | spec,
        "status": {"desiredReplicas": 1, "model": model | {"engineImage": IMAGE, "facts": FACTS}},
    }


def node(name: str, slices: int, **status: Any) -> Object:
    """Return a node that offers slices, and is given more of `status`, before it is reduced."""
    raw = gpu_node(name, 0)
    raw["metadata"] |= {"resourceVersion": "1", "uid": f"uid-{name}"}
    raw["metadata"]["labels"]["nvidia.com/gpu.product"] = PRODUCT
    counts = {SLICE.resource: str(slices)}
    raw["status"] |= {"allocatable": counts, "capacity": counts} | status
    raw["spec"] = {}
    return raw


def deployment(owner: Intent, at: Shape = SLICE, replicas: int = 1) -> Object:
    """Return a Deployment that the operator made, all of whose pods are available."""
    action = ApplyDeployment(owner.uid, at, replicas, (PRODUCT,), 4096)
    made: Object = json.loads(json.dumps(manifests.deployment(owner, action, SETTINGS)))
    made["metadata"] |= {"uid": f"dep-{owner.name}", "generation": 1, "resourceVersion": "7"}
    counts = ("replicas", "readyReplicas", "availableReplicas", "updatedReplicas")
    made["status"] = {"observedGeneration": 1} | dict.fromkeys(counts, replicas)
    return made


def pod(of: Object, on: str) -> Object:
    """Return a running pod of a Deployment, before it is reduced."""
    name, template = of["metadata"]["name"], of["spec"]["template"]
    return {
        "kind": "Pod",
        "metadata": {
            "name": f"{name}-77f-a",
            "namespace": "ns",
            "uid": f"pod-{name}",
            "labels": template["metadata"]["labels"] | {"pod-template-hash": "77f"},
            "ownerReferences": [
                {
                    "apiVersion": "apps/v1",
                    "kind": "ReplicaSet",
                    "name": f"{name}-77f",
                    "uid": f"rs-{name}",
                    "controller": True,
                }
            ],
        },
        "spec": copy.deepcopy(template["spec"]) | {"nodeName": on},
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{"name": "engine", "state": {"running": {}}, "restartCount": 0}],
        },
    }


def service(owner: Intent) -> Object:
    """Return the Service of an LLMDeployment."""
    made = manifests.service(manifests.owner_identity(owner))
    made["metadata"] |= {"uid": f"svc-{owner.name}", "resourceVersion": "3"}
    return made


@dataclass(frozen=True)
class Fleet:
    """Objects by kind, as the API server lists them. `reduced` ones beside: pods as the mirrors keep them."""

    llm_deployments: tuple[Object, ...] = ()
    nodes: tuple[Object, ...] = ()
    pods: tuple[Object, ...] = ()
    services: tuple[Object, ...] = ()
    deployments: tuple[Object, ...] = ()
    jobs: tuple[Object, ...] = ()
    gpu_pools: tuple[Object, ...] = ()
    reduced: tuple[Object, ...] = ()

    def view(self) -> MirrorView:
        """Return what the mirrors keep."""
        return MirrorView(
            llm_deployments=self.llm_deployments,
            nodes=tuple(kept_fields.node(copy.deepcopy(each)) for each in self.nodes),
            pods=(*self.reduced, *filter(None, (kept_fields.pod(copy.deepcopy(each)) for each in self.pods))),
            services=self.services,
            deployments=self.deployments,
            jobs=self.jobs,
            gpu_pools=self.gpu_pools,
        )


def running(*names: str, slices: int = 7, spec: Object | None = None) -> Fleet:
    """Return a fleet in which each LLMDeployment runs one replica on a slice of one node."""
    wanted = tuple(llm_deployment(name, **(spec or {})) for name in names)
    parsed = [each for each in parsed_intents(MirrorView(llm_deployments=wanted)) if isinstance(each, Intent)]
    parsed.sort(key=lambda each: names.index(each.name))
    made = tuple(deployment(each) for each in parsed)
    return Fleet(
        llm_deployments=wanted,
        nodes=(node("n1", slices),),
        pods=tuple(pod(each, "n1") for each in made),
        services=tuple(service(each) for each in parsed),
        deployments=made,
    )


@dataclass(frozen=True)
class Round:
    """What one round came to."""

    plan: Plan
    statuses: dict[str, Object]  # by uid
    faults: FaultLog
    metrics: OperatorMetrics
    intents: tuple[ParsedIntent, ...] = ()

    def of(self, uid: str) -> tuple[Any, ...]:
        """Return what one LLMDeployment got: its decision without what depends on free room, and actions."""
        decision = next((d for d in self.plan.decisions if d.owner_uid == uid), None)
        known = decision and replace(decision, alternatives=())
        return known, [action for action in self.plan.actions if action.owner_uid == uid]


def one_round(view: MirrorView, now: float = NOW, faults: FaultLog | None = None) -> Round:
    """Do what the loop does between a view and the writes, in its order."""
    metrics = faults.metrics if faults else OperatorMetrics()
    faults = faults or FaultLog(metrics)
    faults.begin()
    observer = Observer(SETTINGS, Scaler(PARAMS, None), faults)
    observed = observer.observe(view, now)
    round_plan = plan(observed.snapshot, observed.parsed, now)
    faults.record_planned(round_plan.faults, {})
    objects = {uid_of(obj): obj for obj in observed.view.llm_deployments}
    intents = {intent.uid: intent for intent in observed.parsed}
    statuses, ready = {}, ready_replicas(observed.snapshot.workloads)
    for decision in round_plan.decisions:
        intent, obj = intents[decision.owner_uid], objects[decision.owner_uid]
        status = llm_deployment_status(decision, intent, observed, obj, faults, lambda _intent, _status: None)
        statuses[intent.uid] = status
        faults.run("events", intent.name, "", partial(transitions, obj.get("status") or {}, status))
        metrics.show(intent, decision, status, ready.get(intent.uid, 0))
    for action in round_plan.actions:
        owner = intents.get(action.owner_uid)
        if isinstance(action, ApplyDeployment) and isinstance(owner, Intent):
            manifests.deployment(owner, action, SETTINGS)
        if isinstance(action, StartInspection) and isinstance(owner, Intent):
            manifests.inspect_job(manifests.owner_identity(owner), action.key, SETTINGS)
    pool_statuses(observed.view.gpu_pools, observed.snapshot, {}, now, observer.record_unreadable)
    return Round(round_plan, statuses, faults, metrics, observed.parsed)
