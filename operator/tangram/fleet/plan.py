"""Plans: decisions about LLMDeployments, and the actions that carry them out. A plan is a value."""

from dataclasses import dataclass

from tangram.fleet.evaluation import EvaluationKey
from tangram.fleet.intent import Spread
from tangram.fleet.pool import NodeSelector
from tangram.fleet.shape import Shape
from tangram.fleet.snapshot import BackOff, CheckpointFacts, FactsKey, Fault, ModelClaimKey, PinnedRevision
from tangram.runtimes.runtime import EngineRuntime

ANYWHERE = Spread()


@dataclass(frozen=True, slots=True)
class ApplyService:
    """Make the Service of this LLMDeployment exist as rendered."""

    owner_uid: str


@dataclass(frozen=True, slots=True)
class Launch:
    """How a replica of an EngineRuntime is started: the numbers of the plan that fill its words."""

    runtime: EngineRuntime
    weight_bytes: int
    max_batched_tokens: int  # tokens of one step
    memory_share: float  # of the GPU or slice, 0 to 1
    static_memory_share: float  # of weights and KV cache alone


@dataclass(frozen=True, slots=True)
class ApplyDeployment:
    """Make the Deployment of one variant exist with this shape and this many replicas."""

    owner_uid: str
    shape: Shape
    replicas: int
    products: tuple[str, ...]  # values of nvidia.com/gpu.product its pods may run on, sorted
    max_model_len: int
    # 0: a rollout starts one pod more before it takes one down. Above: it takes down as many first, since no
    # unit is free for one more; those that no unit can run anyway are counted in.
    max_unavailable: int = 0
    # Its pods spread as far as that goes (topologySpreadConstraints, ScheduleAnyway); 1: no constraint.
    spread: Spread = ANYWHERE
    # Beside its product, a node must have all labels of one of these to run its pods: the selectors of the
    # GPUPools that `placement.pools` names, sorted. Empty: any node.
    node_selectors: tuple[NodeSelector, ...] = ()
    # Its pods may run on nodes without a product label, too, that have all labels of one of these: the
    # selectors of GPUPools that declare the SKU, sorted.
    declared: tuple[NodeSelector, ...] = ()
    pin: PinnedRevision | None = None  # what its pods fetch; None: its checkpoint is in the cluster
    launch: Launch | None = None  # None: the bundled engine, which sizes itself
    model_claim: ModelClaimKey | None = None  # that has what `pin` names; None: each pod fetches it


@dataclass(frozen=True, slots=True)
class RemoveDeployment:
    """Delete a Deployment that is ours and no longer part of the plan (UID precondition)."""

    owner_uid: str
    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class ScaleDeployment:
    """Lower the replicas of a Deployment of ours that a move leaves (UID precondition).

    Its pod template stays as it is: what goes on serving there is not rolled out again.
    """

    owner_uid: str
    namespace: str
    name: str
    uid: str
    replicas: int  # at most this many stay


@dataclass(frozen=True, slots=True)
class StartInspection:
    """Run the inspect Job for a checkpoint without recorded facts."""

    owner_uid: str
    key: FactsKey
    secret: str = ""  # Secret of its namespace with the credentials of a repository; empty: none
    revision: str = ""  # that a repository was pinned to before; empty: the one that its URI names now


@dataclass(frozen=True, slots=True)
class FinishInspection:
    """Delete an inspect Job whose result is recorded, or which may be tried again (UID precondition)."""

    owner_uid: str
    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class StartEvaluation:
    """Run the Job that compares a quantised format with the checkpoint's own, on a free unit of `shape`.

    Products and selectors are those of `ApplyDeployment`.
    """

    owner_uid: str
    key: EvaluationKey
    shape: Shape
    products: tuple[str, ...]
    node_selectors: tuple[NodeSelector, ...] = ()
    declared: tuple[NodeSelector, ...] = ()
    pin: PinnedRevision | None = None


@dataclass(frozen=True, slots=True)
class FinishEvaluation:
    """Delete an evaluate Job whose report is recorded, that is of no use any more, or whose unit replicas
    need (UID precondition).
    """

    owner_uid: str
    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class ResumeRollout:
    """Make the Deployment controller continue a rollout that has not begun (UID precondition).

    The Deployment controller of Kubernetes takes a rollout for a scaling, for ever, when the only ReplicaSet
    with replicas has as many as are desired, but its last spec had another number: this happens where the
    replicas are changed twice while a rollout runs (kubernetes/kubernetes#102551).
    """

    owner_uid: str
    namespace: str
    name: str
    uid: str
    replicas: int  # spec.replicas of the Deployment


