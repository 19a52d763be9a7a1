"""The pod template of the engines of one variant of an LLMDeployment. Pure."""

from tangram.api import ModelSource, model_source
from tangram.fleet import (
    ACCEPT_AFTER_SIGTERM_S,
    BUNDLED,
    QUANTISED,
    ApplyDeployment,
    Intent,
    Launch,
    MetricsDialect,
    Shape,
    Spread,
)
from tangram.fleet.labels import MANAGED_BY, ZONE_LABEL
from tangram.fleet.quantity import memory_quantity, parse_quantity
from tangram.kube import kinds
from tangram.kube.kinds import Object
from tangram.shell.objects import pod_fields
from tangram.shell.objects.model_claims import claim_name
from tangram.shell.objects.runtime_pod import runtime_container, runtime_volumes
from tangram.shell.settings import Settings

ENGINE_PORT = 8000
HUNG_GRACE_S = 30  # an engine that fails its liveness probe will not finish its requests
START_DEADLINE_S = 1800  # the largest checkpoints load in minutes
START_PERIOD_S = 2
ENGINE_NAME = "tangram-engine"
_BUNDLED_METRICS = (ENGINE_PORT, "/metrics")
SHARED_MEMORY = "shm"

# github.com/kubernetes/autoscaler, cluster-autoscaler/FAQ.md, "What types of pods can prevent CA from
# removing a node": those with a volume on the node's disk, as /tmp is, unless annotated as safe to evict.
# karpenter.sh/docs/concepts/disruption, "Pod-level controls": consolidation and drift respect it.
_SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"
_NODE_REMOVAL: dict[str, dict[str, str]] = {
    "Default": {},
    "Block": {_SAFE_TO_EVICT: "false", "karpenter.sh/do-not-disrupt": "true"},
    "Allow": {_SAFE_TO_EVICT: "true"},
}
API_KEYS = "api-keys"  # a volume, and the file in it
_API_KEYS_FOLDER = "/etc/tangram/api-keys"
# For owner and group: the group is fsGroup, or 0 where the cluster assigns the user of pods, with group 0.
_SECRET_MODE = 0o440


def engine_template(
    intent: Intent, action: ApplyDeployment, settings: Settings, common_labels: dict[str, str]
) -> Object:
    """Return the pod template of one variant; `common_labels` are on the pods of every variant."""
    source = model_source(intent.model_uri)
    pod = pod_fields.gpu_pod_fields(action, settings) | {
        "terminationGracePeriodSeconds": intent.termination_grace_s,
        **_program(intent, action, settings, source),
    }
    runtime = None if action.launch is None else action.launch.runtime
    metrics = _BUNDLED_METRICS if runtime is None else (runtime.pod.port, runtime.metrics.path)
    user = None if runtime is None else runtime.pod.run_as_user
    if user is not None:
        pod["securityContext"] |= {"runAsUser": user, "runAsGroup": user, "fsGroup": user}
    constraints = _spread(common_labels, action.spread)
    if constraints:
        pod["topologySpreadConstraints"] = constraints
    annotations = {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(metrics[0]),
        "prometheus.io/path": metrics[1],
        **_NODE_REMOVAL[settings.engine.node_removal],
    }
    return {
        "metadata": {
            "labels": dict(intent.pod_labels)
            | common_labels
            | engine_labels(intent.name, action.shape)
            | {"llm-d.ai/engine-type": _engine_type(action.launch)},
            "annotations": dict(intent.pod_annotations) | annotations,
        },
        "spec": pod,
    }


def engine_labels(name: str, shape: Shape) -> dict[str, str]:
    """Return the labels of engines of the LLMDeployment `name` that no Service selects by.

    The selector of the Deployment holds the variant; dashboards join on the others. A label may not contain
    the `+` of a profile: it becomes a dot, as in the name of the resource.
    """
    return {
        kinds.NAME_LABEL: ENGINE_NAME,
        kinds.INSTANCE_LABEL: name,
        kinds.PART_OF_LABEL: MANAGED_BY,
        kinds.VARIANT_LABEL: shape.variant,
        kinds.SKU_LABEL: shape.sku,
        kinds.PROFILE_LABEL: shape.profile.replace("+", "."),
        kinds.PRECISION_LABEL: shape.precision,
    } | ({} if shape.runtime == BUNDLED else {kinds.RUNTIME_LABEL: shape.runtime})


