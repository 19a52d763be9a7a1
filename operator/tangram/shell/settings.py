"""The operator's settings: one YAML file, read once, refused with a clear message when it is wrong."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PositiveFloat,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic.alias_generators import to_camel

from tangram.api.common.values import NAME_PATTERN
from tangram.catalog.reading import yaml_text
from tangram.fleet import PodNeeds
from tangram.fleet.quantity import parse_quantity

Port = Annotated[int, Field(ge=1, le=65535)]


class SettingsError(Exception):
    """The settings file cannot be used; the message names the field and what is expected."""


class _Section(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        populate_by_name=True,
        use_attribute_docstrings=True,
    )


class PrometheusSettings(_Section):
    """Where the engines' metrics are read."""

    url: str = Field(pattern=r"^https?://[^\s]+$")
    """Base URL of the Prometheus HTTP API, for example http://prometheus.monitoring:9090."""
    window_seconds: PositiveFloat = 60
    """Window over which attainment and rates are computed."""
    interval_seconds: PositiveFloat = 15
    """How often the queries run."""
    scrape_interval_seconds: PositiveFloat = 15
    """How often Prometheus scrapes the engines; samples older than a few of these are stale."""
    timeout_seconds: PositiveFloat = 5
    """How long one query may take."""

    @model_validator(mode="after")
    def _window_holds_scrapes(self) -> "PrometheusSettings":
        if self.window_seconds < 4 * self.scrape_interval_seconds:
            raise ValueError("windowSeconds must be at least 4 scrapeIntervalSeconds, or rates have gaps")
        return self


class ScalingSettings(_Section):
    """How fast replicas follow the signal."""

    up_after_seconds: Annotated[float, Field(ge=0)] = 30
    """How long a queue must last before replicas are added for it."""
    down_after_seconds: PositiveFloat = 300
    """How long there must be room to spare before one replica is removed."""
    min_samples: Annotated[int, Field(ge=1)] = 20
    """Requests in the window below which an attainment says too little."""
    blind_after_seconds: PositiveFloat = 300
    """Age of the newest metrics from which on nothing is believed."""
    down_load: Annotated[float, Field(gt=0, le=1)] = 0.7
    """One replica less is tried only if each remaining one then carries less than this part of what was
    too much.
    """


class SchedulingSettings(_Section):
    """How long the scheduler may look for a node before another shape is tried."""

    deadline_seconds: PositiveFloat = 180
    """How long pods may be unschedulable though a GPU or slice is free."""
    growing_deadline_seconds: PositiveFloat = 900
    """The same, where a GPUPool may still grow or a terminating pod still holds something there."""


class AdviceSettings(_Section):
    """How the whole fleet is thought about, beside the loop and in a process of its own."""

    deadline_seconds: Annotated[float, Field(gt=0, le=600)] = 60
    """How long one recommendation may take."""
    settle_seconds: Annotated[float, Field(ge=0)] = 5
    """How long the fleet must be quiet before it is thought about."""
    latest_seconds: PositiveFloat = 30
    """How long after the first change it is thought about although it is not quiet."""
    idle_seconds: PositiveFloat = 120
    """How long the process waits for the next change before it ends and gives its memory back."""

    @model_validator(mode="after")
    def _ordered(self) -> "AdviceSettings":
        if self.settle_seconds > self.latest_seconds:
            raise ValueError("settleSeconds must not be above latestSeconds")
        return self


class LeaderElectionSettings(_Section):
    """The Lease that makes one of several operators the writer."""

    namespace: str = "tangram-system"
    """Namespace of the Lease."""
    name: str = "tangram-operator"
    """Name of the Lease."""
    lease_seconds: PositiveFloat = 15
    """How long a leader that went silent is waited for."""
    renew_seconds: PositiveFloat = 10
    """A leader that could not renew for this long stops writing; shorter than leaseSeconds."""
    retry_seconds: PositiveFloat = 2
    """How often the leader renews and the others look."""

    @model_validator(mode="after")
    def _ordered(self) -> "LeaderElectionSettings":
        if not self.retry_seconds < self.renew_seconds < self.lease_seconds:
            raise ValueError("retrySeconds < renewSeconds < leaseSeconds must hold")
        return self


