"""What the operator may write of Deployments, Jobs and Services on a real API server: its own alone."""

import copy
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import yaml

from tangram.fleet import (
    ApplyDeployment,
    EvaluationKey,
    FactsKey,
    Launch,
    ModelClaimKey,
    Objective,
    PinnedRevision,
    SecretKey,
    Shape,
    Spread,
    StartEvaluation,
)
from tangram.kube import kinds
from tangram.kube.kinds import Identity
from tangram.shell.objects import manifests
from tangram.shell.objects.model_claims import model_claim
from tangram.shell.settings import Settings
from tests.chart.conftest import CHART, Cluster
from tests.chart.test_admission_policies import APPLY, MERGE, Caller, in_force, meta
from tests.shell.test_alert_rules_in_the_cluster import CRD as PROMETHEUS_RULE_CRD
from tests.shell.test_manifests import intent
from tests.support.runtimes import IMAGE as RUNTIME_IMAGE
from tests.support.runtimes import OTHERS, shipped

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(180)]

Object = dict[str, Any]
RELEASE, SYSTEM, TEAM = "rights-tangram", "rights", "rights-team"
IMAGE = "registry.example.com/team/tangram-engine"
LONG = ".".join(["a" * 61] * 4)
VALUES = {
    "image": {"registry": "registry.example.com/team"},
    "crds": {"enabled": False},  # they are there
    "priorityClasses": {"create": False},
    "partition": {"enabled": True},
    "models": {"volumeClaims": True, "proxy": "http://proxy:3128", "caBundle": "corporate"},
    "prometheusRule": {"perLLMDeployment": True, "labels": {"release": "kps"}},
    "runtimes": {"vllm": {"image": RUNTIME_IMAGE}},
    "engine": {
        "serviceAccountName": "engines",
        "imagePullSecrets": ["pull"],
        "runtimeClassName": "nvidia",
        "tolerations": [{"key": "dedicated", "operator": "Exists"}],
        "nodeRemoval": "Block",
        # As many as there may be, of the length that they may have: CEL has a budget of steps.
        "podMetadataKeys": ["team", "example.com/*", *(f"{LONG}.{number}/*" for number in range(62))],
    },
}
SLICE = Shape("H100-80GB-SXM", "1g.10gb", 1, "int4")
PRODUCTS = ("NVIDIA-H100-80GB-HBM3",)
OWNER = Identity(TEAM, "chat", "uid-1")
HUB, PIN = "hf://org/model", PinnedRevision("c" * 40, 16_000_000_000)
REGISTRY = "oci://registry.example.com/team/model"
CLAIM = ModelClaimKey(TEAM, HUB, PIN, "nfs")


def owner(uri: str = "image:///models/tiny", **changes: Any) -> Any:
    return replace(intent(uri), namespace=TEAM, **changes)


def owned(settings: Settings) -> dict[str, Object]:
    """Return all that the operator writes for an LLMDeployment, in every variant, by what it is."""
    keys = {"api_keys": SecretKey("keys", "clients.txt")}
    metadata = {"pod_labels": (("team", "ml"),), "pod_annotations": (("example.com/owner", "ml"),)}
    most = tuple((f"{LONG}.61/{'k' * 61}{number:02}", "v" * 63) for number in range(16))
    at = Shape("H100-80GB-SXM", "gpu")
    spread = Spread(0.5, 0.5)

    def deployment(one: Any, shape: Shape, **changes: Any) -> Object:
        action = ApplyDeployment("uid-1", shape, 2, PRODUCTS, 4096, **changes)
        return manifests.deployment(one, action, settings)

    def evaluation(uri: str) -> Object:
        key, pin = EvaluationKey(TEAM, uri, "d", SLICE.sku, "int4"), PIN if uri == HUB else None
        action = StartEvaluation("uid-1", key, SLICE, PRODUCTS, pin=pin)
        return manifests.evaluate_job(owner(uri, **secret), action, settings)

    secret = {"model_secret": "hub-token"}
    uris = {"image": "image:///models/tiny", "claim": "pvc://weights/llama", "hub": HUB}
    facts = {name: FactsKey(TEAM, uri, settings.engine_image) for name, uri in uris.items()}
    with_objectives = owner(ttft=Objective(99, 1000))
    made = {
        "engines of an image": deployment(owner(), at),
        "engines of a claim, with keys": deployment(owner(uris["claim"], **keys), SLICE, spread=spread),
        "engines of a hub": deployment(owner(HUB, **secret), at, pin=PIN),
        "engines of a public hub, with keys": deployment(owner(HUB, **keys), at, pin=PIN),
        "engines on two GPUs": deployment(owner(**keys), replace(at, tensor_parallel=2), max_unavailable=1),
        "engines of a class": deployment(owner(priority_class_name="high", **metadata), at),
        "engines with the most metadata": deployment(owner(pod_labels=most, pod_annotations=most), at),
        **{
            f"engines of {name}": deployment(
                owner(uris["claim"]), replace(at, runtime=name), launch=runtime_launch(name)
            )
            for name in OTHERS
        },
        **{
            f"engines of {name}, of a hub": deployment(
                owner(HUB, **secret), replace(at, runtime=name), pin=PIN, launch=runtime_launch(name)
            )
            for name in OTHERS
        },
        "engines of a registry": deployment(owner(REGISTRY, **secret), at, pin=PIN),
        "engines of a checkpoint on a claim": deployment(
            owner(HUB, **secret), at, pin=PIN, model_claim=CLAIM
        ),
        "claim of a checkpoint": model_claim(CLAIM, is_filled=False, unused_since=None),
        "job that fills a claim": manifests.fill_job(OWNER, CLAIM, settings, secret="hub-token"),
        "service": manifests.service(OWNER),
        "rule": manifests.prometheus_rule(with_objectives, settings.prometheus_rule),
        **{
            f"inspection of {name}": manifests.inspect_job(
                OWNER, key, settings, secret="hub-token" if key.uri == HUB else ""
            )
            for name, key in facts.items()
        },
        **{f"evaluation of {name}": evaluation(uri) for name, uri in uris.items()},
    }
    return {name: json.loads(json.dumps(obj)) for name, obj in made.items()}  # parts are shared otherwise


