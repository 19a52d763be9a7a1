"""Read an LLMDeployment from a document, with the validation and messages of the API."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from tangram.api import PriorityClasses, classes_of_files, model_source, parse
from tangram.api.llm_deployment.facts import validated_facts
from tangram.api.llm_deployment.pod_metadata import SETTING
from tangram.api.llm_deployment.spec import LLMDeploymentSpec
from tangram.capacity.memory.from_facts import architecture_from_facts
from tangram.catalog import Architecture, InputError, known_model
from tangram.catalog.reading.fields import Fields
from tangram.eligibility.shapes.serving_requirements import (
    ServingRequirements,
    counted_lengths,
    identity,
    requirements_of,
)
from tangram.fleet import Intent, InvalidIntent, Lengths
from tangram.plan.fleet_input.documents import document_fields as read

_CLASSES = classes_of_files(())


def read_llm_deployment(
    document: Mapping[str, Any],
    where: str,
    models: Mapping[str, Architecture],
    classes: PriorityClasses = _CLASSES,
    length_counts: Mapping[str, Lengths] = MappingProxyType({}),
) -> ServingRequirements:
    """Read one LLMDeployment. Raises `InputError`.

    `models`: by the name or id of their LLMDeployment, over the document's. `classes`: the PriorityClasses
    that it may name. `length_counts`: counted lengths of its requests, over their means.
    """
    meta = read.required(Fields(document, where), "metadata")
    name, namespace = read.word(meta, "name"), read.optional_word(meta, "namespace") or "default"
    where = f"{where} {identity(namespace, name)}"
    spec = read.required(Fields(document, where), "spec")
    read.refuse_unknown_keys(spec, LLMDeploymentSpec)
    intent, notes = _intent(document, name, namespace, where, classes)
    intent = replace(intent, traffic=counted_lengths(intent.traffic, length_counts))
    named = models.get(identity(namespace, name)) or models.get(name)
    architecture = named or _architecture(document, intent, where)
    try:
        requirements = requirements_of(intent, architecture)
    except InputError as error:
        raise InputError(f"{where}: {error.field}", error.problem) from error
    scaling = spec.under("scaling")
    limits_replicas = requirements.rps is None or (scaling is not None and scaling.has("maxReplicas"))
    if intent.replicas is not None:
        notes = (*notes, f"spec.replicas is {intent.replicas}: scaling and traffic decide no number")
    return replace(requirements, most=requirements.most if limits_replicas else None, notes=notes)


def _intent(
    document: Mapping[str, Any], name: str, namespace: str, where: str, classes: PriorityClasses
) -> tuple[Intent, tuple[str, ...]]:
    """Return the parsed LLMDeployment and notes; uid and creation time are made up where absent."""
    meta = {"uid": name, "creationTimestamp": "1970-01-01T00:00:00Z", **document["metadata"]}
    meta |= {"name": name, "namespace": namespace}
    try:
        intent = parse({"metadata": meta, "spec": document["spec"]}, classes)
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"{where}: metadata", str(error)) from error
    if isinstance(intent, InvalidIntent):
        raise InputError(where, intent.message)
    if intent.refusal is not None:
        raise InputError(where, intent.refusal.message)
    return intent, metadata_notes(intent)


def metadata_notes(intent: Intent) -> tuple[str, ...]:
    """Return what cannot be said about `spec.metadata` without the settings of an operator."""
    if not intent.pod_labels and not intent.pod_annotations:
        return ()
    return (f"whether the operator's setting {SETTING} allows the keys of spec.metadata is not known here",)


def _architecture(document: Mapping[str, Any], intent: Intent, where: str) -> Architecture:
    """Return the inspected model of the status, else the well-known model that the URI's last part names."""
    status = document.get("status")
    model = status.get("model") if isinstance(status, Mapping) else None
    facts = model.get("facts") if isinstance(model, Mapping) else None
    if facts is not None:
        return architecture_from_facts(validated_facts(facts, f"{where}: status.model.facts"))
    source = model_source(document["spec"]["model"]["uri"])
    name = (source.repository or source.path).rsplit("/", 1)[-1]
    architecture = known_model(name)
    if architecture is None:
        raise InputError(
            f"{where}: spec.model.uri",
            f"{name!r} is no well-known model, and its checkpoint is not inspected: name the model"
            f" with --model-facts {intent.name}=DIRECTORY_OR_KNOWN_NAME",
        )
    return architecture
