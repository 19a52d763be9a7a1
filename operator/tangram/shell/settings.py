"""The operator's settings: one YAML file, read once at start and rejected with the field that is wrong."""

import re
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import (
    Field,
    PositiveFloat,
    StrictBool,
    ValidationError,
    field_validator,
    model_validator,
)

from tangram.api.common.labels import LABEL_KEY, LABEL_VALUE, LONGEST_KEY, is_label_key, is_label_value
from tangram.api.common.values import SKU
from tangram.api.llm_deployment.pod_metadata import is_own_key
from tangram.catalog.reading import yaml_text
from tangram.fleet import PodNeeds
from tangram.fleet.quantity import parse_quantity
from tangram.scaling.outlook.load_history import LEAST_HISTORY_S, MOST_HISTORY_S
from tangram.shell.model_settings import ModelSettings
from tangram.shell.planning_settings import AdviceSettings, SchedulingSettings
from tangram.shell.query_headers import (
    MAX_HEADERS,
    NAME_CHARACTERS,
    VALUE_CHARACTERS,
    header_problem,
    is_secret,
)
from tangram.shell.setting_types import (
    Distinct,
    MetadataKey,
    Name,
    NameOrEmpty,
    Namespace,
    PodToleration,
    Port,
    PullPolicy,
    Quantity,
    QuantityOrEmpty,
    SettingsSection,
    UserID,
)

MOST_RULE_LABELS = 16
MOST_METADATA_KEYS = 64


class SettingsError(Exception):
    """The settings file cannot be used; the message names the field and what is expected."""


class PrometheusSettings(SettingsSection):
    """The Prometheus server that holds the engines' metrics."""

    # In the chart an empty url stands for no section.
    url: str = Field(
        pattern=r"^https?://[^\s/]+", json_schema_extra={"pattern": r"^(https?://[^\s/][^\s]*)?$"}
    )
    """Base URL of the Prometheus HTTP API, for example http://prometheus.monitoring:9090."""
    bearer_token_file: Path | None = None
    """File of the token that each query carries; it is read again for each round."""
    ca_file: Path | None = None
    """File of the authorities, in PEM, of which one must have signed the certificate of Prometheus."""
    headers_file: Path | None = None
    """File of further headers whose values are secret, a line each: `Name: value`."""
    headers: dict[str, str] = Field(
        default_factory=dict,
        max_length=MAX_HEADERS,
        json_schema_extra={
            "propertyNames": {"pattern": f"^{NAME_CHARACTERS}$"},
            "additionalProperties": {"type": "string", "pattern": f"^{VALUE_CHARACTERS}$"},
        },
    )
    """Further headers whose values are not secret, for example the tenant: {X-Scope-OrgID: team-a}."""
    window_seconds: PositiveFloat = 60
    """Window of SLO attainment and rates."""
    interval_seconds: PositiveFloat = 15
    """Time between two rounds of queries."""
    scrape_interval_seconds: PositiveFloat = 15
    """Scrape interval of the engines in Prometheus; samples older than a few intervals are stale."""
    timeout_seconds: PositiveFloat = 5
    """Timeout of one query."""

    @field_validator("url")
    @classmethod
    def _is_an_address(cls, value: str) -> str:
        if re.search(r"\s", value):
            raise ValueError("must not contain a blank")
        parts = urlsplit(value)
        if "@" in parts.netloc:
            raise ValueError(
                "must not contain a user or a password: they belong in a Secret (the chart: prometheus.auth)"
            )
        if parts.query or parts.fragment:
            raise ValueError("must not have a query or a fragment")
        return value

    @field_validator("headers")
    @classmethod
    def _can_be_sent(cls, value: dict[str, str]) -> dict[str, str]:
        for name, text in value.items():
            if is_secret(name):
                raise ValueError(f"{name} is secret: it belongs in headersFile or bearerTokenFile")
            if problem := header_problem(name, text):
                raise ValueError(problem)
        return value

    @model_validator(mode="after")
    def _authority_has_a_certificate(self) -> "PrometheusSettings":
        if self.ca_file is not None and not self.url.startswith("https://"):
            raise ValueError("caFile needs a url with https://")
        return self

    @model_validator(mode="after")
    def _window_holds_scrapes(self) -> "PrometheusSettings":
        if self.window_seconds < 4 * self.scrape_interval_seconds:
            raise ValueError(
                "windowSeconds must be at least 4 times scrapeIntervalSeconds: rates would have gaps"
            )
        return self


