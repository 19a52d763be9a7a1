"""Engine runtimes: programs that serve models, as their EngineRuntime objects describe them."""

from dataclasses import dataclass
from enum import StrEnum

from tangram.catalog.reading.field_path import FieldPath
from tangram.runtimes.holes import Hole

BUNDLED = "tangram"  # the name of the bundled engine among runtimes


class EngineKind(StrEnum):
    """The program of a runtime: it decides flags and signals."""

    TANGRAM = "Tangram"
    VLLM = "vLLM"
    SGLANG = "SGLang"
    NIM = "NIM"


class MetricsDialect(StrEnum):
    """Names of metrics on a page. The bundled engine has those of vLLM."""

    VLLM = "vLLM"
    SGLANG = "SGLang"
    NIM = "NIM"  # of NIM 1.x; 2.x shows the names of the engine inside


class CoefficientsSource(StrEnum):
    """How well the capacity coefficients of a runtime are founded."""

    MEASURED = "Measured"  # of this engine and version
    CARRIED_OVER = "CarriedOver"  # of another version or engine
    UNSOURCED = "Unsourced"


@dataclass(frozen=True, slots=True, order=True)
class RuntimeOption:
    """An argument or a variable that an LLMDeployment adds, of those that its runtime lists."""

    name: str  # --tool-call-parser, or VLLM_LOGGING_LEVEL
    value: str | None = None  # None: an argument without a value


@dataclass(frozen=True, slots=True)
class RuntimeRequest:
    """What an LLMDeployment asks of runtimes."""

    name: str = ""  # empty: any that its namespace may use
    arguments: tuple[RuntimeOption, ...] = ()
    variables: tuple[RuntimeOption, ...] = ()


ANY_RUNTIME = RuntimeRequest()


@dataclass(frozen=True, slots=True)
class RuntimeMetrics:
    """Where a replica shows its metrics, and in which names."""

    path: str = "/metrics"
    dialect: MetricsDialect = MetricsDialect.VLLM


@dataclass(frozen=True, slots=True)
class RuntimeProbes:
    """HTTP paths of probes, and how long a start may take."""

    live: str = "/health"
    ready: str = "/health"
    start_s: int = 600  # beside the loading of weights
    load_mib_per_s: int = 100  # of weights, from the slowest volume that is used

    def start_deadline_s(self, weight_bytes: int) -> int:
        """Return how long a replica with these weights may take to start."""
        return self.start_s + -(-weight_bytes // (self.load_mib_per_s << 20))


@dataclass(frozen=True, slots=True)
class ServedCheckpoints:
    """The checkpoints that a runtime serves; an empty tuple: all that Tangram can size."""

    architectures: tuple[str, ...] = ()
    precisions: tuple[str, ...] = ()  # of weights, by the catalog's names
    max_tensor_parallel: int = 1


@dataclass(frozen=True, slots=True)
class RuntimePod:
    """What the pods of a runtime need beside words and variables."""

    port: int = 8000
    probes: RuntimeProbes = RuntimeProbes()
    cache_path: str = ""  # a directory that the engine writes compiled code to; empty: none
    shm_mib: int = 1024
    run_as_user: int | None = None  # None: that of the operator's settings
    writable_root: bool = False


@dataclass(frozen=True, slots=True)
class RuntimeCoefficients:
    """The entry of the calibration by which a runtime is sized."""

    engine: str | None = None  # None: that of all engines
    version: str | None = None
    source: CoefficientsSource = CoefficientsSource.UNSOURCED


@dataclass(frozen=True, slots=True)
class EngineRuntime:
    """A valid `EngineRuntime`."""

    name: str
    kind: EngineKind
    version: str
    image: str  # by digest; empty: off
    command: tuple[str, ...] = ()  # words with holes
    arguments: tuple[str, ...] = ()  # words with holes
    arguments_variable: str = (
        ""  # that holds the arguments, for engines that take none; empty: they are words
    )
    variables: tuple[tuple[str, str], ...] = ()  # values with holes
    allowed_arguments: tuple[str, ...] = ()
    allowed_variables: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()  # that may use it; empty: all
    metrics: RuntimeMetrics = RuntimeMetrics()
    pod: RuntimePod = RuntimePod()
    serves: ServedCheckpoints = ServedCheckpoints()
    coefficients: RuntimeCoefficients = RuntimeCoefficients()
    warnings: tuple[str, ...] = ()  # about what is accepted
    # Why the present spec is not accepted, where this is the last accepted one, which stays in force.
    refused_edit: str = ""

    @property
    def is_on(self) -> bool:
        """Whether replicas may be started: it has an image, or is the bundled engine."""
        return bool(self.image) or self.kind is EngineKind.TANGRAM

    @property
    def has_stages(self) -> bool:
        """Whether its words say how many stages a pipeline has: then it may have more than one."""
        words = (*self.command, *self.arguments, *(value for _, value in self.variables))
        return any(f"{{{Hole.PIPELINE_PARALLEL}}}" in word for word in words)

    def admits(self, namespace: str) -> bool:
        """Whether LLMDeployments of a namespace may use it."""
        return not self.namespaces or namespace in self.namespaces


@dataclass(frozen=True, slots=True, order=True)
class InvalidEngineRuntime:
    """An `EngineRuntime` with an invalid spec: a user error, reported in its status."""

    name: str
    message: str  # with the field's path and what to do
    fields: tuple[FieldPath, ...] = ()  # that the message is about
