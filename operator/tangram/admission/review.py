"""One admission request, and what is known when it is answered."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from tangram.fleet import FleetSnapshot, ParsedIntent, PodNeeds

LONGEST_WARNING = 120  # characters; Kubernetes truncates longer ones (apiserver/pkg/warning)

Object = Mapping[str, Any]
Plural = Literal["llmdeployments", "gpupools", "fleetplans", "priorityclasses", "resourcequotas"]


class ObjectKey(NamedTuple):
    """An object of the API server; the namespace of a cluster-wide one is empty."""

    plural: Plural
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Review:
    """One admission request for an LLMDeployment, a GPUPool or a FleetPlan, not for a subresource of it."""

    operation: Literal["CREATE", "UPDATE"]
    plural: Plural
    namespace: str
    name: str  # empty where the API server generates it
    body: Object  # after defaults and the rules of the CRD
    old: Object | None = None  # the object as stored; None: it is created
    username: str = ""
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class RefusedField:
    """Why a request is refused: a 422 with one cause."""

    field_path: str  # spec.placement.allowedSKUs
    message: str  # without the path
    # Mirrors lag: an object that is applied a moment earlier may be missing. Read these from the API server, put
    # them into the objects (`ReviewedObjects.with_object`), ask again, and refuse if the answer is the same.
    rests_on: tuple[ObjectKey, ...] = ()


@dataclass(frozen=True, slots=True)
class ReviewedObjects:
    """Objects as the mirrors hold them. None: the mirror is not synced, or its kind may not be listed; then
    nothing is refused because of them.
    """

    llm_deployments: Sequence[Object] | None = None  # of the namespace of the request at least
    priority_classes: Sequence[Object] | None = None
    resource_quotas: Sequence[Object] | None = None
    gpu_pools: Sequence[Object] | None = None
    nodes: Sequence[Object] | None = None
    # Settings of the operator.
    default_priority_class: str = ""
    pod_metadata_keys: Collection[str] | None = None  # None: any
    pod_needs: PodNeeds = field(default_factory=PodNeeds)

    def with_object(self, key: ObjectKey, obj: Object | None) -> "ReviewedObjects":
        """Return the objects with one as the API server has it now, reduced as mirrors do; None: it is gone."""
        kinds = {
            "llmdeployments": "llm_deployments",
            "priorityclasses": "priority_classes",
            "resourcequotas": "resource_quotas",
            "gpupools": "gpu_pools",
        }
        kind = kinds[key.plural]
        others = tuple(other for other in getattr(self, kind) or () if _key(other) != key[1:])
        return replace(self, **{kind: others if obj is None else (*others, obj)})


@dataclass(frozen=True, slots=True)
class ReviewedFleet:
    """What the last planning round planned on. It can be sent to another process."""

    snapshot: FleetSnapshot
    intents: tuple[ParsedIntent, ...]  # all LLMDeployments
    now: float  # epoch seconds
    pod_metadata_keys: Collection[str] | None = None


def _key(obj: Object) -> tuple[str, str]:
    meta = obj["metadata"]
    return meta.get("namespace", ""), meta["name"]