class PrometheusRuleSettings(SettingsSection):
    """The PrometheusRule of each LLMDeployment with objectives, for a Prometheus Operator."""

    per_llm_deployment: StrictBool = Field(default=False, alias="perLLMDeployment")
    """Whether the operator keeps them, beside the LLMDeployments: the chart then grants the rights to."""
    labels: dict[str, str] = Field(
        default_factory=dict,
        max_length=MOST_RULE_LABELS,
        json_schema_extra={
            "propertyNames": {"maxLength": LONGEST_KEY, "pattern": LABEL_KEY},
            "additionalProperties": {"type": "string", "pattern": LABEL_VALUE},
        },
    )
    """Labels by which a Prometheus selects them, for example {release: kube-prometheus-stack}."""
    runbook_base_url: str = Field(default="", alias="runbookBaseURL", pattern=r"^(https?://[^\s\"']+)?$")
    """Where the pages of docs/runbooks are, absolute; empty: alerts name their pages without a link."""

    @field_validator("labels")
    @classmethod
    def _are_labels(cls, value: dict[str, str]) -> dict[str, str]:
        for key, text in value.items():
            if not is_label_key(key) or not is_label_value(text):
                raise ValueError(f"{key}: {text!r} is no label")
        return value


class ScrapeSettings(SettingsSection):
    """The operator's own scrapes of the engines' pods, where there is no Prometheus."""

    enabled: StrictBool = True
    """Whether the operator scrapes pods; it does not where prometheus is set."""
    window_seconds: PositiveFloat = 60
    """Window of SLO attainment and rates."""
    # In a cluster, a second; tests are quicker.
    interval_seconds: Annotated[float, Field(ge=0.1, json_schema_extra={"minimum": 1})] = 15
    """Time between two scrapes of a pod."""
    timeout_seconds: PositiveFloat = 5
    """Time limit of one scrape."""

    @model_validator(mode="after")
    def _window_holds_scrapes(self) -> "ScrapeSettings":
        if self.window_seconds < 4 * self.interval_seconds:
            raise ValueError("windowSeconds must be at least 4 times intervalSeconds: rates would have gaps")
        return self


class ScalingSettings(SettingsSection):
    """How fast the number of replicas follows the signal."""

    up_after_seconds: Annotated[float, Field(ge=0)] = 30
    """How long requests must queue before replicas are added."""
    down_after_seconds: PositiveFloat = 300
    """How long replicas must have spare capacity before one is removed."""
    min_samples: Annotated[int, Field(ge=1)] = 20
    """Requests in the window below which an attainment is not significant."""
    blind_after_seconds: PositiveFloat = 300
    """Age of the newest metrics from which on they are ignored."""
    down_load: Annotated[float, Field(gt=0, le=1)] = 0.7
    """A replica is removed only if each remaining one would have at most this part of the load at which
    objectives were last violated.
    """
    history_seconds: Annotated[float, Field(ge=LEAST_HISTORY_S, le=MOST_HISTORY_S)] = MOST_HISTORY_S
    """How far back loads count for the forecast: a burst within that time may come again."""


class MIGManagerSettings(SettingsSection):
    """NVIDIA's mig-manager, the backend of GPUPools that name it."""

    enabled: StrictBool = False
    """Whether the operator changes layouts through it: the chart then grants the rights to."""
    namespace: Namespace = "gpu-operator"
    """Namespace of the GPU Operator."""
    config_map_name: Name = "tangram-mig-config"
    """Name of the ConfigMap of layouts that the operator writes there."""
    cluster_policy_name: Name = "cluster-policy"
    """Name of the ClusterPolicy that is to name it."""
    edit_cluster_policy: StrictBool = False
    """Whether the operator makes the ClusterPolicy name it."""
    config_sync_seconds: PositiveFloat = 150
    """How long the kubelet takes until mig-manager sees a changed ConfigMap."""
    deadline_seconds: PositiveFloat = 1800
    """Like partition.deadlineSeconds, for changes through mig-manager."""


class PartitionSettings(SettingsSection):
    """Whether and how fast the operator changes the MIG layouts of GPUs."""

    enabled: StrictBool = False
    """Whether FleetPlans of changes are carried out: the chart then grants the rights to."""
    stopped: StrictBool = False
    """Full stop: no change begins, and one that has cut nothing yet ends."""
    settle_seconds: PositiveFloat = 2
    """From the hold on a node until it is known to take no more pods."""
    deadline_seconds: PositiveFloat = 300
    """From the beginning of a change until it has failed, and the GPUs go back to their layouts before."""
    move_deadline_seconds: PositiveFloat = 3600
    """The same, where replicas move for a change: new ones start, and old ones finish their requests."""
    nodes: Annotated[int, Field(ge=1)] = 4
    """Nodes whose layouts change at once."""
    mig_manager: MIGManagerSettings = MIGManagerSettings()
    """The backend of GPUPools with spec.backend MIGManager."""


