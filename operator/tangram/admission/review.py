"""One admission request, and what is known when it is answered."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from tangram.catalog.reading.field_path import FieldPath, is_changed
from tangram.fleet import FleetSnapshot, ParsedIntent, PodNeeds

# Characters. Kubernetes asks for it, cuts at 256, and drops warnings beyond 4096 characters in all
# (k8s.io/apiserver/pkg/endpoints/filters/warning.go).
LONGEST_WARNING = 120

UNBORN = "uid-of-the-reviewed-object"
_LAST = "9999-12-31T23:59:59Z"  # younger than all others

Object = Mapping[str, Any]
Plural = Literal[
    "llmdeployments", "gpupools", "fleetplans", "engineruntimes", "priorityclasses", "resourcequotas"
]


class ObjectKey(NamedTuple):
    """An object of the API server; the namespace of a cluster-wide one is empty."""

    plural: Plural
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Review:
    """One admission request for an object of Tangram that people write, not for a subresource of it."""

    operation: Literal["CREATE", "UPDATE"]
    plural: Plural
    namespace: str
    name: str  # empty where the API server generates it
    body: Object  # after defaults and the rules of the CRD
    old: Object | None = None  # the object as stored; None: it is created
    username: str = ""
    dry_run: bool = False

    @property
    def keeps_spec(self) -> bool:
        """Whether the request leaves the spec as it is: metadata, finalizers."""
        return self.old is not None and self.old.get("spec") == self.body.get("spec")

    def changes(self, fields: Iterable[FieldPath]) -> tuple[FieldPath, ...]:
        """Return those of the fields that the request changes; all, where the object is created."""
        old = self.old
        return tuple(path for path in fields if old is None or is_changed(path, old, self.body))

    @property
    def is_deleted(self) -> bool:
        """Whether the object is about to go."""
        return bool(self.body["metadata"].get("deletionTimestamp"))

    @property
    def identified(self) -> Object:
        """The object with what the API server adds before or after admission, where it is missing."""
        meta = {"uid": UNBORN, "creationTimestamp": _LAST, "generation": 1, **self.body["metadata"]}
        meta["name"] = meta.get("name") or self.name or "unnamed"
        meta["namespace"] = meta.get("namespace") or self.namespace
        return {**self.body, "metadata": {key: value for key, value in meta.items() if value is not None}}


@dataclass(frozen=True, slots=True)
class RefusedField:
    """Why a request is refused: a 422 with one cause."""

    field_path: str  # spec.placement.allowedSKUs
    message: str  # without the path
    # Mirrors lag: an object that was applied a moment earlier may be missing. Read these from the API server,
    # put them into the objects (`with_object`), ask again, and refuse if the answer is the same.
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
    engine_runtimes: Sequence[Object] | None = None
    nodes: Sequence[Object] | None = None
    # Settings of the operator.
    default_priority_class: str = ""
    pod_metadata_keys: Collection[str] | None = None  # None: any
    pod_needs: PodNeeds = field(default_factory=PodNeeds)

    def with_object(self, key: ObjectKey, obj: Object | None) -> "ReviewedObjects":
        """Return the objects with one as the API server has it, reduced as mirrors do; None: it is gone."""
        kinds = {
            "llmdeployments": "llm_deployments",
            "priorityclasses": "priority_classes",
            "resourcequotas": "resource_quotas",
            "gpupools": "gpu_pools",
            "engineruntimes": "engine_runtimes",
        }
        kind = kinds[key.plural]
        others = tuple(other for other in getattr(self, kind) or () if _key(other) != key[1:])
        changed: dict[str, Any] = {kind: others if obj is None else (*others, obj)}
        return replace(self, **changed)


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
