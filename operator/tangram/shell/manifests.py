"""What the operator writes: Deployment, Service and inspect Job of one LLMDeployment. Pure; values in
canonical form.

A person who may write LLMDeployments decides no image, no command, no host path and no security setting
here: those come from the operator's settings, and names are validated by the API before they arrive.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

from tangram.api import ModelSource, model_source
from tangram.catalog import share
from tangram.fleet import DRAIN_S, ApplyDeployment, FactsKey, Intent, Shape, Spread
from tangram.planner.device_rules import SHARING_STRATEGIES
from tangram.planner.node_devices import GPU_TOLERATION
from tangram.shell.kinds import (
    COMPONENT_LABEL,
    DEPLOYMENTS,
    ENGINE_IMAGE_ANNOTATION,
    GENERATION_ANNOTATION,
    HOST_LABEL,
    JOBS,
    LLM_DEPLOYMENTS,
    MANAGED_BY,
    MANAGED_BY_LABEL,
    MODEL_URI_ANNOTATION,
    OWNER_LABEL,
    PRODUCT_LABEL,
    RENDERED_ANNOTATION,
    SERVICES,
    SHAPE_ANNOTATION,
    VARIANT_LABEL,
    ZONE_LABEL,
    Object,
)
from tangram.shell.quantity import cpu_quantity, memory_quantity
from tangram.shell.settings import Settings

ENGINE_PORT = 8000
HUNG_GRACE_S = 30  # what does not answer its liveness probe will not finish its requests either
START_DEADLINE_S = 1800  # the largest checkpoints load in minutes; beyond half an hour something is wrong
START_PERIOD_S = 2
INSPECT_DEADLINE_S = 600
# `tangram-engine inspect` keeps its processes below (MEMORY_LIMIT, LOAD_MEMORY and TEXT_MEMORY there).
INSPECT_MEMORY = "1Gi"
INSPECT_TTL_S = 3600  # if the operator dies before it could delete the Job
INSPECT_REJECTED = 3  # exit code of `tangram-engine inspect` for a checkpoint that cannot be served

TERMINATION_LOG = "/dev/termination-log"


@dataclass(frozen=True, slots=True)
class Owner:
    """The LLMDeployment that a child belongs to."""

    uid: str
    namespace: str
    name: str
    generation: int


def owner_of(intent: Intent) -> Owner:
    """Return the identity of the LLMDeployment behind `intent`."""
    return Owner(intent.uid, intent.namespace, intent.name, intent.generation)


def deployment_name(owner_name: str, shape: Shape) -> str:
    """Return the name of the Deployment of one variant."""
    return f"{owner_name}-{shape.variant}"


def job_name(key: FactsKey) -> str:
    """Return the name of the inspect Job of a checkpoint, the same for everyone in the namespace."""
    text = json.dumps([key.namespace, key.uri, key.engine_image])
    return f"tangram-inspect-{hashlib.sha256(text.encode()).hexdigest()[:10]}"


def service(owner: Owner) -> Object:
    """Return the Service in front of every variant of an LLMDeployment."""
    return _object(
        SERVICES,
        owner,
        owner.name,
        _labels(owner, "engine"),
        {},
        {
            "type": "ClusterIP",
            "selector": _labels(owner, "engine"),
            "ports": [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": "http"}],
        },
    )


def deployment(intent: Intent, action: ApplyDeployment, settings: Settings) -> Object:
    """Return the Deployment of one variant: `action.replicas` engines of `action.shape`."""
    owner, shape = owner_of(intent), action.shape
    labels = _labels(owner, "engine") | {VARIANT_LABEL: shape.variant}
    annotations = {SHAPE_ANNOTATION: shape_annotation(shape), GENERATION_ANNOTATION: str(intent.generation)}
    spec = {
        "replicas": action.replicas,
        "revisionHistoryLimit": 2,
        # In a full pool a new pod waits until an old one has finished its requests.
        "progressDeadlineSeconds": intent.termination_grace_s + START_DEADLINE_S + 60,
        "selector": {"matchLabels": labels},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": _rolling_update(action)},
        "template": _engine_template(intent, action, settings, labels),
    }
    return _object(DEPLOYMENTS, owner, deployment_name(owner.name, shape), labels, annotations, spec)


def _rolling_update(action: ApplyDeployment) -> Object:
    """Make before break; without room for one more, break before make."""
    return {"maxUnavailable": action.max_unavailable, "maxSurge": 0 if action.max_unavailable else 1}


def inspect_job(owner: Owner, key: FactsKey, settings: Settings) -> Object:
    """Return the Job that reads a checkpoint and reports its facts in its termination message."""
    labels = _labels(owner, "inspect")
    annotations = {MODEL_URI_ANNOTATION: key.uri, ENGINE_IMAGE_ANNOTATION: key.engine_image}
    source = model_source(key.uri)
    container = {
        "name": "inspect",
        "image": key.engine_image,
        "imagePullPolicy": settings.engine_image_pull_policy,
        "args": ["inspect", "--model", source.path, "--termination-log", TERMINATION_LOG],
        "terminationMessagePath": TERMINATION_LOG,
        "terminationMessagePolicy": "File",
        "resources": {
            "requests": {"cpu": "100m", "memory": "256Mi"},
            "limits": {"cpu": "1", "memory": INSPECT_MEMORY},
        },
        "securityContext": _container_security(),
        "volumeMounts": _mounts(source),
    }
    pod = _pod_basics(settings) | {
        "restartPolicy": "Never",
        "containers": [container],
        "volumes": _volumes(source),
        "tolerations": tolerations(settings),
    }
    spec = {
        "backoffLimit": 2,
        "activeDeadlineSeconds": INSPECT_DEADLINE_S,
        "ttlSecondsAfterFinished": INSPECT_TTL_S,
        "podFailurePolicy": {
            "rules": [
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                {
                    "action": "FailJob",
                    "onExitCodes": {
                        "containerName": "inspect",
                        "operator": "In",
                        "values": [INSPECT_REJECTED],
                    },
                },
            ]
        },
        "template": {"metadata": {"labels": labels, "annotations": annotations}, "spec": pod},
    }
    return _object(JOBS, owner, job_name(key), labels, annotations, spec)


def shape_annotation(shape: Shape) -> str:
    """Return a shape as the JSON that Deployments carry."""
    return json.dumps(asdict(shape), sort_keys=True)


def rendered_hash(obj: Object) -> str:
    """Return a short hash of a manifest: tells when a field was *removed* from what we render."""
    return hashlib.sha256(json.dumps(obj, sort_keys=True).encode()).hexdigest()[:16]


def _object(kind: Any, owner: Owner, name: str, labels: Object, annotations: Object, spec: Object) -> Object:
    obj = {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {
            "name": name,
            "namespace": owner.namespace,
            "labels": labels,
            "annotations": dict(annotations),
            "ownerReferences": [_owner_reference(owner)],
        },
        "spec": spec,
    }
    obj["metadata"]["annotations"][RENDERED_ANNOTATION] = rendered_hash(obj)
    return obj


def _owner_reference(owner: Owner) -> Object:
    return {
        "apiVersion": LLM_DEPLOYMENTS.api_version,
        "kind": LLM_DEPLOYMENTS.kind,
        "name": owner.name,
        "uid": owner.uid,
        "controller": True,
        "blockOwnerDeletion": False,  # deleting an LLMDeployment never waits for its pods to drain
    }


def _labels(owner: Owner, component: str) -> dict[str, str]:
    return {MANAGED_BY_LABEL: MANAGED_BY, COMPONENT_LABEL: component, OWNER_LABEL: owner.name}


def _engine_template(intent: Intent, action: ApplyDeployment, settings: Settings, labels: Object) -> Object:
    source = model_source(intent.model_uri)
    pod = _pod_basics(settings) | {
        "terminationGracePeriodSeconds": intent.termination_grace_s,
        "affinity": _affinity(action),
        "tolerations": tolerations(settings),
        "containers": [_engine_container(intent, action, settings, source)],
        "volumes": _volumes(source),
    }
    constraints = _spread(intent, action.spread)
    if constraints:
        pod["topologySpreadConstraints"] = constraints
    if settings.runtime_class_name:
        pod["runtimeClassName"] = settings.runtime_class_name
    annotations = {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(ENGINE_PORT),
        "prometheus.io/path": "/metrics",
    }
    return {
        "metadata": {"labels": labels | {"llm-d.ai/engine-type": "vllm"}, "annotations": annotations},
        "spec": pod,
    }


def _engine_container(
    intent: Intent, action: ApplyDeployment, settings: Settings, source: ModelSource
) -> Object:
    start = {"failureThreshold": START_DEADLINE_S // START_PERIOD_S, "periodSeconds": START_PERIOD_S}
    return {
        "name": "engine",
        "image": settings.engine_image,
        "imagePullPolicy": settings.engine_image_pull_policy,
        "args": _engine_args(intent, action, source),
        "ports": [{"name": "http", "containerPort": ENGINE_PORT, "protocol": "TCP"}],
        "resources": _resources(action.shape, settings),
        "securityContext": _container_security(),
        "volumeMounts": _mounts(source),
        "startupProbe": _probe("/ready", timeoutSeconds=2, **start),
        "readinessProbe": _probe("/ready", periodSeconds=2, timeoutSeconds=2, failureThreshold=2),
        "livenessProbe": _probe(
            "/health",
            periodSeconds=10,
            timeoutSeconds=5,
            failureThreshold=3,
            terminationGracePeriodSeconds=HUNG_GRACE_S,
        ),
    }


def _engine_args(intent: Intent, action: ApplyDeployment, source: ModelSource) -> list[str]:
    return [
        "serve",
        "--model",
        source.path,
        "--served-model-name",
        intent.served_name,
        "--port",
        str(ENGINE_PORT),
        "--max-model-len",
        str(action.max_model_len),
        "--max-num-seqs",
        str(intent.max_running_requests),
        "--max-request-seconds",
        str(intent.max_request_s),
        "--drain-seconds",
        str(DRAIN_S),
    ]


def _resources(shape: Shape, settings: Settings) -> Object:
    """Requests equal limits (QoS Guaranteed): host CPU and memory follow the share of the GPU that is
    taken.
    """
    part = share(shape.sku, shape.profile) * shape.tensor_parallel
    amounts = {
        "cpu": cpu_quantity(settings.cpu_cores_per_gpu * part),
        "memory": memory_quantity(settings.memory_bytes_per_gpu * part),
        shape.resource: str(shape.tensor_parallel),
    }
    return {"requests": dict(amounts), "limits": dict(amounts)}


def _affinity(action: ApplyDeployment) -> Object:
    """Return where pods may run: on nodes with one of the products whose devices are not shared, in one of
    the named pools if any.

    Nodes that are left out for another reason take no pods by themselves: their devices are not allocatable.
    """
    resource = action.shape.resource
    product = {"key": PRODUCT_LABEL, "operator": "In", "values": list(action.products)}
    alone = {
        "key": f"{resource}.sharing-strategy",
        "operator": "NotIn",  # holds where the label is missing
        "values": list(SHARING_STRATEGIES),
    }
    terms = [
        {
            "matchExpressions": [
                product,
                alone,
                *({"key": k, "operator": "In", "values": [v]} for k, v in labels),
            ]
        }
        for labels in action.node_selectors or ((),)
    ]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


def _spread(intent: Intent, spread: Spread) -> list[Object]:
    """Return how pods are kept apart. Never at the cost of one that could run: the plan has counted the room,
    and where the scheduler sees less of it, a replica in the wrong place beats none.
    """
    selector = {"matchLabels": _labels(owner_of(intent), "engine")}
    return [
        {
            "maxSkew": 1,
            "topologyKey": key,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": selector,
        }
        for key, share in ((HOST_LABEL, spread.node), (ZONE_LABEL, spread.zone))
        if share < 1
    ]


def tolerations(settings: Settings) -> list[Object]:
    """Return what engine pods tolerate: GPU nodes are commonly tainted nvidia.com/gpu, the rest is the
    installer's word.
    """
    return [dict(GPU_TOLERATION), *(dict(toleration) for toleration in settings.tolerations)]


def _pod_basics(settings: Settings) -> Object:
    pod: Object = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "runAsGroup": 65532,
            "fsGroup": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    if settings.engine_service_account_name:
        pod["serviceAccountName"] = settings.engine_service_account_name
    if settings.image_pull_secrets:
        pod["imagePullSecrets"] = [{"name": name} for name in settings.image_pull_secrets]
    return pod


def _container_security() -> Object:
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def _volumes(source: ModelSource) -> list[Object]:
    volumes: list[Object] = [{"name": "tmp", "emptyDir": {}}]
    if source.claim:
        volumes.append(
            {"name": "model", "persistentVolumeClaim": {"claimName": source.claim, "readOnly": True}}
        )
    return volumes


def _mounts(source: ModelSource) -> list[Object]:
    mounts: list[Object] = [{"name": "tmp", "mountPath": "/tmp"}]  # noqa: S108 - a path inside the container
    if source.claim:
        mounts.append({"name": "model", "mountPath": "/mnt/model", "readOnly": True})
    return mounts


def _probe(path: str, **numbers: int) -> Object:
    return {"httpGet": {"path": path, "port": "http", "scheme": "HTTP"}, **numbers}
