"""The observed fleet at one instant. The shell's mirror builds it, the planner reads it; never partial."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import attrgetter

from tangram.fleet.evaluation import Evaluation, EvaluationKey, EvaluationReport
from tangram.fleet.partition import NO_PARTITION, PartitionView
from tangram.fleet.pool import InvalidPool, NodeSelector, Pool
from tangram.fleet.priority import PriorityClass
from tangram.fleet.shape import Shape
from tangram.runtimes.runtime import EngineRuntime, InvalidEngineRuntime

MOST_CHARACTERS = 300  # of an error


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """A step of a planning round that raised for one LLMDeployment, which is left as it is."""

    owner_uid: str
    step: str  # a `RoundStep`, or a step of the shell: status | write ...
    error: str  # type and message of the exception, bounded
    trace: str = ""  # of the exception; empty where another process logged it


def describe(error: BaseException) -> str:
    """Return type and message of an exception, bounded, for conditions and logs."""
    return f"{type(error).__name__}: {error}"[:MOST_CHARACTERS]


@dataclass(frozen=True, slots=True, order=True)
class LeftOut:
    """Devices of a node that new replicas do not get. A replica keeps its device."""

    reason: str  # one word, see tangram.eligibility.devices.node_devices
    message: str  # names the label, taint or resource with its value, and what to change
    resource: str = ""  # which of the node's devices; "": all of them


@dataclass(frozen=True, slots=True)
class Node:
    """A GPU node. `allocatable` holds only NVIDIA's extended resources with a count above zero."""

    name: str
    # catalog key: of the product label, without one as GPUPools declare it; None: unknown GPU, never used
    sku: str | None
    product: str  # value of the node label nvidia.com/gpu.product; "": it has none
    usable: bool  # new replicas may use what is allocatable; else `left_out` has the reasons
    allocatable: tuple[tuple[str, int], ...]  # (resource, count), sorted
    zone: str = ""  # label topology.kubernetes.io/zone
    gpus: int | None = None  # label nvidia.com/gpu.count: how many GPUs it has, cut or whole; None: no label
    labels: tuple[tuple[str, str], ...] = ()  # those that some GPUPool selects by, sorted
    spot: bool = False  # its cloud may reclaim it at short notice
    unhealthy: tuple[tuple[str, int], ...] = ()  # (resource, capacity less allocatable), sorted
    left_out: tuple[LeftOut, ...] = ()
    # (resource, count) offered until lately, sorted: not for new replicas, kept for those that have it
    withheld: tuple[tuple[str, int], ...] = ()
    host_cpu: float | None = None  # allocatable cores; None: not known
    host_memory: float | None = None  # allocatable bytes; None: not known


@dataclass(frozen=True, slots=True)
class Claim:
    """A scheduled, not yet finished pod that holds `count` units of `resource` on `node`."""

    node: str
    resource: str
    count: int
    owner_uid: str | None  # uid of the LLMDeployment it serves; None: not ours
    leaves_at: float | None = None  # epoch seconds by which a terminating pod is to be gone; None: it stays
    # NAMESPACE/NAME. Not compared: of two pods of one owner, it makes no difference which one holds what.
    pod: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Unscheduled:
    """Pods of one Deployment with the condition PodScheduled=False, reason Unschedulable."""

    pods: int
    since: float  # epoch seconds: when the first of them was found so
    message: str  # of the scheduler


@dataclass(frozen=True, slots=True)
class FetchState:
    """How far the pods of one Deployment are with fetching their checkpoint."""

    size: int  # bytes that each of them fetches
    pods: int
    fetched: int  # pods that have it
    bytes_per_second: float | None = None  # of the slowest fetch that was made
    since: float | None = None  # epoch seconds: when the first of those under way began
    reason: str = ""  # why the last fetch of a pod failed
    message: str = ""

    @property
    def waiting(self) -> int:
        """Pods that fetch, or are to."""
        return max(0, self.pods - self.fetched)


