"""What a person wants: one `LLMDeployment`, reduced to what decisions need."""

from dataclasses import dataclass
from enum import StrEnum


class MIGPolicy(StrEnum):
    """Whether replicas may, must or must not run on MIG slices."""

    ALLOWED = "Allowed"
    REQUIRED = "Required"
    FORBIDDEN = "Forbidden"


@dataclass(frozen=True, slots=True)
class Objective:
    """A latency objective: this percentile of requests takes at most this long."""

    percentile: int
    milliseconds: int


@dataclass(frozen=True, slots=True)
class Intent:
    """A valid `LLMDeployment`. Defaults are already filled in."""

    uid: str
    namespace: str
    name: str
    generation: int
    created_at: float  # seconds since the epoch
    model_uri: str  # image:///dir or pvc://claim/dir
    served_name: str
    max_model_len: int | None  # None: what the checkpoint says
    max_running_requests: int
    ttft: Objective | None
    tpot: Objective | None
    allowed_skus: tuple[str, ...]  # empty: every SKU of the catalog
    denied_skus: tuple[str, ...]
    mig: MIGPolicy
    min_replicas: int
    max_replicas: int
    paused: bool


@dataclass(frozen=True, slots=True)
class InvalidIntent:
    """An `LLMDeployment` that cannot be understood: a person's error, reported as Accepted=False."""

    uid: str
    namespace: str
    name: str
    generation: int
    created_at: float
    message: str  # with the field's path and what to do
