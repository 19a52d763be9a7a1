"""The models that the cluster serves, by the names that clients write. Pure."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tangram.fleet import DEFAULT_REQUEST_S
from tangram.gateway.answers import GatewayAnswer, ambiguous_model, found, unknown_model
from tangram.kube.kinds import Key, Object, key_of


@dataclass(frozen=True, slots=True)
class PublishedModel:
    """An LLMDeployment as clients see it."""

    namespace: str
    name: str
    served_name: str
    max_request_s: int = DEFAULT_REQUEST_S
    created: str = ""

    @property
    def key(self) -> Key:
        """(namespace, name) of the LLMDeployment, and of its Service."""
        return self.namespace, self.name

    @property
    def qualified(self) -> str:
        """The name that no other namespace can take."""
        return f"{self.namespace}/{self.served_name}"


@dataclass(frozen=True, slots=True)
class PublishedModels:
    """All models, by both of their names."""

    by_name: Mapping[str, tuple[PublishedModel, ...]] = field(default_factory=dict)
    by_qualified_name: Mapping[str, PublishedModel] = field(default_factory=dict)

    def find(self, model: str) -> PublishedModel | GatewayAnswer:
        """Return the model of this name. A qualified name comes first: a served name may look like one."""
        if (qualified := self.by_qualified_name.get(model)) is not None:
            return qualified
        match self.by_name.get(model, ()):
            case []:
                return unknown_model(model)
            case [published]:
                return published
            case several:
                return ambiguous_model(model, (contender.qualified for contender in several))

    def listing(self) -> GatewayAnswer:
        """Return the answer of `GET /v1/models`: short names where they are unique."""
        models = sorted(self.by_qualified_name.values(), key=lambda model: model.qualified)
        return found({"object": "list", "data": [self._entry(model) for model in models]})

    def described(self, model: str) -> GatewayAnswer:
        """Return the answer of `GET /v1/models/MODEL`."""
        published = self.find(model)
        return published if isinstance(published, GatewayAnswer) else found(self._entry(published))

    def _entry(self, model: PublishedModel) -> dict[str, Any]:
        is_unique = self.find(model.served_name) is model
        name = model.served_name if is_unique else model.qualified
        return {"id": name, "object": "model", "created": 0, "owned_by": model.namespace}


def published_models(llm_deployments: Iterable[Object]) -> PublishedModels:
    """Return the models of these LLMDeployments. Of two of one namespace with the same name, which the
    operator does not accept both, the older one counts.
    """
    by_name: dict[str, list[PublishedModel]] = {}
    by_qualified_name: dict[str, PublishedModel] = {}
    models = [model for obj in llm_deployments if (model := _published_model(obj)) is not None]
    for model in sorted(models, key=lambda model: (model.created, model.key)):
        if by_qualified_name.setdefault(model.qualified, model) is model:
            by_name.setdefault(model.served_name, []).append(model)
    return PublishedModels({name: tuple(same) for name, same in by_name.items()}, by_qualified_name)


def kept_fields(obj: Object) -> Object | None:
    """Keep the fields of an LLMDeployment that the gateway reads, of the spec that is in force."""
    meta, spec = obj["metadata"], _spec_in_force(obj)
    names = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    kept_meta = {name: meta[name] for name in names if name in meta}
    if spec is None or meta.get("deletionTimestamp"):
        return None
    served_name = (spec.get("model") or {}).get("servedName") or meta["name"]
    max_request_s = (spec.get("engine") or {}).get("maxRequestSeconds", DEFAULT_REQUEST_S)
    return {"metadata": kept_meta, "servedName": served_name, "maxRequestSeconds": max_request_s}


def _published_model(kept: Object) -> PublishedModel | None:
    name, seconds = kept["servedName"], kept["maxRequestSeconds"]
    if not isinstance(name, str) or not isinstance(seconds, int):
        return None
    return PublishedModel(*key_of(kept), name, seconds, str(kept["metadata"].get("creationTimestamp", "")))


def _spec_in_force(obj: Object) -> Object | None:
    """Return the last accepted spec, which stays in force while the present one is not accepted; without one,
    the present spec unless it is refused.
    """
    status = obj.get("status") or {}
    recorded = (status.get("acceptedSpec") or {}).get("spec")
    if recorded is None:
        conditions = {condition["type"]: condition["status"] for condition in status.get("conditions") or ()}
        return None if conditions.get("Accepted") == "False" else obj.get("spec") or {}
    try:
        spec = json.loads(recorded)
    except (ValueError, RecursionError, TypeError):
        return None
    return spec if isinstance(spec, dict) else None