@dataclass(frozen=True, slots=True)
class ApplyModelClaim:
    """Make a claim exist with these records."""

    owner_uid: str  # empty: no LLMDeployment uses it
    key: ModelClaimKey
    is_filled: bool = False
    unused_since: float | None = None


@dataclass(frozen=True, slots=True)
class RemoveModelClaim:
    """Delete a claim that no LLMDeployment has used for a while (UID precondition)."""

    owner_uid: str
    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class StartFill:
    """Run the Job that fills a claim."""

    owner_uid: str
    key: ModelClaimKey
    secret: str = ""  # Secret of its namespace with the credentials of the repository; empty: none


Action = (
    ApplyService
    | ApplyDeployment
    | ScaleDeployment
    | ResumeRollout
    | RemoveDeployment
    | StartInspection
    | FinishInspection
    | StartEvaluation
    | FinishEvaluation
    | ApplyModelClaim
    | StartFill
    | RemoveModelClaim
)


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another shape that the LLMDeployment could run on, and the one reason why it does not."""

    shape: Shape
    replicas: int  # that would be needed, or the minimum where the shape cannot serve
    cost_per_hour: float  # USD of all of them; 0 where no price is known
    rejected_because: str  # as in fleet plans (Dearer, NotEnoughGPUs, DoesNotFit, TPOT, ...) and NotAllowed
    message: str


LAYOUT = "layout"  # dimension of a Relaxation: another layout of the GPUs that there are


@dataclass(frozen=True, slots=True)
class RecommendedChange:
    """The smallest change of one kind that serves the whole demand; each is tried on the whole fleet."""

    dimension: str  # layout, gpus, budget, objective ...
    text: str


@dataclass(frozen=True, slots=True)
class Advice:
    """The part of a recommended FleetPlan that concerns one LLMDeployment."""

    plan: str  # name of the FleetPlan
    saves_per_hour: float  # USD, of the whole fleet, against what runs
    because: tuple[str, ...] = ()  # where replicas are missing: the constraints that together exclude them
    relaxations: tuple[RecommendedChange, ...] = ()
    recut_gpus: frozenset[str] = frozenset()  # GPUs that are cut anew and get replicas of it


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision about one LLMDeployment, with reasons."""

    owner_uid: str
    accepted: bool  # it is planned, by its present spec or by the last accepted one
    accepted_reason: str  # one of those of Accepted in tangram.eligibility.reasons
    accepted_message: str
    model_reason: str  # Inspected | Inspecting | NotFound | InvalidCheckpoint | UnknownArchitecture | ...
    model_message: str
    placed_reason: str  # Placed | InsufficientCapacity | Infeasible | SLOUnreachable | WaitingForModel | ...
    placed_message: str
    shape: Shape | None = None
    desired: int = 0  # replicas wanted after min/max
    placed: int = 0  # replicas of `shape` that run or have a device, <= desired
    running: tuple[tuple[Shape, int], ...] = ()  # replicas that run, on any node, by shape; sorted
    price_per_hour: float = 0.0  # of `placed`
    cost_per_hour: float | None = (
        0.0  # of `placed` and of all others that run; None: not all prices are known
    )
    alternatives: tuple[Alternative, ...] = ()  # best first, at most five
    facts: CheckpointFacts | None = None  # of the checkpoint that is wanted, once known
    predicted_ttft_ms: float | None = None  # of the first token, of a nearly idle replica of `shape`
    predicted_tpot_ms: float | None = None  # per output token, likewise
    back_offs: tuple[BackOff, ...] = ()  # shapes on which nothing more is tried for a while
    start_failures: str = ""  # shapes on which no replica became ready, and what follows; "": there are none
    rollout_waits: str = ""  # what a rollout of `shape` waits for; "": nothing that is known here
    runtime_reason: str = ""  # why this runtime serves it; "": there was no choice
    consent: str = ""  # FleetPlan of changes that serves it once a person approves it; "": there is none

    @property
    def placed_of_all_shapes(self) -> int:
        """Replicas of every shape that run or have a device, <= desired."""
        others = sum(count for shape, count in self.running if shape != self.shape)
        return min(self.desired, self.placed + others)


@dataclass(frozen=True, slots=True)
class Plan:
    """One decision about the whole fleet. Equal inputs give equal plans."""

    decisions: tuple[Decision, ...] = ()
    actions: tuple[Action, ...] = ()  # in the order in which they are to be performed
    faults: tuple[Fault, ...] = ()  # of the LLMDeployments that are left as they are, sorted; observed, too
    # (uid, why) of the LLMDeployments whose replicas cannot move as FleetPlans that are carried out have it
    immovable: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class EventNote:
    """A Kubernetes Event to record about an LLMDeployment: one per transition, never per tick."""

    type: str  # Normal | Warning
    reason: str
    message: str