class Settings(_Section):
    """Everything the operator is told at start."""

    engine_image: str = Field(min_length=1)
    """Image of the engine: the pods that serve and the Jobs that inspect checkpoints."""
    engine_image_pull_policy: Annotated[str, Field(pattern="^(Always|IfNotPresent|Never)$")] = "IfNotPresent"
    """imagePullPolicy of the engine image."""
    engine_service_account_name: str | None = None
    """Service account of engine pods; none: the namespace's default. Its token is never mounted."""
    image_pull_secrets: tuple[str, ...] = ()
    """Names of pull secrets that exist in the namespaces of the LLMDeployments."""
    cpu_per_gpu: str = Field(default="8", alias="cpuPerGPU")
    """CPU of a replica on a whole GPU; a slice gets its share."""
    memory_per_gpu: str = Field(default="64Gi", alias="memoryPerGPU")
    """Host memory of a replica on a whole GPU; a slice gets its share."""
    max_cpu_per_gpu: str | None = Field(default=None, alias="maxCPUPerGPU")
    """Most CPU that engine.resources may ask for on a whole GPU, by its share on a slice; none: cpuPerGPU."""
    max_memory_per_gpu: str | None = Field(default=None, alias="maxMemoryPerGPU")
    """Most host memory that engine.resources may ask for, likewise; none: memoryPerGPU."""
    runtime_class_name: str | None = None
    """RuntimeClass of engine pods, for example nvidia."""
    default_priority_class_name: Annotated[str, Field(max_length=253, pattern=f"{NAME_PATTERN}|^$")] = ""
    """PriorityClass of LLMDeployments that name none, with preemptionPolicy Never; empty: pods have none."""
    tolerations: tuple[dict[str, Any], ...] = ()
    """Tolerations of engine pods, beside those of the usual GPU taints."""
    run_as_user: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = 65532
    """User and group of engine pods; null: for clusters that assign them, as OpenShift does."""
    tmp_size_limit: str = "2Gi"
    """Most that engines and inspect Jobs write to /tmp, on the node's disk; a pod with more is evicted."""
    shm_size_limit: str = "1Gi"
    """Size of /dev/shm in engine pods. What is in it counts against the pod's memory."""
    node_removal: Annotated[str, Field(pattern="^(Default|Block|Allow)$")] = "Default"
    """Whether Cluster Autoscaler and Karpenter may remove nodes on which engines run."""
    prometheus: PrometheusSettings | None = None
    """Where metrics are read; none: nothing scales by itself."""
    scaling: ScalingSettings = ScalingSettings()
    """How fast replicas follow the signal."""
    scheduling: SchedulingSettings = SchedulingSettings()
    """When a shape is given up because its pods find no node."""
    prices: dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]] = Field(default_factory=dict)
    """US dollars per GPU-hour by SKU, over the catalog's."""
    watch_namespaces: tuple[str, ...] = ()
    """Namespaces whose LLMDeployments are served; empty: all."""
    leader_election: LeaderElectionSettings = LeaderElectionSettings()
    """The Lease that makes one of several operators the writer."""
    metrics_port: Port = 9090
    """Port of the operator's own metrics."""
    probe_port: Port = 8080
    """Port of /livez and /readyz."""
    listen_host: str = "0.0.0.0"  # noqa: S104 - a pod's own address; the chart's NetworkPolicy decides who may come
    """Address on which both ports listen."""
    plan_deadline_seconds: Annotated[float, Field(gt=0, le=60)] = 30
    """How long one plan may take before the last one stands."""
    advice: AdviceSettings = AdviceSettings()
    """How the whole fleet is thought about, beside the loop."""
    tick_seconds: Annotated[float, Field(gt=0, le=60)] = 15
    """How often everything is looked at even when nothing happened."""
    relist_seconds: PositiveFloat = 300
    """How often each mirror is compared with a fresh LIST."""
    log_format: Annotated[str, Field(pattern="^(json|plain)$")] = "json"
    """Form of log lines."""

    @field_validator(
        *("cpu_per_gpu", "memory_per_gpu", "max_cpu_per_gpu", "max_memory_per_gpu"),
        *("tmp_size_limit", "shm_size_limit"),
        mode="before",
    )
    @classmethod
    def _quantity(cls, value: object) -> str:
        if not isinstance(value, (str, int, float)) or isinstance(value, bool) or parse_quantity(value) <= 0:
            raise ValueError("a quantity above zero is needed, such as 8 or 64Gi")
        return str(value)

    @model_validator(mode="after")
    def _limits_hold_defaults(self) -> "Settings":
        for name, default, most in (
            ("CPU", self.cpu_per_gpu, self.max_cpu_per_gpu),
            ("Memory", self.memory_per_gpu, self.max_memory_per_gpu),
        ):
            if most is not None and parse_quantity(most) < parse_quantity(default):
                raise ValueError(f"max{name}PerGPU is {most}, below {name.lower()}PerGPU, which is {default}")
        return self

    @property
    def pod_needs(self) -> PodNeeds:
        """What engine pods ask for, and how long they may wait for a node."""
        return PodNeeds(
            self.cpu_cores_per_gpu,
            self.memory_bytes_per_gpu,
            parse_quantity(self.max_cpu_per_gpu or self.cpu_per_gpu),
            parse_quantity(self.max_memory_per_gpu or self.memory_per_gpu),
            self.scheduling.deadline_seconds,
            self.scheduling.growing_deadline_seconds,
            self.node_removal == "Block",
        )

    @property
    def cpu_cores_per_gpu(self) -> float:
        """CPU cores of a replica on a whole GPU."""
        return parse_quantity(self.cpu_per_gpu)

    @property
    def memory_bytes_per_gpu(self) -> float:
        """Host memory in bytes of a replica on a whole GPU."""
        return parse_quantity(self.memory_per_gpu)


LARGEST_FILE = 1 << 20  # bytes; a ConfigMap holds no more


def load_settings(path: Path) -> Settings:
    """Read and validate the settings file. Raises SettingsError."""
    try:
        with path.open("rb") as file:
            raw = file.read(LARGEST_FILE + 1)
        text = raw.decode("utf-8")
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}: is not UTF-8 text") from error
    if len(raw) > LARGEST_FILE:
        raise SettingsError(f"{path}: is larger than {LARGEST_FILE >> 20} MiB")
    return parse_settings(text, str(path))


def parse_settings(text: str, where: str) -> Settings:
    """Validate settings, wherever their text is from. Raises SettingsError."""
    try:
        document = yaml_text.load(text)
    except yaml_text.ERRORS as error:
        line, problem = yaml_text.told(error)
        raise SettingsError(f"{where}{line}: not YAML: {problem}") from error
    if not isinstance(document, dict):
        raise SettingsError(f"{where}: a mapping with at least engineImage is needed")
    try:
        return Settings.model_validate(document)
    except ValidationError as error:
        lines = [
            f"{'.'.join(map(str, e['loc'])) or 'file'}: {e['msg']}" for e in error.errors(include_url=False)
        ]
        raise SettingsError(f"{where}: " + "; ".join(lines)) from error
