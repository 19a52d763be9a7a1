"""Refuse keys that the API does not have, so that no typo in a document is ignored."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from tangram.api.common.old_forms import HINT, old_parts
from tangram.api.llm_deployment.spec import LLMDeploymentSpec
from tangram.catalog import InputError
from tangram.catalog.reading.fields import Fields
from tangram.recommendation.documents import document_fields as read


def refuse_old_forms(kind: str, document: Mapping[str, Any], where: str) -> None:
    """Raise `InputError` for the first field of the old form, with the new one."""
    for form in old_parts(kind, document):
        raise InputError(f"{where}: {form.shown}", f"{form.advice}; {HINT}")


def refuse_unknown_keys(spec: Fields, model: type[BaseModel] = LLMDeploymentSpec) -> None:
    """Raise `InputError` for the first key, at any depth, that `model` does not have."""
    names = {field.alias or name: field.annotation for name, field in model.model_fields.items()}
    read.closed(spec, names)
    for name, annotation in names.items():
        inner = _model(annotation)
        if inner is not None and isinstance(spec.values.get(name), Mapping):
            refuse_unknown_keys(Fields(spec.values[name], f"{spec.where}: {name}"), inner)


def _model(annotation: Any) -> type[BaseModel] | None:
    """Return the model of a field's annotation, also of `Model | None`."""
    for candidate in (annotation, *getattr(annotation, "__args__", ())):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None