class LeaderElectionSettings(SettingsSection):
    """The Lease that makes one of several operators the writer."""

    namespace: str = "tangram-system"
    """Namespace of the Lease."""
    name: str = "tangram-operator"
    """Name of the Lease."""
    lease_seconds: PositiveFloat = 15
    """How long after its last renewal a leader is replaced."""
    renew_seconds: PositiveFloat = 10
    """How long after its last renewal a leader stops writing; shorter than leaseSeconds."""
    retry_seconds: PositiveFloat = 2
    """Time between two renewals of the leader, and between two reads of the others."""

    @model_validator(mode="after")
    def _ordered(self) -> "LeaderElectionSettings":
        if not self.retry_seconds < self.renew_seconds < self.lease_seconds:
            raise ValueError(
                "retrySeconds < renewSeconds < leaseSeconds must hold, or two operators could write at once"
            )
        return self


class EnginePodSettings(SettingsSection):
    """Pods that serve models, and Jobs that inspect and evaluate them."""

    cpu_per_gpu: Quantity = Field(default="8", alias="cpuPerGPU")
    """CPU of a replica on a whole GPU; a replica on a slice gets its share."""
    memory_per_gpu: Quantity = Field(default="64Gi", alias="memoryPerGPU")
    """Host memory of a replica on a whole GPU; a replica on a slice gets its share."""
    max_cpu_per_gpu: QuantityOrEmpty = Field(default="", alias="maxCPUPerGPU")
    """Largest CPU in engine.resources on a whole GPU, a share of it on a slice; empty: cpuPerGPU."""
    max_memory_per_gpu: QuantityOrEmpty = Field(default="", alias="maxMemoryPerGPU")
    """Largest host memory in engine.resources, likewise; empty: memoryPerGPU."""
    service_account_name: NameOrEmpty = ""
    """Service account of engine pods; empty: the namespace's default. Its token is never mounted."""
    image_pull_secrets: Annotated[tuple[Name, ...], *Distinct] = ()
    """Names of pull secrets that exist in the namespaces of the LLMDeployments."""
    runtime_class_name: NameOrEmpty = ""
    """RuntimeClass of engine pods, for example nvidia; empty: the nodes' default runtime."""
    tolerations: tuple[PodToleration, ...] = ()
    """Tolerations of engine pods, added to those of the usual GPU taints."""
    run_as_user: UserID | None = 65532
    """User and group of engine pods; null where the cluster assigns them, as OpenShift does."""
    tmp_size_limit: Quantity = "2Gi"
    """Size limit of /tmp in engine pods and Jobs, on the node's disk; a pod beyond it is evicted."""
    runtime_cache_size_limit: Quantity = "20Gi"
    """Size limit of the volume for compiled code of EngineRuntimes, on the node's disk."""
    shm_size_limit: Quantity = "1Gi"
    """Size of /dev/shm in engine pods. Its contents count against the pod's memory."""
    node_removal: Literal["Default", "Block", "Allow"] = "Default"
    """Whether Cluster Autoscaler and Karpenter may remove nodes with engine pods."""
    pod_metadata_keys: Annotated[
        tuple[MetadataKey, ...], Field(max_length=MOST_METADATA_KEYS), *Distinct
    ] = ()
    """Keys of labels and annotations that spec.metadata may give engine pods: example.com/owner, team, or
    example.com/* for all keys of this domain.
    """

    @field_validator("pod_metadata_keys")
    @classmethod
    def _are_not_our_own(cls, keys: tuple[str, ...]) -> tuple[str, ...]:
        own = [key for key in keys if is_own_key(key)]
        if own:
            raise ValueError(f"{own[0]} is a key that Tangram itself writes to pods")
        return keys

    @model_validator(mode="after")
    def _limits_are_not_below_defaults(self) -> "EnginePodSettings":
        for resource, default, limit in (
            ("CPU", self.cpu_per_gpu, self.max_cpu_per_gpu),
            ("Memory", self.memory_per_gpu, self.max_memory_per_gpu),
        ):
            if limit and parse_quantity(limit) < parse_quantity(default):
                raise ValueError(
                    f"max{resource}PerGPU is {limit}, below {resource.lower()}PerGPU, which is {default}"
                )
        return self


class ProcessSettings(SettingsSection):
    """The operator itself: its rounds and its log."""

    plan_deadline_seconds: Annotated[float, Field(gt=0, le=60)] = 30
    """Time limit of one plan; after it the last plan stays in force."""
    tick_seconds: Annotated[float, Field(gt=0, le=60)] = 15
    """Time between two rounds without a change."""
    relist_seconds: PositiveFloat = 300
    """Time between two comparisons of a mirror with a new LIST."""
    log_format: Literal["json", "plain"] = "json"
    """Format of log lines."""