def runtime_launch(name: str) -> Launch:
    return Launch(shipped(name), 16 << 30, 2048, 0.9, 0.8)


def collection(obj: Object, namespace: str = "") -> str:
    """Return the path of the objects beside `obj`."""
    kind = next(
        one
        for one in vars(kinds).values()
        if isinstance(one, kinds.Kind) and (one.api_version, one.kind) == (obj["apiVersion"], obj["kind"])
    )
    return kind.path(namespace or obj["metadata"]["namespace"])


@pytest.fixture(scope="module")
def release(cluster: Cluster) -> Iterator[Cluster]:
    """A release with all options, and two namespaces: of a team, and of the release."""
    for namespace in (SYSTEM, TEAM):
        cluster.ok("kubectl", "create", "namespace", namespace)
    cluster.ok("kubectl", "create", "-f", "-", stdin=json.dumps(PROMETHEUS_RULE_CRD))
    cluster.ok(
        "kubectl", "wait", "--for=condition=Established", f"crd/{PROMETHEUS_RULE_CRD['metadata']['name']}"
    )
    cluster.ok("kubectl", "delete", "engineruntimes", "--all")  # of a release of other tests
    install = ("install", "rights", str(CHART), "--namespace", SYSTEM, "--values", "-")
    cluster.ok("helm", *install, stdin=json.dumps(VALUES))
    yield cluster
    cluster.ok("helm", "uninstall", "rights", "--namespace", SYSTEM, "--no-hooks")


@pytest.fixture(scope="module")
def settings(release: Cluster) -> Settings:
    """The settings that the operator of the release reads."""
    stored = release.ok("kubectl", "get", "configmap", RELEASE, "-n", SYSTEM, "-o", "json")
    return Settings.model_validate(yaml.safe_load(json.loads(stored)["data"]["config.yaml"]))


@pytest.fixture(scope="module")
def stored(release: Cluster, settings: Settings) -> dict[str, Object]:
    """What was written before the policies were asked: objects of the operator, and foreign ones."""
    made = owned(settings)
    objects = {"engines": made["engines of a claim, with keys"], "service": made["service"]}
    objects |= {"job": made["inspection of image"], "foreign": foreign_deployment(), "db": foreign_service()}
    for obj in objects.values():
        release.ok("kubectl", "create", "-f", "-", stdin=json.dumps(obj))
    template = objects["engines"]["spec"]["template"]
    for name, controller in (("rs", {"kind": "Deployment"}), ("rs-foreign", {"kind": "Other"})):
        release.ok("kubectl", "create", "-f", "-", stdin=json.dumps(replica_set(name, template, controller)))
    return objects


@pytest.fixture(scope="module")
def operator(release: Cluster, stored: dict[str, Object]) -> Caller:
    """The operator of the release, once each policy about it refuses something."""
    caller = Caller(release, RELEASE, namespace=SYSTEM)
    apps = f"/apis/apps/v1/namespaces/{TEAM}"
    in_force(caller, "engines", "DELETE", f"{apps}/deployments/foreign", release=RELEASE)
    in_force(
        caller, "services", "PATCH", f"/api/v1/namespaces/{TEAM}/services/db", {"spec": {}}, release=RELEASE
    )
    in_force(caller, "rollouts", "PATCH", f"{apps}/replicasets/rs-foreign", {"spec": {}}, release=RELEASE)
    for policy, obj in (
        ("jobs", {**stored["job"], "metadata": meta("other", TEAM)}),
        ("claims", foreign_claim()),
        ("lease", lease("other")),
        ("events", event(reportingController="kubelet")),
        ("rules", {**owned_rule(), "metadata": meta("other", TEAM)}),
    ):
        in_force(caller, policy, "POST", collection(obj), obj, "application/json", release=RELEASE)
    return caller


