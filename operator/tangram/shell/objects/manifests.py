"""Manifests of the objects that an LLMDeployment owns: Deployments, Service, Jobs, PrometheusRule. Pure;
values in canonical form.

An author of LLMDeployments controls no image, no command, no host path and no security setting: these come
from the operator's settings, and the API validates names before they arrive here.
"""

import hashlib
import json
from dataclasses import asdict

from tangram.fleet import (
    BUNDLED,
    ApplyDeployment,
    EvaluationKey,
    FactsKey,
    Intent,
    ModelClaimKey,
    Shape,
    StartEvaluation,
)
from tangram.fleet.labels import COMPONENT_LABEL, MANAGED_BY, MANAGED_BY_LABEL, OWNER_LABEL
from tangram.kube import kinds
from tangram.kube.kinds import Identity, Kind, Object
from tangram.shell.objects.burn_rate_rules import rule_group
from tangram.shell.objects.engine_pod import START_DEADLINE_S, engine_template
from tangram.shell.objects.fetch_container import fetch_s
from tangram.shell.objects.job_pods import REJECTED, evaluate_pod, fill_pod, inspect_pod
from tangram.shell.objects.job_results import evaluation_annotation
from tangram.shell.objects.model_claims import claim_name, key_annotation
from tangram.shell.objects.runtime_pod import start_deadline_s
from tangram.shell.settings import PrometheusRuleSettings, Settings

INSPECT_DEADLINE_S = 600
EVALUATE_DEADLINE_S = 3600  # reads the largest checkpoints twice, from a slow disk
JOB_TTL_S = 3600  # where the operator ends before it deletes the Job


def owner_identity(intent: Intent) -> Identity:
    """Return the identity of the LLMDeployment of `intent`."""
    return Identity(intent.namespace, intent.name, intent.uid)


def deployment_name(owner_name: str, shape: Shape) -> str:
    """Return the name of the Deployment of one variant."""
    return f"{owner_name}-{shape.variant}"


def inspect_job_name(key: FactsKey) -> str:
    """Return the name of the inspect Job of a checkpoint: one Job in each namespace."""
    text = json.dumps([key.namespace, key.uri, key.engine_image])
    return f"tangram-inspect-{hashlib.sha256(text.encode()).hexdigest()[:10]}"


def evaluate_job_name(key: EvaluationKey) -> str:
    """Return the name of the evaluate Job of a checkpoint, format and GPU model: one in each namespace."""
    text = json.dumps([key.namespace, key.uri, key.digest, key.sku, key.precision])
    return f"tangram-evaluate-{hashlib.sha256(text.encode()).hexdigest()[:10]}"