class AdmissionSettings(SettingsSection):
    """The webhook that answers at `kubectl apply`."""

    certificate_folder: Path
    """Folder with tls.crt, tls.key and path, the secret last part of the webhook's URL."""
    port: Port = 9443
    """Port of the webhook."""
    predictions: StrictBool = True
    """Whether it says where an LLMDeployment will run, which a process of its own computes."""


class Settings(SettingsSection):
    """All settings of the operator. The chart's values have the sections of the same names."""

    engine_image: str = Field(min_length=1)
    """Image of engine pods and of inspect and evaluate Jobs."""
    engine_image_pull_policy: PullPolicy = "IfNotPresent"
    """imagePullPolicy of the engine image."""
    fetch_image: str = ""
    """Image of the containers that fetch checkpoints; models that are fetched need it."""
    fetch_image_pull_policy: PullPolicy = "IfNotPresent"
    """imagePullPolicy of the fetch image."""
    models: ModelSettings = ModelSettings()
    """Where checkpoints are that pods fetch."""
    engine: EnginePodSettings = EnginePodSettings()
    """Pods that serve models."""
    operator: ProcessSettings = ProcessSettings()
    """The operator itself."""
    default_priority_class_name: NameOrEmpty = ""
    """PriorityClass of LLMDeployments that name none, with preemptionPolicy Never; empty: none."""
    prometheus: PrometheusSettings | None = None
    """The source of metrics; null: the engines' pods, as `scrape` says."""
    prometheus_rule: PrometheusRuleSettings = PrometheusRuleSettings()
    """Alerts on the objectives of each LLMDeployment."""
    scrape: ScrapeSettings = ScrapeSettings()
    """The operator's own scrapes of the engines, where there is no Prometheus."""
    scaling: ScalingSettings = ScalingSettings()
    """How fast the number of replicas follows the signal."""
    scheduling: SchedulingSettings = SchedulingSettings()
    """When another shape replaces one whose pods are unschedulable."""
    prices: dict[SKU, Annotated[float, Field(ge=0, allow_inf_nan=False)]] = Field(default_factory=dict)
    """US dollars per GPU-hour by SKU; they replace the catalog's."""
    watch_namespaces: Annotated[tuple[Namespace, ...], *Distinct] = ()
    """Namespaces whose LLMDeployments are served; empty: all."""
    partition: PartitionSettings = PartitionSettings()
    """Whether and how fast MIG layouts change."""
    leader_election: LeaderElectionSettings = LeaderElectionSettings()
    """The Lease that makes one of several operators the writer."""
    admission: AdmissionSettings | None = None
    """The webhook that answers at `kubectl apply`; null: there is none."""
    metrics_port: Port = 9090
    """Port of the operator's own metrics."""
    probe_port: Port = 8080
    """Port of /livez and /readyz."""
    listen_host: str = ""
    """Address on which all ports listen; empty: every address, of IPv6 and of IPv4."""
    advice: AdviceSettings = AdviceSettings()
    """When recommendations for the whole fleet are computed."""

    @property
    def pod_needs(self) -> PodNeeds:
        """The resources of engine pods, and how long they may be unschedulable."""
        engine = self.engine
        return PodNeeds(
            parse_quantity(engine.cpu_per_gpu),
            parse_quantity(engine.memory_per_gpu),
            parse_quantity(engine.max_cpu_per_gpu or engine.cpu_per_gpu),
            parse_quantity(engine.max_memory_per_gpu or engine.memory_per_gpu),
            self.scheduling.deadline_seconds,
            self.scheduling.growing_deadline_seconds,
            engine.node_removal == "Block",
        )


MAX_FILE_BYTES = 1 << 20  # a ConfigMap holds no more


def load_settings(path: Path) -> Settings:
    """Read and validate the settings file. Raises SettingsError."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
        text = raw.decode("utf-8")
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}: is not UTF-8 text") from error
    if len(raw) > MAX_FILE_BYTES:
        raise SettingsError(f"{path}: is larger than {MAX_FILE_BYTES >> 20} MiB")
    return parse_settings(text, str(path))


def parse_settings(text: str, where: str) -> Settings:
    """Validate the text of a settings file; `where` names it in errors. Raises SettingsError."""
    try:
        document = yaml_text.load(text)
    except yaml_text.ERRORS as error:
        line, problem = yaml_text.line_and_problem(error)
        raise SettingsError(f"{where}{line}: not YAML: {problem}") from error
    if not isinstance(document, dict):
        raise SettingsError(f"{where}: must be a mapping with at least engineImage")
    try:
        return Settings.model_validate(document)
    except ValidationError as error:
        lines = [
            f"{'.'.join(map(str, e['loc'])) or 'file'}: {e['msg']}" for e in error.errors(include_url=False)
        ]
        raise SettingsError(f"{where}: " + "; ".join(lines)) from error