def foreign_deployment(name: str = "foreign", namespace: str = TEAM) -> Object:
    labels = {"app": name}
    pod = {"containers": [{"name": "c", "image": "i"}]}
    spec = {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod}}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta(name, namespace), "spec": spec}


def foreign_service() -> Object:
    spec = {"selector": {"app": "db"}, "ports": [{"port": 80}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": meta("db", TEAM), "spec": spec}


def foreign_claim() -> Object:
    return model_claim(CLAIM, is_filled=True, unused_since=0.0) | {"metadata": meta("weights", TEAM)}


def replica_set(name: str, template: Object, controller: Object) -> Object:
    reference = {"apiVersion": "apps/v1", "name": "o", "uid": "u", "controller": True} | controller
    labels = template["metadata"]["labels"]
    metadata = meta(name, TEAM, labels=labels, ownerReferences=[reference], annotations={DESIRED: "2"})
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": metadata, "spec": spec}


def lease(name: str) -> Object:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": meta(name, SYSTEM),
        "spec": {},
    }


def owned_rule() -> Object:
    return manifests.prometheus_rule(
        owner(ttft=Objective(99, 1000)), Settings(engine_image="i").prometheus_rule
    )


def event(**changes: Any) -> Object:
    about = {"apiVersion": "tangram.dev/v1alpha1", "kind": "LLMDeployment", "name": "chat", "namespace": TEAM}
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": meta("chat.1", TEAM),
        "eventTime": "2026-11-28T10:00:00.000000Z",
        "reportingController": "tangram.dev/operator",
        "reportingInstance": "a",
        "action": "Reconcile",
        "reason": "Placed",
        "type": "Normal",
        "note": "n",
        "regarding": about,
    } | changes


DESIRED = "deployment.kubernetes.io/desired-replicas"
VARIANTS = tuple(owned(Settings(engine_image=f"{IMAGE}:1")))


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_operator_creates_each_object_that_it_renders(
    operator: Caller, settings: Settings, variant: str
) -> None:
    obj = copy.deepcopy(owned(settings)[variant])
    obj["metadata"]["name"] += "-new"
    annotations = obj["metadata"].get("annotations", {})
    obj["metadata"]["annotations"] = {name: text for name, text in annotations.items() if text is not None}

    assert operator.call("POST", collection(obj), obj) == ""


def test_the_operator_writes_what_it_has_written_before(
    operator: Caller, settings: Settings, stored: Any
) -> None:
    made = owned(settings)
    deployment = copy.deepcopy(made["engines of a class"])
    deployment["metadata"]["name"] = stored["engines"]["metadata"]["name"]
    deployment["spec"]["selector"] = stored["engines"]["spec"]["selector"]  # it is immutable
    deployment["spec"]["template"]["metadata"]["labels"] |= stored["engines"]["spec"]["selector"][
        "matchLabels"
    ]
    path = f"{collection(deployment)}/{deployment['metadata']['name']}"

    assert operator.call("PATCH", path, deployment, APPLY) == ""
    assert operator.call("PATCH", path, {"spec": {"replicas": 0}}, MERGE) == ""
    assert operator.call("DELETE", path) == ""
    assert operator.call("PATCH", f"{collection(made['service'])}/chat", made["service"], APPLY) == ""
    job = stored["job"]
    assert operator.call("DELETE", f"{collection(job)}/{job['metadata']['name']}") == ""
    annotations = {"metadata": {"annotations": {DESIRED: "1"}}}
    assert operator.call("PATCH", f"/apis/apps/v1/namespaces/{TEAM}/replicasets/rs", annotations, MERGE) == ""
    assert operator.call("POST", collection(event()), event()) == ""
    assert operator.call("POST", collection(lease(RELEASE)), lease(RELEASE)) == ""


