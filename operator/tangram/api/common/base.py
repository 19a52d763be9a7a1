"""What all models of the API share."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue
from pydantic.alias_generators import to_camel

GROUP = "tangram.dev"
VERSION = "v1alpha1"


class APIModel(BaseModel):
    """An object of the API: camelCase on the wire, frozen in memory.

    Unknown fields are ignored: the API server has refused or pruned them already, and an object that a newer
    version stored must not look invalid during a downgrade.
    """

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True, extra="ignore")


def optional(description: str, **options: Any) -> Any:
    """Return a field that is absent by default. `options`: those of pydantic's `Field`."""
    return Field(default=None, description=description, **options)


def list_field(
    longest: int, description: str, *, kind: Literal["atomic", "set"] = "atomic", **options: Any
) -> Any:
    """Return a list, empty by default, that server-side apply replaces whole (`atomic`) or merges (`set`)."""
    extra: dict[str, JsonValue] = {"x-kubernetes-list-type": kind}
    return Field(default=(), max_length=longest, description=description, json_schema_extra=extra, **options)
