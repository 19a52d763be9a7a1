"""The kinds of objects that the operator reads and writes, their API paths, labels and owner references."""

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import quote

from tangram.api.common.base import GROUP
from tangram.fleet.labels import MANAGED_BY, MANAGED_BY_LABEL

Object: TypeAlias = dict[str, Any]
"""A Kubernetes object as parsed from JSON."""

Key: TypeAlias = tuple[str, str]
"""(namespace, name); the namespace is empty for cluster-scoped objects."""

NAME_LABEL = "app.kubernetes.io/name"
INSTANCE_LABEL = "app.kubernetes.io/instance"
PART_OF_LABEL = "app.kubernetes.io/part-of"
SKU_LABEL = "tangram.dev/sku"
RUNTIME_LABEL = "tangram.dev/runtime"
PROFILE_LABEL = "tangram.dev/profile"
PRECISION_LABEL = "tangram.dev/precision"
OPERATOR_LABEL = "tangram.dev/operator"
VARIANT_LABEL = "tangram.dev/variant"
TEMPLATE_LABEL = "pod-template-hash"  # set by the Deployment controller on ReplicaSets and pods
SHAPE_ANNOTATION = "tangram.dev/shape"
RENDERED_ANNOTATION = "tangram.dev/rendered"
TEMPLATE_ANNOTATION = "tangram.dev/rendered-template"
MODEL_URI_ANNOTATION = "tangram.dev/model-uri"
ENGINE_IMAGE_ANNOTATION = "tangram.dev/engine-image"
MODEL_CLAIM_ANNOTATION = "tangram.dev/model-claim"
FILLED_ANNOTATION = "tangram.dev/filled"
UNUSED_ANNOTATION = "tangram.dev/unused-since"
EVALUATION_ANNOTATION = "tangram.dev/evaluation"
GENERATION_ANNOTATION = "tangram.dev/generation"
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"  # the pod with the lowest one goes first
# How Karpenter, EKS, GKE and AKS mark a node that may be reclaimed at short notice; values in lower case.
SPOT_LABELS = (
    ("karpenter.sh/capacity-type", "spot"),
    ("eks.amazonaws.com/capacityType", "spot"),
    ("cloud.google.com/gke-spot", "true"),
    ("cloud.google.com/gke-preemptible", "true"),
    ("kubernetes.azure.com/scalesetpriority", "spot"),
)
HOST_LABEL = "kubernetes.io/hostname"

OURS_SELECTOR = f"{MANAGED_BY_LABEL}={MANAGED_BY}"


@dataclass(frozen=True, slots=True)
class Kind:
    """One resource of the API."""

    group: str  # "" for the core group
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """`apiVersion` of its objects."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """URL path of a collection (no name), an object, or a subresource of it."""
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        parts += [part for part in (self.plural, name, subresource) if part]
        return "/" + "/".join(quote(part, safe=".:") for part in parts)


LLM_DEPLOYMENTS = Kind(GROUP, "v1alpha1", "llmdeployments", "LLMDeployment")
GPU_POOLS = Kind(GROUP, "v1alpha1", "gpupools", "GPUPool", namespaced=False)
GPU_NODES = Kind(GROUP, "v1alpha1", "gpunodes", "GPUNode", namespaced=False)
ENGINE_RUNTIMES = Kind(GROUP, "v1alpha1", "engineruntimes", "EngineRuntime", namespaced=False)
FLEET_PLANS = Kind(GROUP, "v1alpha1", "fleetplans", "FleetPlan", namespaced=False)
CLUSTER_POLICIES = Kind("nvidia.com", "v1", "clusterpolicies", "ClusterPolicy", namespaced=False)
CONFIG_MAPS = Kind("", "v1", "configmaps", "ConfigMap")
NODES = Kind("", "v1", "nodes", "Node", namespaced=False)
PODS = Kind("", "v1", "pods", "Pod")
RESOURCE_QUOTAS = Kind("", "v1", "resourcequotas", "ResourceQuota")
SERVICES = Kind("", "v1", "services", "Service")
ENDPOINT_SLICES = Kind("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice")
MODEL_CLAIMS = Kind("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")  # the operator's own
DEPLOYMENTS = Kind("apps", "v1", "deployments", "Deployment")
REPLICA_SETS = Kind("apps", "v1", "replicasets", "ReplicaSet")
PRIORITY_CLASSES = Kind("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False)
# Quota of Kueue: its amounts count for pods that it admits, by the labels of nodes.
CLUSTER_QUEUES = Kind("kueue.x-k8s.io", "v1beta1", "clusterqueues", "ClusterQueue", namespaced=False)
RESOURCE_FLAVORS = Kind("kueue.x-k8s.io", "v1beta1", "resourceflavors", "ResourceFlavor", namespaced=False)
# Of the Prometheus Operator, where it is installed.
PROMETHEUS_RULES = Kind("monitoring.coreos.com", "v1", "prometheusrules", "PrometheusRule")
JOBS = Kind("batch", "v1", "jobs", "Job")
LEASES = Kind("coordination.k8s.io", "v1", "leases", "Lease")
EVENTS = Kind("events.k8s.io", "v1", "events", "Event")


def key_of(obj: Object) -> Key:
    """Return (namespace, name) of an object."""
    meta = obj["metadata"]
    return meta.get("namespace", ""), meta["name"]


def uid_of(obj: Object) -> str:
    """Return the UID of an object, empty when it has none yet."""
    return str(obj.get("metadata", {}).get("uid", ""))


def annotations_of(obj: Object) -> dict[str, str]:
    """Return an object's annotations."""
    return obj.get("metadata", {}).get("annotations") or {}


def labels_of(obj: Object) -> dict[str, str]:
    """Return an object's labels."""
    return obj.get("metadata", {}).get("labels") or {}


class Identity(NamedTuple):
    """An owner as an owner reference names it. References never cross namespaces, and the garbage collector
    deletes an object whose owner has another name or UID.
    """

    namespace: str
    name: str
    uid: str


def identity_of(obj: Object) -> Identity:
    """Return the identity of an object."""
    return Identity(*key_of(obj), uid_of(obj))


def controller_of(obj: Object) -> Object | None:
    """Return the owner reference marked as controller, None where there is none, or more than one."""
    references = obj.get("metadata", {}).get("ownerReferences") or ()
    controllers = [ref for ref in references if ref.get("controller") is True]
    return controllers[0] if len(controllers) == 1 else None


def is_controlled_by(obj: Object, kind: Kind) -> bool:
    """Say whether the controller of `obj` is of this kind, in whatever version."""
    ref = controller_of(obj)
    if ref is None or ref.get("kind") != kind.kind:
        return False
    return str(ref.get("apiVersion", "")).partition("/")[0] == kind.group


def owner_of(obj: Object) -> Identity | None:
    """Return the LLMDeployment in the controller reference of an object, None where there is none.

    Any author of the object may write that reference: it counts only where such an LLMDeployment exists.
    """
    ref = controller_of(obj)
    if ref is None or not is_controlled_by(obj, LLM_DEPLOYMENTS):
        return None
    name, uid = str(ref.get("name", "")), str(ref.get("uid", ""))
    return Identity(key_of(obj)[0], name, uid) if name and uid else None