@dataclass(frozen=True, slots=True)
class Workload:
    """One of our Deployments as observed: one variant of one LLMDeployment."""

    uid: str
    name: str
    namespace: str
    owner_uid: str  # uid of the LLMDeployment
    shape: Shape
    replicas: int  # spec.replicas
    ready: int
    available: int
    updated: int  # replicas of the current pod template
    settled: bool  # the Deployment controller has seen our last write
    total: int  # pods of every template: above `updated` while a rollout runs
    owner_generation: int  # generation of the LLMDeployment that it was last rendered from
    in_place: bool = False  # its rollouts take a pod down before they start another
    message: str = ""  # why pods do not start, as the cluster reports it (CrashLoop, ...); "" when fine
    unscheduled: Unscheduled | None = None  # its pods that the scheduler finds no node for
    products: tuple[str, ...] = ()  # product labels of nodes on which its pods may run, sorted
    declared: tuple[NodeSelector, ...] = ()  # labels of nodes without one on which they may run, sorted
    refused: str = ""  # why pods cannot be created (quota, admission, ...), in the API server's words
    priority_class_name: str = ""  # of the pods that it makes; empty: they name none
    fetch: FetchState | None = None  # None: its pods fetch no checkpoint
    start_budget_s: int = 0  # that its startup probe gives another runtime than the bundled engine
    model_claim: str = ""  # name of the claim that its pods mount in place of a fetch; empty: none

    @property
    def is_rolling(self) -> bool:
        """Whether pods of an older template are left. Pods that are still to come alone are no rollout."""
        return self.total > self.updated


@dataclass(frozen=True, slots=True, order=True)
class FactsKey:
    """Identity of a checkpoint. Facts never cross namespaces, not even those about image://: Jobs of one
    namespace could otherwise forge or delay the facts of all others.
    """

    namespace: str
    uri: str
    engine_image: str


@dataclass(frozen=True, slots=True, order=True)
class PinnedRevision:
    """The revision of a repository that was inspected, and that pods fetch."""

    revision: str  # names the same bytes for ever: a commit
    size: int  # bytes that a pod fetches


@dataclass(frozen=True, slots=True)
class CheckpointFacts:
    """What `tangram-engine inspect` found in a checkpoint. Bytes are those of the stored tensors."""

    architecture: str  # as in config.json: LlamaForCausalLM
    digest: str  # sha256 over config.json and the safetensors headers
    dtype: str  # bf16 | fp16 | fp32
    layers: int
    hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    parameters: int
    weight_bytes: int  # all tensors
    embedding_bytes: int  # the input embedding: stored, but not read whole in a step unless tied
    tied_embeddings: bool
    attention_bias: bool  # whether the projections of queries, keys and values have biases
    qk_norm: bool  # whether queries and keys are normalised by head
    pin: PinnedRevision | None = None  # of a checkpoint that pods fetch
    # Of a checkpoint that the bundled engine refuses: why, and its config.json, compressed.
    refused_by_engine: str = ""
    config: str = ""


@dataclass(frozen=True, slots=True)
class InspectionFailure:
    """Why a checkpoint cannot be served: a user error, with what to do."""

    reason: str  # NotFound | InvalidCheckpoint | UnknownArchitecture | InspectionFailed | one of a source
    message: str
    at: float  # seconds since the epoch


@dataclass(frozen=True, slots=True)
class Inspection:
    """An inspect Job as observed. `result` is None while it runs."""

    key: FactsKey
    namespace: str
    job_name: str
    job_uid: str
    started_at: float
    result: CheckpointFacts | InspectionFailure | None = None
    message: str = ""  # while it runs: what it waits for, as the cluster reports it


@dataclass(frozen=True, slots=True, order=True)
class ModelClaimKey:
    """The checkpoint that a PersistentVolumeClaim holds, and for which namespace alone."""

    namespace: str
    model_uri: str  # as LLMDeployments name it
    pin: PinnedRevision
    storage_class: str


@dataclass(frozen=True, slots=True)
class ClaimFill:
    """The Job that fills a claim, as observed."""

    job_name: str
    job_uid: str
    is_complete: bool = False
    failure: InspectionFailure | None = None


