"""Values of the chart that are not settings of the operator: images, the node agent, monitors, rights.

`charts/generate.py` writes the schema of all values. The defaults of these are in values.yaml alone.
"""

from typing import Annotated, Any, Literal, Required

from pydantic import ConfigDict, Field, StrictBool, WithJsonSchema
from typing_extensions import TypedDict

from tangram.api.common.labels import LABEL_KEY, LABEL_VALUE, LONGEST_KEY, LONGEST_NAME
from tangram.api.common.values import PoolName
from tangram.api.engine_runtime import IMAGE_PATTERN, FlagName, VariableName
from tangram.api.pool import GPUPoolSpec
from tangram.shell.setting_types import (
    Name,
    NameOrEmpty,
    Namespace,
    PodToleration,
    Port,
    Quantity,
    UserID,
)

REGISTRY = r"^[A-Za-z0-9][A-Za-z0-9.-]*(:[0-9]+)?(/[a-z0-9]+([._-][a-z0-9]+)*)*/?$"
# Validators print it for an empty registry, as the value that they expected.
REGISTRY_HELP = (
    "the registry that holds your images: --set image.registry=registry.example.com/team "
    "(build and push them with: make images push REGISTRY=registry.example.com/team)"
)


LabelKey = Annotated[str, Field(pattern=LABEL_KEY, max_length=LONGEST_KEY)]
LabelValue = Annotated[str, Field(pattern=LABEL_VALUE)]
NamespaceOrEmpty = Annotated[str, Field(pattern=r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$", max_length=63)]
SecretKey = Annotated[str, Field(pattern=r"^[-._a-zA-Z0-9]*$", max_length=LONGEST_NAME)]
Interval = Annotated[str, Field(pattern=r"^[1-9][0-9]*(ms|s|m)$")]
Percentage = Annotated[str, Field(pattern=r"^[1-9][0-9]?%$|^100%$")]
Directory = Annotated[str, Field(pattern=r"^/[A-Za-z0-9._/-]*[A-Za-z0-9._-]$")]
Repository = Annotated[str, Field(pattern=r"^[a-z0-9]+([._/-][a-z0-9]+)*$")]
Tag = Annotated[str, Field(pattern=r"^([A-Za-z0-9_][A-Za-z0-9._-]{0,127})?$")]
Digest = Annotated[str, Field(pattern=r"^(sha256:[0-9a-f]{64})?$")]
Registry = Annotated[
    str, WithJsonSchema({"type": "string", "anyOf": [{"pattern": REGISTRY}, {"const": REGISTRY_HELP}]})
]
RuntimeName = Annotated[str, Field(pattern=r"^(tangram|vllm|sglang|nim)$")]
RuntimeImage = Annotated[str, Field(pattern=IMAGE_PATTERN, max_length=512)]
RuntimeImageOrEmpty = Annotated[str, Field(pattern=f"^$|{IMAGE_PATTERN}", max_length=512)]
ChartName = Annotated[str, Field(pattern=r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$", max_length=52)]
NamePrefix = Annotated[str, Field(pattern=r"^([a-z]([-a-z0-9]*[a-z0-9])?)?$", max_length=52)]


ISSUER_REF = {
    "type": "object",
    "propertyNames": {"enum": ["name", "kind", "group"]},
    "additionalProperties": {"type": "string", "minLength": 1},
    "dependencies": {"kind": ["name"], "group": ["name"]},
}


class _Section(TypedDict, total=False):
    __pydantic_config__ = ConfigDict(extra="forbid", use_attribute_docstrings=True)  # type: ignore[misc]


class ImageValues(_Section, total=False):
    """One image."""

    repository: Required[Repository]
    """Name of the image below the registry."""
    tag: Tag
    """Its tag; empty: the chart's appVersion."""
    digest: Digest
    """Its digest; takes precedence over the tag."""
    pullPolicy: Literal["Always", "IfNotPresent", "Never"]
    """imagePullPolicy."""


class ImagesValues(_Section, total=False):
    """Where the images are."""

    registry: Required[Registry]
    """Registry and path that hold the images, without a tag. Required."""
    operator: ImageValues
    """Image of the operator."""
    engine: ImageValues
    """Image of the engine."""
    fetch: ImageValues
    """Image of the containers that fetch models."""
    agent: ImageValues
    """Image of the node agent."""
    gateway: ImageValues
    """Image of the gateway's picker."""


class PullSecret(_Section, total=False):
    """A pull secret, as in the pod API."""

    name: Required[Name]


class PrometheusAuth(_Section, total=False):
    """What Prometheus demands of the operator."""

    secretName: NameOrEmpty
    """Secret in the namespace of the release."""
    tokenKey: SecretKey
    """Its key with a bearer token."""
    caKey: SecretKey
    """Its key with certificate authorities."""
    headersKey: SecretKey
    """Its key with headers, a line each."""
    serviceAccountToken: StrictBool
    """Send the token of the operator's ServiceAccount."""


class PrometheusValues(_Section, total=False):
    """The Prometheus that latency and load are read from."""

    auth: PrometheusAuth


class OperatorValues(_Section, total=False):
    """The operator itself."""

    runAsUser: UserID | None
    """User and group of the operator pod; null: the cluster assigns them."""


class CertManagerValues(_Section, total=False):
    """cert-manager."""

    enabled: StrictBool
    """Let cert-manager issue the certificate."""
    issuerRef: Annotated[dict[str, Any], WithJsonSchema(ISSUER_REF)]
    """Its issuer; empty: one that signs itself."""


class AdmissionValues(_Section, total=False):
    """The webhook that answers at `kubectl apply`."""

    enabled: StrictBool
    """Answer at `kubectl apply`."""
    path: Annotated[str, Field(pattern=r"^([a-z0-9]{16,128})?$")]
    """Last part of the webhook's URL; empty: random."""
    certManager: CertManagerValues


class PrometheusRuleValues(_Section, total=False):
    """Alerts."""

    enabled: StrictBool
    """Create a PrometheusRule with alerts on the operator and the fleet."""


class PriorityClassesValues(_Section, total=False):
    """PriorityClasses that LLMDeployments may name."""

    create: StrictBool
    """Create the three PriorityClasses."""
    keep: StrictBool
    """Keep them when the release is uninstalled."""


class ResourcesValues(_Section, total=False):
    """Resources of a container."""

    requests: dict[str, Quantity]
    """Resource requests."""
    limits: dict[str, Quantity]
    """Resource limits."""


class DevicePluginValues(_Section, total=False):
    """NVIDIA's device plugin, which the agent restarts."""

    namespace: Namespace
    """Its namespace."""
    podLabels: Annotated[dict[LabelKey, LabelValue], Field(min_length=1)]
    """Labels that all of its pods have."""


class AgentMetricsValues(_Section, total=False):
    """Metrics of the agents."""

    port: Annotated[int, Field(ge=0, le=65535)]
    """Port of /metrics; 0: none."""
    podMonitor: StrictBool
    """Create a PodMonitor for the agents."""
    interval: Interval
    """Scrape interval of the PodMonitor."""
    labels: dict[str, str]
    """Labels of the PodMonitor."""


class AgentValues(_Section, total=False):
    """The node agent."""

    enabled: StrictBool
    """Run the node agent on GPU nodes."""
    namespace: NamespaceOrEmpty
    """Namespace of its pods; empty: the release's."""
    nodeSelector: dict[LabelKey, LabelValue]
    """Node labels that its pods need."""
    tolerations: list[PodToleration]
    """Tolerations of its pods."""
    runtimeClassName: NameOrEmpty
    """RuntimeClass of its pods; empty: the nodes' default runtime."""
    podResourcesPath: Directory
    """Directory on the nodes with the socket of the kubelet's pod-resources API."""
    devicePlugin: DevicePluginValues
    metrics: AgentMetricsValues
    maxUnavailable: Annotated[int, Field(ge=1)] | Percentage
    """Agents that a rolling update may stop at the same time."""
    priorityClassName: NameOrEmpty
    """PriorityClass of its pods."""
    resources: ResourcesValues
    """Resources of its container."""


class GatewayServiceValues(_Section, total=False):
    """The Service in front of the gateway."""

    type: Literal["ClusterIP", "NodePort", "LoadBalancer"]
    """Its type."""
    annotations: dict[str, str]
    """Its annotations."""


class GatewayTLSValues(_Section, total=False):
    """TLS of the gateway's clients."""

    secretName: NameOrEmpty
    """Secret with the certificate; empty: plain HTTP."""


class GatewayValues(_Section, total=False):
    """One URL for the models of all LLMDeployments."""

    enabled: StrictBool
    """Run the gateway."""
    envoyImage: RuntimeImageOrEmpty
    """Image of Envoy, by digest."""
    replicas: Annotated[int, Field(ge=0, le=99)]
    """Number of its pods."""
    runAsUser: UserID | None
    """User and group of its pods; null: the cluster assigns them."""
    listenAddress: Literal["0.0.0.0", "::"]  # noqa: S104
    """Address that Envoy listens on."""
    service: GatewayServiceValues
    tls: GatewayTLSValues
    maxRequestSeconds: Annotated[int, Field(ge=10, le=86_400)]
    """A request without a byte of its response for longer ends."""
    drainSeconds: Annotated[int, Field(ge=10, le=86_400)]
    """Longest time that a pod which ends waits for its requests."""
    maxBodyBytes: Annotated[int, Field(ge=65_536, le=134_217_728)]
    """Most bytes of a request's body."""
    maxConnections: Annotated[int, Field(ge=1, le=1_000_000)]
    """Connections of clients to one pod."""
    envoyThreads: Annotated[int, Field(ge=1, le=128)]
    """Worker threads of Envoy."""
    envoyHeapMiB: Annotated[int, Field(ge=64, le=1_048_576)]
    """Memory at which Envoy refuses new requests."""
    exclusive: StrictBool
    """Engines accept the gateway, the operator and Prometheus alone."""
    resources: ResourcesValues
    """Resources of the picker's container."""
    envoyResources: ResourcesValues
    """Resources of Envoy's container."""
    nodeSelector: dict[LabelKey, LabelValue]
    """Node labels that its pods need."""
    tolerations: list[PodToleration]
    """Tolerations of its pods."""
    priorityClassName: NameOrEmpty
    """PriorityClass of its pods."""


class CRDsValues(_Section, total=False):
    """CustomResourceDefinitions."""

    enabled: StrictBool
    """Install and upgrade the CustomResourceDefinitions."""
    keep: StrictBool
    """Keep them when the release is uninstalled."""


class RBACValues(_Section, total=False):
    """Rights."""

    create: StrictBool
    """Create the roles and bindings."""
    aggregateRoles: StrictBool
    """Add LLMDeployments to the view, edit and admin roles."""
    workloadPolicies: StrictBool
    """Narrow what the operator may write to objects of LLMDeployments and pods of the engine."""
    runtimeImages: Annotated[list[RuntimeImage], Field(json_schema_extra={"uniqueItems": True})]
    """Images of EngineRuntimes that are not of the release."""


class RuntimeValues(_Section, total=False):
    """One EngineRuntime of the release, where it differs from files/runtimes."""

    image: RuntimeImageOrEmpty
    """Its image, by digest; empty: it is off."""
    version: Annotated[str, Field(min_length=1, max_length=64)]
    """Version of the engine in the image."""
    namespaces: Annotated[list[Namespace], Field(json_schema_extra={"uniqueItems": True})]
    """Namespaces whose LLMDeployments may use it; empty: all."""
    allowedArguments: list[FlagName]
    """Flags that LLMDeployments may add."""
    allowedVariables: list[VariableName]
    """Variables that LLMDeployments may set."""


class NetworkPeer(_Section, total=False):
    """Pods or addresses, as in the NetworkPolicy API."""

    namespaceSelector: dict[str, Any]
    """As in the NetworkPolicy API."""
    podSelector: dict[str, Any]
    """As in the NetworkPolicy API."""
    ipBlock: dict[str, Any]
    """As in the NetworkPolicy API."""


class EngineNetworkValues(_Section, total=False):
    """Who reaches the engines."""

    namespaces: Annotated[list[Namespace], Field(json_schema_extra={"uniqueItems": True})]
    """Namespaces with NetworkPolicies for engines and Jobs; empty: watchNamespaces."""
    clients: list[NetworkPeer]
    """Pods that may send requests to engines."""
    sourcePorts: Annotated[list[Port], Field(json_schema_extra={"uniqueItems": True})]
    """Ports of hubs that engine pods and Jobs may connect to."""


class NetworkPolicyValues(_Section, total=False):
    """NetworkPolicies of the operator, the agents and the engines."""

    enabled: StrictBool
    """Create the NetworkPolicies."""
    metricsFrom: list[NetworkPeer]
    """Pods that may read metrics."""
    apiServerPorts: Annotated[list[Port], Field(min_length=1)]
    """Ports of the API server."""
    engines: EngineNetworkValues


class ServiceAccountValues(_Section, total=False):
    """The operator's ServiceAccount."""

    create: StrictBool
    """Create the ServiceAccount."""
    name: NameOrEmpty
    """Its name."""
    annotations: dict[str, str]
    """Its annotations."""


class MonitorValues(_Section, total=False):
    """A monitor of the Prometheus Operator."""

    enabled: StrictBool
    """Create the monitor."""
    labels: dict[str, str]
    """Its labels."""
    interval: Interval
    """Its scrape interval."""


class DashboardsValues(_Section, total=False):
    """Grafana."""

    enabled: StrictBool
    """Create a ConfigMap with the fleet dashboard."""
    label: Annotated[str, Field(min_length=1)]
    """Label by which Grafana's sidecar finds it."""
    labelValue: str
    """Value of that label."""
    annotations: dict[str, str]
    """Annotations of the ConfigMap."""


class AffinityValues(_Section, total=False):
    """Affinity of the operator pod."""

    nodeAffinity: dict[str, Any]
    """As in the pod API."""
    podAffinity: dict[str, Any]
    """As in the pod API."""
    podAntiAffinity: dict[str, Any]
    """As in the pod API."""


SpreadConstraint = Annotated[
    dict[str, Any],
    WithJsonSchema({"type": "object", "required": ["maxSkew", "topologyKey", "whenUnsatisfiable"]}),
]


class ChartValues(_Section, total=False):
    """Every value is described in values.yaml; unknown ones are refused."""

    global_: Annotated[dict[str, Any], Field(alias="global")]
    """Helm's own; not used by this chart."""
    image: Required[ImagesValues]
    imagePullSecrets: list[PullSecret]
    """Pull secrets of the operator's and the agents' pods."""
    nameOverride: ChartName
    """Replaces the chart's name in object names."""
    fullnameOverride: NamePrefix
    """Replaces the whole prefix of object names."""
    replicas: Annotated[int, Field(ge=0, le=9)]
    """Number of operator pods; one leads."""
    prometheus: PrometheusValues
    operator: OperatorValues
    admission: AdmissionValues
    prometheusRule: PrometheusRuleValues
    priorityClasses: PriorityClassesValues
    gpuPools: dict[PoolName, GPUPoolSpec]
    """GPUPools of the release: their specs by name."""
    runtimes: dict[RuntimeName, RuntimeValues]
    """Changes to the EngineRuntimes of the release, by name."""
    agent: AgentValues
    gateway: GatewayValues
    crds: CRDsValues
    rbac: RBACValues
    networkPolicy: NetworkPolicyValues
    serviceAccount: ServiceAccountValues
    serviceMonitor: MonitorValues
    """Scraping of the operator by the Prometheus Operator."""
    podMonitor: MonitorValues
    """Scraping of engines by the Prometheus Operator."""
    dashboards: DashboardsValues
    resources: ResourcesValues
    """Resources of the operator container."""
    nodeSelector: dict[str, str]
    """Node labels that the operator pod needs."""
    tolerations: list[PodToleration]
    """Tolerations of the operator pod."""
    affinity: AffinityValues
    topologySpreadConstraints: list[SpreadConstraint]
    """Topology spread constraints of the operator pods."""
    podAnnotations: dict[str, str]
    """Annotations of the operator pod."""
    podLabels: dict[str, str]
    """Labels of the operator pod."""
    priorityClassName: NameOrEmpty
    """PriorityClass of the operator pod."""
