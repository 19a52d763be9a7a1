"""The container of a replica that an EngineRuntime serves, and its volumes. Pure.

Its words come from an administrator, with the numbers of the plan. What the author of an LLMDeployment adds
is one word, `--flag=value`, so that no value can become a flag.
"""

import json
import shlex
from collections.abc import Iterator

from tangram.api import ModelSource
from tangram.catalog.lookup import required_gpu
from tangram.fleet import ACCEPT_AFTER_SIGTERM_S, ApplyDeployment, Intent, Launch, Objective, Shape
from tangram.fleet.quantity import memory_quantity, parse_quantity
from tangram.kube.kinds import Object
from tangram.runtimes.holes import POD_UID_VARIABLE, Hole, HoleValues, escaped, filled
from tangram.scaling.queries import TPOT_BUCKETS, TTFT_BUCKETS
from tangram.shell.objects import pod_fields
from tangram.shell.settings import Settings

CACHE, SHARED_MEMORY = "cache", "shm"
START_PERIOD_S = 5
HUNG_GRACE_S = 30  # an engine that fails its liveness probe will not finish its requests
_MIB = 1 << 20
# GPUs of one replica are on one node: NCCL needs no network, and looks for none.
_NCCL = {"NCCL_IB_DISABLE": "1", "NCCL_SOCKET_IFNAME": "lo"}
_NO_PEER_TO_PEER = {"NCCL_P2P_DISABLE": "1"}  # where the driver forbids it: through shared memory