def test_replicas_of_an_older_template_are_stopped_and_containers_of_others_are_left(
    release: Cluster, operator: Caller, settings: Settings
) -> None:
    """After an upgrade with another registry, or where a person has added a container to engines."""
    old = copy.deepcopy(owned(settings)["engines of an image"])
    old["metadata"]["name"] = "chat-old"
    pod = old["spec"]["template"]["spec"]
    pod["containers"][0]["image"] = "old.example.com/engine:1"
    pod["containers"].append({"name": "sidecar", "image": "proxy"})
    release.ok("kubectl", "create", "-f", "-", stdin=json.dumps(old))
    path = f"{collection(old)}/chat-old"

    assert operator.call("PATCH", path, {"spec": {"replicas": 0}}, MERGE) == ""
    assert operator.call("DELETE", path) == ""
    changed = {"spec": {"template": {"metadata": {"annotations": {"tangram.dev/x": "y"}}}}}
    assert "must have one container" in operator.call("PATCH", path, changed, MERGE)


TEMPLATE, POD = ("spec", "template", "metadata"), ("spec", "template", "spec")
CONTAINER = (*POD, "containers", 0)
SECURITY = (*CONTAINER, "securityContext")
HOST_PATH = {"name": "tmp", "hostPath": {"path": "/"}}
TOKEN = {"name": "tmp", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}
SECRET = {"name": "tmp", "secret": {"secretName": "db"}}
KEYS = {"name": "api-keys", "secret": {"secretName": "db", "items": [{"key": "a", "path": "api-keys"}]}}
OTHER = {"name": "other", "image": f"{IMAGE}:1"}
HOSTS_PORT = [{"name": "http", "containerPort": 8000, "hostPort": 80}]
ATTACKS: tuple[tuple[tuple[Any, ...], Any, str], ...] = (
    (("metadata", "ownerReferences"), [], "must name an LLMDeployment as controller"),
    (("metadata", "ownerReferences", 0, "controller"), False, "must name an LLMDeployment as controller"),
    (("metadata", "ownerReferences", 0, "kind"), "Other", "must name an LLMDeployment as controller"),
    (("metadata", "ownerReferences", 0, "apiVersion"), "tangram.dev.evil.com/v1", "as controller"),
    (("metadata", "labels", "app.kubernetes.io/managed-by"), "other", "must have the label"),
    (("metadata", "labels", "app"), "db", "of the labels of"),
    (("metadata", "annotations", "linkerd.io/inject"), "enabled", "of the annotations of"),
    ((*TEMPLATE, "labels", "app"), "db", "of the labels of pods"),
    ((*TEMPLATE, "labels", "a.example.com/owner"), "a", "of the labels of pods"),
    ((*TEMPLATE, "annotations", "conjur.org/inject"), "true", "of the annotations of pods"),
    ((*TEMPLATE, "annotations", "example.com.evil/owner"), "a", "of the annotations of pods"),
    ((*POD, "hostNetwork"), True, "host namespaces"),
    ((*POD, "hostPID"), True, "host namespaces"),
    ((*POD, "hostIPC"), True, "host namespaces"),
    ((*POD, "hostUsers"), False, "host namespaces"),
    ((*POD, "shareProcessNamespace"), True, "host namespaces"),
    ((*POD, "nodeName"), "control-plane", "node name"),
    ((*POD, "nodeSelector"), {"a": "b"}, "fields that"),
    ((*POD, "hostAliases"), [{"ip": "1.1.1.1", "hostnames": ["a"]}], "fields that"),
    ((*POD, "initContainers"), [OTHER], "may run one container alone: fetch, headers or await"),
    ((*POD, "automountServiceAccountToken"), True, "no token of a ServiceAccount"),
    ((*POD, "serviceAccountName"), "mig-tangram-agent", "no ServiceAccount but"),
    ((*POD, "imagePullSecrets"), [{"name": "registry"}], "no pull secrets but"),
    ((*POD, "runtimeClassName"), "kata", "no RuntimeClass but"),
    ((*POD, "priorityClassName"), "system-node-critical", "no PriorityClass of the system"),
    ((*POD, "schedulerName"), "evil", "no other scheduler"),
    ((*POD, "dnsPolicy"), "Default", "no other DNS policy"),
    ((*POD, "securityContext"), {}, "the security context of engine pods"),
    ((*POD, "securityContext", "runAsNonRoot"), False, "the security context of engine pods"),
    ((*POD, "securityContext", "sysctls"), [{"name": "kernel.shm", "value": "1"}], "the security context"),
    ((*POD, "securityContext", "seccompProfile"), {"type": "Unconfined"}, "the security context"),
    ((*POD, "containers", 1), OTHER, "must have one container"),
    ((*CONTAINER, "command"), ["sh", "-c", "id"], "no command"),
    ((*CONTAINER, "env"), [{"name": "LD_PRELOAD", "value": "/mnt/model/x.so"}], "environment"),
    ((*CONTAINER, "envFrom"), [{"secretRef": {"name": "db"}}], "environment"),
    ((*CONTAINER, "lifecycle"), {"postStart": {"exec": {"command": ["id"]}}}, "lifecycle hook"),
    ((*CONTAINER, "stdin"), True, "other field"),
    ((*CONTAINER, "image"), "evil.example.com/miner:1", "of the image"),
    ((*CONTAINER, "image"), f"{IMAGE}-evil:1", "of the image"),
    ((*CONTAINER, "image"), f"{IMAGE}/evil:1", "of the image"),
    ((*CONTAINER, "args"), ["evil"], "of the image"),
    ((*CONTAINER, "args"), [], "of the image"),
    (SECURITY, {}, "no privileges"),
    (SECURITY, {"privileged": True}, "no privileges"),
    ((*SECURITY, "allowPrivilegeEscalation"), True, "no privileges"),
    ((*SECURITY, "readOnlyRootFilesystem"), False, "no privileges"),
    ((*SECURITY, "runAsUser"), 0, "no privileges"),
    ((*SECURITY, "capabilities"), {"drop": ["ALL"], "add": ["SYS_ADMIN"]}, "no capabilities"),
    ((*SECURITY, "seccompProfile"), {"type": "Unconfined"}, "no privileges"),
    ((*CONTAINER, "ports"), HOSTS_PORT, "no ports of the host"),
    ((*POD, "resourceClaims"), [{"name": "a", "resourceClaimName": "b"}], "fields that"),
    ((*CONTAINER, "livenessProbe"), {"exec": {"command": ["id"]}}, "probes of HTTP alone"),
    ((*CONTAINER, "startupProbe"), {"httpGet": {"port": 80, "host": "169.254.169.254"}}, "probes of HTTP"),
    ((*POD, "volumes", 0), HOST_PATH, "no volumes but"),
    ((*POD, "volumes", 0), TOKEN, "no volumes but"),
    ((*POD, "volumes", 0), {"name": "tmp", "configMap": {"name": "a"}}, "no volumes but"),
    (
        (*POD, "volumes", 0),
        {"name": "tmp", "persistentVolumeClaim": {"claimName": "a"}},
        "claims that they read",
    ),
    ((*POD, "volumes", 0), SECRET, "Secret"),
    ((*CONTAINER, "volumeMounts", 0, "mountPath"), "/opt/venv/lib", "in its place"),
    ((*CONTAINER, "volumeMounts", 0, "subPath"), "a", "in its place"),
)
OF_DEPLOYMENTS: tuple[tuple[tuple[Any, ...], Any, str], ...] = (
    (
        ("spec", "selector"),
        {"matchLabels": {"tangram.dev/llmdeployment": "chat"}},
        "may select engine pods alone",
    ),
    (
        ("spec", "selector", "matchExpressions"),
        [{"key": "app", "operator": "DoesNotExist"}],
        "engine pods alone",
    ),
    ((*POD, "volumes", 4), KEYS | {"name": "other"}, "one key, read-only"),
    ((*POD, "volumes", 3, "secret"), {"secretName": "db"}, "one key, read-only"),
    ((*POD, "volumes", 3, "secret", "items", 1), {"key": "b", "path": "b"}, "one key, read-only"),
    ((*POD, "volumes", 3, "secret", "items", 0, "path"), "config.json", "one key, read-only"),
    ((*CONTAINER, "volumeMounts", 3, "readOnly"), False, "one key, read-only"),
    ((*CONTAINER, "args"), ["inspect", "--model", "/mnt/model"], "must run serve"),
)
FETCH = (*POD, "initContainers", 0)
OF_FETCHES: tuple[tuple[tuple[Any, ...], Any, str], ...] = (
    ((*POD, "initContainers", 1), OTHER, "one container alone"),
    ((*FETCH, "image"), "evil.example.com/fetch:1", "one container alone"),
    ((*FETCH, "image"), f"{IMAGE}:1", "one container alone"),
    ((*FETCH, "args", 0), "evil", "one container alone"),
    ((*FETCH, "command"), ["sh"], "one container alone"),
    ((*FETCH, "env"), [{"name": "HF_TOKEN", "value": "a"}], "one container alone"),
    ((*FETCH, "restartPolicy"), "Always", "one container alone"),
    ((*FETCH, "securityContext", "allowPrivilegeEscalation"), True, "one container alone"),
    ((*FETCH, "securityContext"), {"privileged": True}, "one container alone"),
    ((*FETCH, "securityContext", "readOnlyRootFilesystem"), False, "one container alone"),
    ((*FETCH, "volumeMounts", 0, "mountPath"), "/opt/venv", "one container alone"),
    ((*FETCH, "volumeMounts", 1, "subPath"), "a", "one container alone"),
    (
        (*POD, "volumes", 2, "secret", "items", 0),
        {"key": "password", "path": "password"},
        "of a hub, a store or a registry alone",
    ),
    ((*POD, "volumes", 2, "secret", "items", 0, "path"), "other", "of a hub, a store or a registry alone"),
    ((*POD, "volumes", 2, "secret"), {"secretName": "db"}, "of a hub, a store or a registry alone"),
    (
        (*CONTAINER, "volumeMounts", 0),
        {"name": "source-secret", "mountPath": "/tmp"},  # noqa: S108
        "mounted where a model is fetched",
    ),
)
OF_JOBS: tuple[tuple[tuple[Any, ...], Any, str], ...] = (
    ((*POD, "volumes", 0), KEYS | {"name": "tmp"}, "may mount no Secret"),
    ((*CONTAINER, "args"), ["serve"], "must run inspect or evaluate"),
)
OF_SERVICES: tuple[tuple[tuple[Any, ...], Any, str], ...] = (
    *ATTACKS[:7],
    (("spec", "externalIPs"), ["10.0.0.1"], "no external addresses"),
    (("spec", "type"), "LoadBalancer", "of the type ClusterIP"),
    (("spec", "type"), "NodePort", "of the type ClusterIP"),
    (("spec",), {"type": "ExternalName", "externalName": "evil.example.com"}, "of the type ClusterIP"),
    (("spec", "selector"), {"app": "db"}, "select engine pods"),
    (("spec", "selector"), {}, "select engine pods"),
    (("spec", "publishNotReadyAddresses"), True, "other fields"),
)
BY_VARIANT = (
    ("engines of an image", ATTACKS),
    ("engines of a claim, with keys", OF_DEPLOYMENTS),
    ("engines of a hub", OF_FETCHES),
    ("inspection of claim", (*ATTACKS, *OF_JOBS)),
    ("inspection of hub", OF_FETCHES),
    ("evaluation of image", OF_JOBS),
    ("service", OF_SERVICES),
)