def service(owner: Identity) -> Object:
    """Return the Service in front of every variant of an LLMDeployment."""
    labels = _labels(owner, "engine")
    ports = [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": "http"}]
    spec = {"type": "ClusterIP", "selector": labels, "ports": ports}
    return _object(kinds.SERVICES, owner, owner.name, labels, {}, spec)


def deployment(intent: Intent, action: ApplyDeployment, settings: Settings) -> Object:
    """Return the Deployment of one variant: `action.replicas` engines of `action.shape`."""
    owner, shape = owner_identity(intent), action.shape
    common_labels = _labels(owner, "engine")
    # The selector is immutable: another label breaks every write.
    selected = common_labels | {kinds.VARIANT_LABEL: shape.variant}
    template = engine_template(intent, action, settings, common_labels)
    _set_priority_class(template["spec"], intent.priority_class_name)
    annotations = {
        kinds.SHAPE_ANNOTATION: shape_annotation(shape),
        kinds.GENERATION_ANNOTATION: str(intent.rendered_generation),
        kinds.TEMPLATE_ANNOTATION: content_hash(template),
    }
    start_s = START_DEADLINE_S if action.launch is None else start_deadline_s(action.launch)
    # A rollout adds one pod first, or none where no device is free and old pods must go first.
    unavailable = action.max_unavailable
    rolling_update = {"maxUnavailable": unavailable, "maxSurge": 0 if unavailable else 1}
    spec = {
        "replicas": action.replicas,
        "revisionHistoryLimit": 2,
        # In a full pool a new pod waits until an old one has finished its requests.
        "progressDeadlineSeconds": intent.termination_grace_s + start_s + 60 + fetch_s(action.pin),
        "selector": {"matchLabels": selected},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": rolling_update},
        "template": template,
    }
    return _object(kinds.DEPLOYMENTS, owner, deployment_name(owner.name, shape), selected, annotations, spec)


def prometheus_rule(intent: Intent, settings: PrometheusRuleSettings) -> Object:
    """Return the PrometheusRule of an LLMDeployment that has an objective."""
    owner = owner_identity(intent)
    # The operator finds its objects by its own labels: no setting replaces them.
    labels = settings.labels | _labels(owner, "alerts")
    spec = {"groups": [rule_group(intent, settings.runbook_base_url)]}
    return _object(kinds.PROMETHEUS_RULES, owner, owner.name, labels, {}, spec)


def inspect_job(
    owner: Identity,
    key: FactsKey,
    settings: Settings,
    priority_class_name: str = "",
    secret: str = "",
    revision: str = "",
) -> Object:
    """Return the Job that reads a checkpoint and reports its facts in its termination message.

    `secret`, `revision`: what a repository is read with, and at, as `StartInspection` has them.
    """
    annotations = {kinds.MODEL_URI_ANNOTATION: key.uri, kinds.ENGINE_IMAGE_ANNOTATION: key.engine_image}
    pod = inspect_pod(key, settings, secret, revision)
    _set_priority_class(pod, priority_class_name)
    limits = {"backoffLimit": 2, "activeDeadlineSeconds": INSPECT_DEADLINE_S}
    return _job(owner, inspect_job_name(key), "inspect", annotations, limits, pod)


def fill_job(
    owner: Identity, key: ModelClaimKey, settings: Settings, priority_class_name: str = "", secret: str = ""
) -> Object:
    """Return the Job that fills a claim. An evicted pod of it does not count: the next one continues."""
    annotations = {kinds.MODEL_CLAIM_ANNOTATION: key_annotation(key)}
    pod = fill_pod(key, settings, secret)
    _set_priority_class(pod, priority_class_name)
    limits = {"backoffLimit": 6, "activeDeadlineSeconds": INSPECT_DEADLINE_S + fetch_s(key.pin)}
    return _job(owner, claim_name(key), "inspect", annotations, limits, pod)


def evaluate_job(intent: Intent, action: StartEvaluation, settings: Settings) -> Object:
    """Return the Job that evaluates a quantised format and reports the figures in its termination message."""
    annotations = {
        kinds.MODEL_URI_ANNOTATION: action.key.uri,
        kinds.ENGINE_IMAGE_ANNOTATION: settings.engine_image,
        kinds.EVALUATION_ANNOTATION: evaluation_annotation(action.key, action.shape.profile),
    }
    pod = evaluate_pod(intent, action, settings)
    _set_priority_class(pod, intent.priority_class_name)
    limits = {"backoffLimit": 1, "activeDeadlineSeconds": EVALUATE_DEADLINE_S + fetch_s(action.pin)}
    return _job(owner_identity(intent), evaluate_job_name(action.key), "evaluate", annotations, limits, pod)


def _job(
    owner: Identity, name: str, command: str, annotations: Object, limits: Object, pod: Object
) -> Object:
    """Return a Job of one container, named `command`, and perhaps one before it that fetches; it is not
    repeated once one of them exits with REJECTED.
    """
    labels = _labels(owner, command)
    names = [c["name"] for c in (*pod.get("initContainers", ()), *pod["containers"])]
    disrupted = {"type": "DisruptionTarget", "status": "True"}
    spec = limits | {
        "ttlSecondsAfterFinished": JOB_TTL_S,
        "podFailurePolicy": {
            "rules": [
                {"action": "Ignore", "onPodConditions": [disrupted]},
                *(
                    {
                        "action": "FailJob",
                        "onExitCodes": {"containerName": name, "operator": "In", "values": [REJECTED]},
                    }
                    for name in names
                ),
            ]
        },
        "template": {"metadata": {"labels": labels, "annotations": annotations}, "spec": pod},
    }
    return _object(kinds.JOBS, owner, name, labels, annotations, spec)


def shape_annotation(shape: Shape) -> str:
    """Return a shape as the JSON annotation of Deployments."""
    fields = asdict(shape)
    if shape.runtime == BUNDLED:
        del fields["runtime"]
    if shape.pipeline_parallel == 1:
        del fields["pipeline_parallel"]
    return json.dumps(fields, sort_keys=True)


def _set_priority_class(pod: Object, priority_class_name: str) -> None:
    if priority_class_name:
        pod["priorityClassName"] = priority_class_name


def with_hash_annotation(obj: Object) -> Object:
    """Add a hash of the manifest as annotation: it changes when a field is *removed* from the manifest."""
    obj["metadata"]["annotations"][kinds.RENDERED_ANNOTATION] = content_hash(obj)
    return obj


def content_hash(obj: Object) -> str:
    """Return a short hash of a manifest, or of a part of one."""
    return hashlib.sha256(json.dumps(obj, sort_keys=True).encode()).hexdigest()[:16]


def _object(
    kind: Kind, owner: Identity, name: str, labels: Object, annotations: Object, spec: Object
) -> Object:
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
    return with_hash_annotation(obj)


def _owner_reference(owner: Identity) -> Object:
    return {
        "apiVersion": kinds.LLM_DEPLOYMENTS.api_version,
        "kind": kinds.LLM_DEPLOYMENTS.kind,
        "name": owner.name,
        "uid": owner.uid,
        "controller": True,
        "blockOwnerDeletion": False,  # deleting an LLMDeployment never waits for its pods to drain
    }


def _labels(owner: Identity, component: str) -> dict[str, str]:
    return {MANAGED_BY_LABEL: MANAGED_BY, COMPONENT_LABEL: component, OWNER_LABEL: owner.name}
