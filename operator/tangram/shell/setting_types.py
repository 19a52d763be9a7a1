"""Types of settings and of chart values: what pydantic accepts, and as JSON schema what helm accepts."""

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic.alias_generators import to_camel
from typing_extensions import TypedDict

from tangram.api.common.labels import DNS_SUBDOMAIN, LABEL_KEY, LONGEST_KEY, LONGEST_LABEL, LONGEST_NAME
from tangram.api.common.values import NAME_PATTERN
from tangram.fleet.quantity import parse_quantity

QUANTITY = r"[0-9]+([.][0-9]+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?"


def _quantity(value: object) -> str:
    if not isinstance(value, (str, int, float)) or isinstance(value, bool) or parse_quantity(value) <= 0:
        raise ValueError("must be a quantity above zero, such as 8 or 64Gi")
    return str(value)


def _quantity_or_empty(value: object) -> str:
    return "" if value == "" else _quantity(value)


def _distinct(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(names)) < len(names):
        raise ValueError("must not name one twice")
    return names


def _quantity_schema(pattern: str) -> WithJsonSchema:
    number = {"type": "number", "exclusiveMinimum": 0}
    return WithJsonSchema({"anyOf": [{"type": "string", "pattern": pattern}, number]})


Port = Annotated[int, Field(ge=1, le=65535)]
Quantity = Annotated[str, BeforeValidator(_quantity), _quantity_schema(f"^{QUANTITY}$")]
QuantityOrEmpty = Annotated[str, BeforeValidator(_quantity_or_empty), _quantity_schema(f"^({QUANTITY})?$")]
Name = Annotated[str, Field(max_length=LONGEST_NAME, pattern=NAME_PATTERN)]
NameOrEmpty = Annotated[str, Field(max_length=LONGEST_NAME, pattern=f"{NAME_PATTERN}|^$")]
Namespace = Annotated[str, Field(max_length=LONGEST_LABEL, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
Distinct = (AfterValidator(_distinct), Field(json_schema_extra={"uniqueItems": True}))
# A key of labels and annotations, or all keys of a domain: example.com/*
MetadataKey = Annotated[str, Field(max_length=LONGEST_KEY, pattern=rf"{LABEL_KEY}|^{DNS_SUBDOMAIN}/[*]$")]
UserID = Annotated[int, Field(ge=1, le=2**31 - 1)]


PullPolicy = Literal["Always", "IfNotPresent", "Never"]


class SettingsSection(BaseModel):
    """A section of the settings file. Docstrings of fields are their descriptions."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        populate_by_name=True,
        use_attribute_docstrings=True,
    )


class PodToleration(TypedDict, total=False):
    """A toleration, as in the pod API."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]

    key: str
    operator: Literal["Exists", "Equal"]
    value: str
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]
    tolerationSeconds: int