def attacked(obj: Object, path: tuple[Any, ...], value: Any) -> Object:
    """Return a copy of an object with another value at a path; a list grows by one at most."""
    copied: Any = copy.deepcopy(obj)
    part = copied
    for key in path[:-1]:
        part = part[key] if isinstance(part, list) else part.setdefault(key, {})
    if isinstance(part, list) and path[-1] == len(part):
        part.append(value)
    else:
        part[path[-1]] = value
    return copied


@pytest.mark.parametrize(
    ("variant", "path", "value", "reason"),
    [(variant, *attack) for variant, attacks in BY_VARIANT for attack in attacks],
    ids=str,
)
def test_the_operator_creates_no_object_with_other_rights(
    operator: Caller, settings: Settings, variant: str, path: Any, value: Any, reason: str
) -> None:
    obj = attacked(owned(settings)[variant], path, value)
    obj["metadata"]["name"] = "attack"
    refusal = operator.call("POST", collection(obj), obj)
    assert "ValidatingAdmissionPolicy" in refusal
    assert reason in refusal


RUNTIME_ATTACKS: tuple[tuple[tuple[Any, ...], Any, str], ...] = (
    ((*CONTAINER, "image"), "registry.example.com/other@sha256:" + "0" * 64, "no command, environment"),
    ((*CONTAINER, "image"), RUNTIME_IMAGE.replace("0", "1"), "no command, environment"),
    ((*CONTAINER, "envFrom"), [{"secretRef": {"name": "db"}}], "no command, environment"),
    (
        (*CONTAINER, "env", 0),
        {"name": "A", "valueFrom": {"secretKeyRef": {"name": "db", "key": "a"}}},
        "plain values alone",
    ),
    (
        (*CONTAINER, "env", 0),
        {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.serviceAccountName"}}},
        "plain values alone",
    ),
    ((*CONTAINER, "lifecycle"), {"preStop": {"exec": {"command": ["sh"]}}}, "no hook but a sleep"),
    ((*CONTAINER, "lifecycle"), {"postStart": {"sleep": {"seconds": 1}}}, "no hook but a sleep"),
    ((*CONTAINER, "securityContext", "allowPrivilegeEscalation"), True, "no privileges"),
    ((*CONTAINER, "securityContext", "capabilities"), {"add": ["SYS_ADMIN"]}, "no privileges"),
    ((*POD, "volumes", 0), HOST_PATH, "no volumes but empty ones"),
    ((*POD, "initContainers", 0, "image"), RUNTIME_IMAGE, "fetch, headers or await of the image"),
    ((*POD, "initContainers", 0, "env"), [{"name": "A", "value": "b"}], "fetch, headers or await of"),
    ((*POD, "initContainers", 0, "command"), ["sh"], "fetch, headers or await of the image"),
    ((*CONTAINER, "volumeMounts", 0, "name"), "source-secret", "where a model is fetched, and nowhere else"),
)


@pytest.mark.parametrize(("path", "value", "message"), RUNTIME_ATTACKS)
def test_pods_of_runtimes_have_no_other_rights_than_engine_pods(
    operator: Caller, settings: Settings, path: tuple[Any, ...], value: Any, message: str
) -> None:
    obj = attacked(owned(settings)["engines of vllm, of a hub"], path, value)
    obj["metadata"]["name"] = "attack-on-runtime"

    assert message in operator.call("POST", collection(obj), obj)


def test_the_release_brings_the_runtimes_of_which_one_is_on(release: Cluster) -> None:
    listed = json.loads(release.ok("kubectl", "get", "engineruntimes", "-o", "json"))["items"]

    images = {item["metadata"]["name"]: item["spec"].get("image", "") for item in listed}
    assert images == {"tangram": "", "vllm": RUNTIME_IMAGE, "sglang": "", "nim": ""}


def test_a_job_does_not_take_pods_of_others(operator: Caller, settings: Settings) -> None:
    job = attacked(owned(settings)["inspection of image"], ("spec", "manualSelector"), True)
    job["metadata"]["name"] = "attack"
    job["spec"]["selector"] = {"matchLabels": {"app.kubernetes.io/managed-by": "tangram"}}

    assert "may not select pods of others" in operator.call("POST", collection(job), job)


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [attack for attack in ATTACKS if attack[0][:2] == ("spec", "template")],
    ids=str,
)
def test_the_operator_gives_no_deployment_of_its_own_other_rights(
    operator: Caller, stored: dict[str, Object], path: Any, value: Any, reason: str
) -> None:
    live = stored["engines"]
    template = attacked(live, path, value)["spec"]["template"]
    patch = [{"op": "replace", "path": "/spec/template", "value": template}]
    name = live["metadata"]["name"]

    assert reason in operator.call(
        "PATCH", f"{collection(live)}/{name}", patch, "application/json-patch+json"
    )