@dataclass(frozen=True, slots=True)
class ModelClaim:
    """A PersistentVolumeClaim of the operator, as observed."""

    key: ModelClaimKey
    name: str
    uid: str
    is_filled: bool  # as recorded: the checkpoint is there, whole and verified
    unused_since: float | None = None  # epoch seconds, as recorded; None: it is used
    is_mounted: bool = False  # a Deployment of an LLMDeployment names it
    fill: ClaimFill | None = None


@dataclass(frozen=True, slots=True)
class WriteProblem:
    """What the API server refused when the shell last wrote a child of this LLMDeployment."""

    owner_uid: str
    reason: str  # NameTaken | Forbidden | Rejected
    message: str


def _holds(operator: str, names: tuple[str, ...], name: str) -> bool:
    """Whether a term of a scope selector holds, as label selectors do: what is not there is in no list."""
    results = {
        "In": name in names,
        "NotIn": name not in names,
        "Exists": bool(name),
        "DoesNotExist": not name,
    }
    return results.get(operator, False)


@dataclass(frozen=True, slots=True, order=True)
class QuotaLimit:
    """One resource that a ResourceQuota limits for pods like ours: cores, bytes or counts."""

    namespace: str
    quota: str  # name of the ResourceQuota
    resource: str  # as the quota spells it: requests.nvidia.com/gpu, limits.cpu, pods, count/deployments.apps
    hard: float
    used: float
    # (operator, names of PriorityClasses): all of them hold for the pods that it counts
    priority_classes: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def counts(self, priority_class_name: str) -> bool:
        """Whether pods of this PriorityClass are counted; empty: pods of none."""
        return all(_holds(term, names, priority_class_name) for term, names in self.priority_classes)


@dataclass(frozen=True, slots=True, order=True)
class BackOff:
    """A shape on which one LLMDeployment gets no more replicas for a while: its pods cannot start there."""

    owner_uid: str
    generation: int  # of the spec but for spec.replicas: another spec is tried at once
    shape: Shape
    reason: str  # Unschedulable | FailedCreate | QuotaExceeded
    message: str  # of the API server or the scheduler
    replicas: int  # that run there, and stay
    since: float  # epoch seconds
    until: float  # epoch seconds: then one more replica is tried
    attempts: int  # that failed in a row
    # Replicas of another shape have become ready since: then checkpoint and engine image are not the cause.
    started_elsewhere: bool = False


@dataclass(frozen=True, slots=True, order=True)
class StartOutcome:
    """Whether the replicas of one LLMDeployment on one shape became ready."""

    owner_uid: str
    shape: Shape
    generation: int  # of the spec that they were rendered from
    is_late: bool  # none was ready by the deadline; False: one has been ready for a while


@dataclass(frozen=True, slots=True)
class PodNeeds:
    """Requests of an engine pod beside its GPU, and how long the scheduler may search a node for it."""

    cpu_per_gpu: float = 0.0  # cores of a replica on a whole GPU; a slice asks for its share
    memory_per_gpu: float = 0.0  # bytes, likewise
    max_cpu_per_gpu: float | None = None  # cores that an LLMDeployment may ask for; None: any number
    max_memory_per_gpu: float | None = None  # bytes, likewise
    scheduling_deadline_s: float = 180.0  # then another shape is tried
    growing_deadline_s: float = 900.0  # where a node may still come, or a terminating pod still goes
    keep_nodes: bool = False  # their annotations keep autoscalers from removing the node they run on


@dataclass(frozen=True, slots=True)
class ProvisionedLoad:
    """The load that the replicas of one LLMDeployment are to carry, as the scaling law forecasts it.

    Rate and lengths come in steps of a tenth and change late: numbers of replicas follow from them.
    """

    requests_per_second: float  # with the margin that the error budget needs
    prompt_tokens: float  # means
    answer_tokens: float
    # That a replica of another shape carries of the predicted rate, as far as is known; at most 1.
    trusted_share: float = 1.0


