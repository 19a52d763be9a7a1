"""One `LLMDeployment`: its spec, validated, and how long an engine pod may take to end."""

import math
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from functools import cache

from tangram.catalog.reading.field_path import FieldPath
from tangram.fleet.evaluation import PrecisionTolerance
from tangram.fleet.lengths import Lengths
from tangram.fleet.objective import Objective, Objectives
from tangram.fleet.priority import Refusal
from tangram.runtimes.runtime import ANY_RUNTIME, RuntimeRequest

_TOLERANCE = PrecisionTolerance()

DEFAULT_REQUEST_S = 600
DEFAULT_RUNNING_REQUESTS = 64  # of one replica at a time: `--max-num-seqs`, the engine's own default
ACCEPT_AFTER_SIGTERM_S = 5  # a terminating engine still accepts this long: endpoints lag behind
EXIT_S = 10  # the engine's last words to clients, the end of its processes


class MIGPolicy(StrEnum):
    """Whether replicas may, must or must not run on MIG slices."""

    ALLOWED = "Allowed"
    REQUIRED = "Required"
    FORBIDDEN = "Forbidden"


RATE_TOLERANCE = 1e-9  # of a request rate: replicas that fall short by less carry it; the rest is rounding


@dataclass(frozen=True, slots=True)
class Traffic:
    """The traffic that a spec expects, used until traffic is measured."""

    requests_per_second: float | None = None  # None: not given
    input_tokens: Lengths | None = None  # of prompts
    output_tokens: Lengths | None = None  # of answers


def replicas_for(rate: float, replica_rate: float) -> int:
    """Return how many replicas carry `rate` requests per second when each carries `replica_rate`."""
    return math.ceil(rate / replica_rate * (1 - RATE_TOLERANCE))


def cap(share: float, replicas: int) -> int:
    """Return how many of `replicas` may stand in one place: the share, rounded up, and at least one.

    Exact for shares of up to 15 decimals, as the API takes them: 0.1 of ten replicas is one, not two.
    """
    return max(1, math.ceil(_exact(share) * replicas))


@cache
def _exact(share: float) -> Fraction:
    """Return the decimal that is written for a float: 1/10 for 0.1."""
    return Fraction(repr(share))


@dataclass(frozen=True, slots=True)
class Spread:
    """Largest share of the replicas on one node and in one zone, rounded up; 1: no limit."""

    node: float = 1.0
    zone: float = 1.0

    def allows(self, replicas: int) -> tuple[int, int]:
        """Return how many of so many replicas may stand on one node, and in one zone; at least one."""
        return cap(self.node, replicas), cap(self.zone, replicas)


@dataclass(frozen=True, slots=True)
class HostResources:
    """CPU and memory requests of one replica, on any shape; None: its share of the operator's default."""

    cpu_milli: int | None = None  # thousandths of a core
    memory_mib: int | None = None


@dataclass(frozen=True, slots=True)
class SecretKey:
    """A key of a Secret in the namespace of its LLMDeployment. Never the value."""

    name: str
    key: str


@dataclass(frozen=True, slots=True)
class FieldManager:
    """The client that wrote a field last, as the API server records it. A client chooses its name."""

    manager: str  # kubectl, kube-controller-manager, ...
    subresource: str = ""  # scale, where the write went through it
    time: str = ""  # RFC 3339, whole seconds; "": unknown


@dataclass(frozen=True, slots=True)
class Revision:
    """The last change of a spec, not counting changes of spec.replicas alone."""

    generation: int  # at which it was made
    hash: str  # of the spec without spec.replicas


@dataclass(frozen=True, slots=True)
class Intent:
    """A valid `LLMDeployment`. Defaults are already filled in."""

    uid: str
    namespace: str
    name: str
    generation: int
    created_at: float  # seconds since the epoch
    model_uri: str  # image:///dir, pvc://claim/dir or hf://organisation/name[@revision]
    served_name: str
    max_model_len: int | None  # None: that of the checkpoint
    max_running_requests: int
    ttft: Objective | None
    tpot: Objective | None
    allowed_skus: tuple[str, ...]  # empty: every SKU of the catalog
    denied_skus: tuple[str, ...]
    mig: MIGPolicy
    min_replicas: int  # as many as `replicas`, where that is set
    max_replicas: int  # likewise
    paused: bool
    traffic: Traffic = Traffic()
    priority: int = 0  # value of its PriorityClass: higher is served first
    pools: tuple[str, ...] = ()  # names of GPUPools it may run in; empty: anywhere
    tensor_parallel: tuple[int, ...] = ()  # degrees that may be used, sorted; empty: any
    precision: str = "AsStored"  # AsStored | Any | a format of the catalog
    tolerance: PrecisionTolerance = _TOLERANCE  # of quantised formats, where `precision` is Any
    kv_precision: str = "bf16"  # of the KV cache: bf16 (16 bit) | fp8
    spread: Spread = Spread()
    budget_per_hour: float | None = None  # USD
    max_request_s: int = DEFAULT_REQUEST_S  # the engine ends every request by then
    resources: HostResources = HostResources()
    api_keys: SecretKey | None = None  # the file of clients' API keys; None: requests need none
    pod_labels: tuple[tuple[str, str], ...] = ()  # of engine pods, beside ours; sorted
    pod_annotations: tuple[tuple[str, str], ...] = ()  # likewise
    priority_class_name: str = ""  # that its pods carry; empty: none
    refusal: Refusal | None = None  # why it is not accepted
    # Why the present spec is not accepted, where this is the last accepted one, which stays in force.
    refused_edit: Refusal | None = None
    keeps_name: bool = False  # it has been accepted with its served name
    # model_uri of the present spec, where its checkpoint is not known and the last accepted spec is in force.
    next_model_uri: str | None = None
    model_secret: str = ""  # Secret of its namespace that a repository is read with; empty: none
    next_model_secret: str = ""  # likewise, of the present spec
    warnings: tuple[str, ...] = ()  # about what is accepted
    replicas: int | None = None  # set from outside; None: the scaling law decides
    replicas_set_by: FieldManager | None = None  # of `replicas`; None: unknown
    min_available: int | None = None  # with fewer it is not available; None: min_replicas
    revision: Revision | None = None  # None: that of `generation`
    runtime: RuntimeRequest = ANY_RUNTIME

    @property
    def objectives(self) -> Objectives:
        """Both latency objectives."""
        return Objectives(self.ttft, self.tpot)

    @property
    def termination_grace_s(self) -> int:
        """How long its pods may take to end: no accepted request is cut by a scale-down or rollout."""
        return ACCEPT_AFTER_SIGTERM_S + self.max_request_s + EXIT_S

    @property
    def rendered_generation(self) -> int:
        """The generation that its Deployments are to be of: since then nothing but `replicas` has changed."""
        return self.generation if self.revision is None else self.revision.generation

    @property
    def is_off(self) -> bool:
        """Whether it is set to no replica at all."""
        return self.replicas == 0


@dataclass(frozen=True, slots=True)
class InvalidIntent:
    """An `LLMDeployment` with an invalid spec: a user error, reported as Accepted=False."""

    uid: str
    namespace: str
    name: str
    generation: int
    created_at: float
    message: str  # with the field's path and what to do
    fields: tuple[FieldPath, ...] = ()  # that the message is about, the first one first


ParsedIntent = Intent | InvalidIntent
"""An LLMDeployment as read: with a valid spec, or with the reason why the spec is invalid."""