DEPLOYMENTS_OF_TEAM = f"/apis/apps/v1/namespaces/{TEAM}/deployments"
REPLICA_SETS = f"/apis/apps/v1/namespaces/{TEAM}/replicasets"
SERVICES = f"/api/v1/namespaces/{TEAM}/services"
CLAIMED = {"metadata": {"ownerReferences": [{**manifests.service(OWNER)["metadata"]["ownerReferences"][0]}]}}
FOREIGN = "change and delete those alone"


@pytest.mark.parametrize(
    ("method", "path", "body", "reason"),
    [
        ("PATCH", f"{DEPLOYMENTS_OF_TEAM}/foreign", {"spec": {"replicas": 0}}, FOREIGN),
        ("PATCH", f"{DEPLOYMENTS_OF_TEAM}/foreign", CLAIMED, FOREIGN),
        ("DELETE", f"{DEPLOYMENTS_OF_TEAM}/foreign", None, FOREIGN),
        ("DELETE", f"/apis/apps/v1/namespaces/{SYSTEM}/deployments/{RELEASE}", None, FOREIGN),
        ("PATCH", f"{SERVICES}/db", {"spec": {"externalIPs": ["10.0.0.1"]}}, FOREIGN),
        (
            "PATCH",
            "/api/v1/namespaces/default/services/kubernetes",
            {"spec": {"externalIPs": ["10.0.0.1"]}},
            FOREIGN,
        ),
        ("PATCH", f"{SERVICES}/chat", {"spec": {"externalIPs": ["10.0.0.1"]}}, "no external addresses"),
        ("PATCH", f"{SERVICES}/chat", {"spec": {"type": "LoadBalancer"}}, "of the type ClusterIP"),
        (
            "PATCH",
            f"{SERVICES}/chat",
            {"spec": {"selector": {"app.kubernetes.io/managed-by": None}}},
            "select engine",
        ),
        (
            "PATCH",
            f"{SERVICES}/chat",
            {"metadata": {"annotations": {"tailscale.com/expose": "true"}}},
            "annotations",
        ),
        ("PATCH", f"{SERVICES}/chat", {"metadata": {"ownerReferences": None}}, "name an LLMDeployment"),
        (
            "PATCH",
            f"{REPLICA_SETS}/rs-foreign",
            {"metadata": {"annotations": {DESIRED: "1"}}},
            "of engines alone",
        ),
        (
            "PATCH",
            f"{REPLICA_SETS}/rs",
            {"metadata": {"annotations": {"a": "b"}}},
            "ReplicaSet's annotations",
        ),
        ("PATCH", f"{REPLICA_SETS}/rs", {"metadata": {"labels": {"a": "b"}}}, "ReplicaSet's metadata"),
        ("PATCH", f"{REPLICA_SETS}/rs", {"spec": {"replicas": 9}}, "spec of a ReplicaSet"),
        (
            "PATCH",
            f"{REPLICA_SETS}/rs",
            {"spec": {"template": {"spec": {"hostPID": True}}}},
            "spec of a ReplicaSet",
        ),
        ("PATCH", f"{DEPLOYMENTS_OF_TEAM}/foreign/scale", {"spec": {"replicas": 0}}, "is forbidden: User"),
        ("PATCH", f"{DEPLOYMENTS_OF_TEAM}/foreign/status", {"status": {}}, "is forbidden: User"),
        ("DELETE", DEPLOYMENTS_OF_TEAM, None, "is forbidden: User"),
        ("POST", f"/api/v1/namespaces/{TEAM}/pods", {"metadata": {"name": "a"}}, "is forbidden: User"),
    ],
    ids=str,
)
def test_the_operator_changes_nothing_else(
    operator: Caller, method: str, path: str, body: Any, reason: str
) -> None:
    kind = MERGE if method == "PATCH" else "application/json"
    assert reason in operator.call(method, path, body, kind)