@dataclass(frozen=True, slots=True)
class FleetSnapshot:
    """Everything a plan depends on, besides the intents and the instant."""

    nodes: tuple[Node, ...] = ()
    claims: tuple[Claim, ...] = ()
    workloads: tuple[Workload, ...] = ()
    facts: tuple[tuple[FactsKey, CheckpointFacts], ...] = ()  # recorded in the status of LLMDeployments
    # (namespace, model.uri) -> the revision that it was pinned to, as statuses record it, sorted
    pins: tuple[tuple[tuple[str, str], str], ...] = ()
    inspections: tuple[Inspection, ...] = ()
    model_claims: tuple[ModelClaim, ...] = ()  # sorted by key
    reports: tuple[tuple[EvaluationKey, EvaluationReport], ...] = ()  # recorded in statuses, like `facts`
    evaluations: tuple[Evaluation, ...] = ()  # evaluate Jobs
    services: tuple[tuple[str, str], ...] = ()  # (namespace, name) of the Services we own
    problems: tuple[WriteProblem, ...] = ()  # sorted by owner_uid
    evaluation_problems: tuple[WriteProblem, ...] = ()  # of evaluate Jobs alone, likewise
    pools: tuple[Pool, ...] = ()  # sorted by name
    invalid_pools: tuple[InvalidPool, ...] = ()  # sorted by name
    partition: PartitionView = NO_PARTITION  # MIG layouts of nodes with a partition backend
    # LLMDeployment uid -> replicas that the scaling law sets now; absent: as many as there are
    desired: tuple[tuple[str, int], ...] = ()
    # the shape whose replicas `desired` counts; absent: the one that it runs on
    desired_of: tuple[tuple[str, Shape], ...] = ()
    # the load that `desired` carries, by which replicas of other shapes are counted; absent: not known
    provisioned: tuple[tuple[str, ProvisionedLoad], ...] = ()
    # errors of reading and scaling; the LLMDeployments concerned are left as they are
    faults: tuple[Fault, ...] = ()  # sorted
    quotas: tuple[QuotaLimit, ...] = ()  # sorted
    back_offs: tuple[BackOff, ...] = ()  # of the last plan, or of the status of LLMDeployments; sorted
    start_outcomes: tuple[StartOutcome, ...] = ()  # by the scaling law, of shapes that have one; sorted
    pod_needs: PodNeeds = PodNeeds()
    priority_classes: tuple[PriorityClass, ...] = ()  # sorted
    default_priority_class: str = ""  # of LLMDeployments that name none; empty: none
    engine_image: str = ""
    runtimes: tuple[EngineRuntime, ...] = ()  # sorted by name
    invalid_runtimes: tuple[InvalidEngineRuntime, ...] = ()  # sorted by name
    prices: tuple[tuple[str, float], ...] = ()  # (SKU, USD per GPU-hour) overriding the catalog

    @property
    def known_facts(self) -> dict[FactsKey, CheckpointFacts]:
        """Facts of checkpoints: recorded, or found by a Job a moment ago."""
        jobs = sorted(self.inspections, key=attrgetter("job_uid"))
        found = {job.key: job.result for job in jobs if isinstance(job.result, CheckpointFacts)}
        return found | dict(self.facts)

    @property
    def class_of_unnamed_pods(self) -> str:
        """The PriorityClass that admission gives pods that name none; empty: none."""
        return class_of_unnamed_pods(self.priority_classes)


def class_of_unnamed_pods(classes: Iterable[PriorityClass]) -> str:
    """Return the PriorityClass that admission gives pods that name none; empty: none."""
    defaults = [c for c in classes if c.is_global_default]
    return min(defaults, key=attrgetter("value", "name")).name if defaults else ""


def claiming_pools(node: Node, pools: Iterable[Pool]) -> tuple[str, ...]:
    """Return the names of the pools whose selector matches a node, sorted."""
    labels = dict(node.labels)
    return tuple(sorted(pool.name for pool in pools if pool.selects(labels)))