def runtime_container(
    intent: Intent, action: ApplyDeployment, launch: Launch, source: ModelSource, settings: Settings
) -> Object:
    """Return the container."""
    runtime = launch.runtime
    pod, values = runtime.pod, hole_values(intent, action, launch, source)
    words = [*_filled(runtime.arguments, values), *_added_words(intent)]
    variables = dict(_variables(intent, action, launch, values, words))
    command = _filled(runtime.command, values)
    return {
        "name": "engine",
        "image": runtime.image,
        "imagePullPolicy": "IfNotPresent",
        **({"command": command} if command else {}),
        "args": [] if runtime.arguments_variable else words,
        "env": [
            {"name": POD_UID_VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
            *({"name": name, "value": value} for name, value in variables.items()),
        ],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "ports": [{"name": "http", "containerPort": pod.port, "protocol": "TCP"}],
        "resources": pod_fields.resources(intent, action.shape, settings),
        "securityContext": pod_fields.container_security()
        | {"readOnlyRootFilesystem": not pod.writable_root},
        "volumeMounts": [
            *pod_fields.mounts(source),
            {"name": SHARED_MEMORY, "mountPath": "/dev/shm"},  # noqa: S108 - a path inside the container
            *([{"name": CACHE, "mountPath": pod.cache_path}] if pod.cache_path else []),
        ],
        # Endpoints lag behind: it still accepts requests for so long. Then SIGTERM makes it finish what runs.
        "lifecycle": {"preStop": {"sleep": {"seconds": ACCEPT_AFTER_SIGTERM_S}}},
        "startupProbe": _probe(
            pod.probes.ready,
            timeoutSeconds=5,
            periodSeconds=START_PERIOD_S,
            failureThreshold=-(-start_deadline_s(launch) // START_PERIOD_S),
        ),
        "readinessProbe": _probe(pod.probes.ready, periodSeconds=5, timeoutSeconds=5, failureThreshold=2),
        "livenessProbe": _probe(
            pod.probes.live,
            periodSeconds=10,
            timeoutSeconds=10,
            failureThreshold=6,
            terminationGracePeriodSeconds=HUNG_GRACE_S,
        ),
    }


def start_deadline_s(launch: Launch) -> int:
    """Return how long a replica may take to start."""
    return launch.runtime.pod.probes.start_deadline_s(launch.weight_bytes)


def runtime_volumes(launch: Launch, shape: Shape, settings: Settings) -> list[Object]:
    """Return the volumes beside those of the model: shared memory, and a cache that outlives the container,
    not the pod. Ranks exchange through shared memory, so each GPU of a replica adds to it.
    """
    pod = launch.runtime.pod
    shm = {"medium": "Memory", "sizeLimit": memory_quantity(pod.shm_mib * shape.gpus * _MIB)}
    limit = memory_quantity(parse_quantity(settings.engine.runtime_cache_size_limit))
    cache = [{"name": CACHE, "emptyDir": {"sizeLimit": limit}}] if pod.cache_path else []
    return [{"name": SHARED_MEMORY, "emptyDir": shm}, *cache]


def hole_values(intent: Intent, action: ApplyDeployment, launch: Launch, source: ModelSource) -> HoleValues:
    """Return what fills the holes of a runtime's words."""
    ttft, tpot = edges(TTFT_BUCKETS, intent.ttft), edges(TPOT_BUCKETS, intent.tpot)
    return {
        Hole.MODEL_PATH: source.path,
        Hole.SERVED_NAME: intent.served_name,
        Hole.PORT: str(launch.runtime.pod.port),
        Hole.MAX_MODEL_LEN: str(action.max_model_len),
        Hole.MAX_RUNNING_REQUESTS: str(intent.max_running_requests),
        Hole.MAX_BATCHED_TOKENS: str(launch.max_batched_tokens),
        Hole.MEMORY_SHARE: f"{launch.memory_share:.2f}",
        Hole.STATIC_MEMORY_SHARE: f"{launch.static_memory_share:.2f}",
        Hole.TENSOR_PARALLEL: str(action.shape.tensor_parallel),
        Hole.PIPELINE_PARALLEL: str(action.shape.pipeline_parallel),
        Hole.TTFT_EDGES: json.dumps(ttft, separators=(",", ":")),
        Hole.TPOT_EDGES: json.dumps(tpot, separators=(",", ":")),
        Hole.TTFT_EDGE_WORDS: tuple(map(str, ttft)),
        Hole.TPOT_EDGE_WORDS: tuple(map(str, tpot)),
        Hole.DRAIN_SECONDS: str(intent.max_request_s),
        Hole.CACHE_PATH: launch.runtime.pod.cache_path or "/tmp",  # noqa: S108 - a volume of the pod
        Hole.POD_UID: f"$({POD_UID_VARIABLE})",
    }


def edges(usual: tuple[float, ...], objective: Objective | None) -> tuple[float, ...]:
    """Return the edges of a histogram in seconds, with one at the objective."""
    own = () if objective is None else (objective.milliseconds / 1000,)
    return tuple(sorted({*usual, *own}))


def _filled(words: tuple[str, ...], values: HoleValues) -> list[str]:
    return [part for word in words for part in filled(word, values)]


def _added_words(intent: Intent) -> Iterator[str]:
    for option in intent.runtime.arguments:
        yield escaped(option.name if option.value is None else f"{option.name}={option.value}")


def _variables(
    intent: Intent, action: ApplyDeployment, launch: Launch, values: HoleValues, words: list[str]
) -> Iterator[tuple[str, str]]:
    runtime = launch.runtime
    yield from _nccl(action.shape)
    for name, value in runtime.variables:
        yield name, "".join(filled(value, values)) if value else ""
    if runtime.arguments_variable:
        yield runtime.arguments_variable, shlex.join(words)
    for option in intent.runtime.variables:
        yield option.name, escaped(option.value or "")


def _nccl(shape: Shape) -> Iterator[tuple[str, str]]:
    if shape.gpus > 1:
        yield from _NCCL.items()
        if not required_gpu(shape.sku).peer_to_peer:
            yield from _NO_PEER_TO_PEER.items()


def _probe(path: str, **numbers: int) -> Object:
    return {"httpGet": {"path": path, "port": "http", "scheme": "HTTP"}, **numbers}