@pytest.mark.parametrize(
    "changes",
    [
        {"reportingController": "kubelet"},
        {"regarding": {"apiVersion": "v1", "kind": "Pod", "name": "a", "namespace": TEAM}},
    ],
    ids=str,
)
def test_the_operator_writes_no_event_of_others(operator: Caller, changes: Object) -> None:
    obj = event(**changes)
    assert "its own Events alone" in operator.call("POST", collection(obj), obj)


def test_with_watched_namespaces_the_policies_are_the_same(release: Cluster) -> None:
    def policies(*values: str) -> list[Object]:
        shown = ("--show-only", "templates/workload-policies.yaml", "--set", "image.registry=r.example.com")
        printed = release.ok("helm", "template", "t", str(CHART), *shown, *values)
        return list(yaml.safe_load_all(printed))

    assert policies("--set", "watchNamespaces={a}") == policies() != []


POD_OWNER = {"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "b"}
CLAIM_ATTACKS: tuple[tuple[tuple[Any, ...], Any, str], ...] = (
    (("metadata", "name"), "weights", "claims that hold checkpoints alone"),
    (("metadata", "labels", "app.kubernetes.io/managed-by"), "other", "claims that hold checkpoints alone"),
    (("metadata", "labels", "app.kubernetes.io/component"), "db", "claims that hold checkpoints alone"),
    (("metadata", "labels", "app"), "db", "of the labels of"),
    (("metadata", "annotations", "volume.kubernetes.io/selected-node"), "n1", "of the annotations of"),
    (
        ("metadata", "ownerReferences"),
        [{"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "b"}],
        "owners",
    ),
    (("spec", "volumeName"), "of-a-neighbour", "no volume, data source"),
    (("spec", "dataSource"), {"kind": "PersistentVolumeClaim", "name": "db"}, "no volume, data source"),
    (("spec", "dataSourceRef"), {"kind": "PersistentVolumeClaim", "name": "db"}, "no volume, data source"),
    (("spec", "volumeMode"), "Block", "no volume, data source"),
    (("spec", "selector"), {"matchLabels": {"a": "b"}}, "no volume, data source"),
)


@pytest.mark.parametrize(("path", "value", "reason"), CLAIM_ATTACKS)
def test_claims_hold_checkpoints_and_nothing_else(
    operator: Caller, settings: Settings, path: tuple[Any, ...], value: Any, reason: str
) -> None:
    obj = copy.deepcopy(owned(settings)["claim of a checkpoint"])
    obj["metadata"]["annotations"] = {}
    place: Any = obj
    for key in path[:-1]:
        place = place.setdefault(key, {})
    place[path[-1]] = value
    assert reason in operator.call("POST", collection(obj), obj)


def test_claims_of_others_are_neither_changed_nor_deleted(release: Cluster, operator: Caller) -> None:
    obj = foreign_claim()
    release.ok("kubectl", "create", "-f", "-", stdin=json.dumps(obj))
    path = f"{collection(obj)}/{obj['metadata']['name']}"
    labels = {"metadata": {"labels": {"app.kubernetes.io/managed-by": "tangram"}}}
    assert "claims that hold checkpoints alone" in operator.call("PATCH", path, labels, MERGE)
    assert "claims that hold checkpoints alone" in operator.call("DELETE", path)


def test_only_the_job_of_a_claim_writes_to_it(operator: Caller, settings: Settings) -> None:
    for name, claim in (("engines of a checkpoint on a claim", None), ("job that fills a claim", "weights")):
        obj = copy.deepcopy(owned(settings)[name])
        (volume,) = (v for v in obj["spec"]["template"]["spec"]["volumes"] if v["name"] == "model")
        volume["persistentVolumeClaim"] = {"claimName": claim or volume["persistentVolumeClaim"]["claimName"]}
        assert "claims that they read" in operator.call("POST", collection(obj), obj)
