"""What all models of the API share."""

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

GROUP = "tangram.dev"
VERSION = "v1alpha1"


class APIModel(BaseModel):
    """An object of the API: camelCase on the wire, frozen in memory.

    Unknown fields are ignored: the API server has refused or pruned them already, and an object that a newer
    version stored must not look invalid during a downgrade.
    """

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True, extra="ignore")