def _program(intent: Intent, action: ApplyDeployment, settings: Settings, source: ModelSource) -> Object:
    """Return the container that serves the model, the one that fetches it, and their volumes."""
    if action.launch is None:
        container = _engine_container(intent, action, settings, source)
        volumes = [_shared_memory(settings), *_api_keys_volume(intent)]
    else:
        container = runtime_container(intent, action, action.launch, source, settings)
        volumes = runtime_volumes(action.launch, action.shape, settings)
    pin, claim = action.pin, claim_name(action.model_claim)
    secret = "" if claim else intent.model_secret
    return {
        **pod_fields.init_containers(source, pin, secret, container["resources"], settings, claim),
        "containers": [container],
        "volumes": [*pod_fields.volumes(source, settings, pin, secret, claim), *volumes],
    }


def _engine_type(launch: Launch | None) -> str:
    """Return the names of metrics, as llm-d's router calls them."""
    is_sglang = launch is not None and launch.runtime.metrics.dialect is MetricsDialect.SGLANG
    return "sglang" if is_sglang else "vllm"


def _shared_memory(settings: Settings) -> Object:
    """Return the volume of /dev/shm. Container runtimes default to 64 MiB; NCCL needs 1 GiB
    (docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html, "Shared memory").

    Its pages count against the memory limit of the container that writes them.
    """
    limit = memory_quantity(parse_quantity(settings.engine.shm_size_limit))
    return {"name": SHARED_MEMORY, "emptyDir": {"medium": "Memory", "sizeLimit": limit}}


def _engine_container(
    intent: Intent, action: ApplyDeployment, settings: Settings, source: ModelSource
) -> Object:
    start = {"failureThreshold": START_DEADLINE_S // START_PERIOD_S, "periodSeconds": START_PERIOD_S}
    return {
        "name": "engine",
        "image": settings.engine_image,
        "imagePullPolicy": settings.engine_image_pull_policy,
        "args": _engine_args(intent, action, source),
        # A start that fails logs its reason last: `kubectl describe pod` shows it.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "ports": [{"name": "http", "containerPort": ENGINE_PORT, "protocol": "TCP"}],
        "resources": pod_fields.resources(intent, action.shape, settings),
        "securityContext": pod_fields.container_security(),
        "volumeMounts": [
            *pod_fields.mounts(source),
            {"name": SHARED_MEMORY, "mountPath": "/dev/shm"},  # noqa: S108 - a path inside the container
            *_api_keys_mount(intent),
        ],
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
        *("--model", source.path),
        *("--served-model-name", intent.served_name),
        *("--port", str(ENGINE_PORT)),
        *("--max-model-len", str(action.max_model_len)),
        *("--max-num-seqs", str(intent.max_running_requests)),
        *("--max-request-seconds", str(intent.max_request_s)),
        *("--drain-seconds", str(ACCEPT_AFTER_SIGTERM_S)),
        *(("--quantize", action.shape.precision) if action.shape.precision in QUANTISED else ()),
        *(("--api-key-file", f"{_API_KEYS_FOLDER}/{API_KEYS}") if intent.api_keys else ()),
    ]


def _api_keys_volume(intent: Intent) -> list[Object]:
    """Return the volume with the key of the Secret that `intent` names, without the other keys of it."""
    if intent.api_keys is None:
        return []
    secret = {
        "secretName": intent.api_keys.name,
        "items": [{"key": intent.api_keys.key, "path": API_KEYS}],
        "defaultMode": _SECRET_MODE,
    }
    return [{"name": API_KEYS, "secret": secret}]


def _api_keys_mount(intent: Intent) -> list[Object]:
    """Return the mount of the API keys: a folder, because the kubelet never updates a subPath."""
    return [{"name": API_KEYS, "mountPath": _API_KEYS_FOLDER, "readOnly": True}] if intent.api_keys else []


def _spread(labels: dict[str, str], spread: Spread) -> list[Object]:
    """Return the topology spread constraints. They are soft: the plan counts free devices by node and
    zone, and where the scheduler finds fewer, a badly spread replica is better than none.
    """
    return [
        {
            "maxSkew": 1,
            "topologyKey": key,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": labels},
        }
        for key, share in ((kinds.HOST_LABEL, spread.node), (ZONE_LABEL, spread.zone))
        if share < 1
    ]


def _probe(path: str, **numbers: int) -> Object:
    return {"httpGet": {"path": path, "port": "http", "scheme": "HTTP"}, **numbers}
