"""Values that more than one object has, with their bounds; and rules as the API server checks them."""

from typing import Annotated

from pydantic import AfterValidator, Field, JsonValue, StrictFloat, StrictStr, StringConstraints

from tangram.catalog import InputError
from tangram.catalog.precision import PRECISIONS, precision
from tangram.catalog.prices import HIGHEST_USD_PER_HOUR

MAX_REPLICAS = 1000
SKU_PATTERN = r"^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?$"
NAME_PATTERN = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"  # of a cluster-scoped object
AS_STORED, ANY = "AsStored", "Any"
WEIGHT_FORMATS = (AS_STORED, ANY, *PRECISIONS)

SKU = Annotated[StrictStr, StringConstraints(min_length=1, max_length=63, pattern=SKU_PATTERN)]
PoolName = Annotated[StrictStr, StringConstraints(min_length=1, max_length=253, pattern=NAME_PATTERN)]
# Whole numbers are numbers too; NaN and infinity are none.
PricePerGPUHour = Annotated[StrictFloat, Field(ge=0, le=HIGHEST_USD_PER_HOUR, allow_inf_nan=False)]
# Above 0 rather than from some fraction: for whole numbers the API server rounds a fractional minimum down.
Budget = Annotated[StrictFloat, Field(gt=0, le=1_000_000, allow_inf_nan=False)]
Share = Annotated[StrictFloat, Field(gt=0, le=1, allow_inf_nan=False)]
LOWEST_RATE = 1e-6  # a request in eleven days is no load to size for


def _a_load(rate: float) -> float:
    if rate < LOWEST_RATE:
        raise ValueError(f"must be at least {LOWEST_RATE:.6f}, or left out where nobody knows")
    return rate


Rate = Annotated[StrictFloat, Field(gt=0, le=1_000_000, allow_inf_nan=False), AfterValidator(_a_load)]


def rule(expression: str, message: str) -> dict[str, JsonValue]:
    """Return a validation in CEL, with what a person reads who breaks it."""
    return {"rule": expression, "message": message}


def whole(value: object) -> object:
    """Return `value`, unless it is true or false, which Python takes for 1 and 0. Raises `ValueError`."""
    if isinstance(value, bool):
        raise ValueError("must be a whole number")  # noqa: TRY004 - pydantic reports ValueErrors
    return value


def weight_format(name: str) -> str:
    """Return `name` if the API has such a policy or format. Raises `ValueError` that names the known ones."""
    if name in WEIGHT_FORMATS:
        return name
    try:
        near = precision(name).name
    except InputError:
        near = ""
    hint = f"write {near}" if near in PRECISIONS else f"must be one of {', '.join(WEIGHT_FORMATS)}"
    raise ValueError(f"is {name!r}; {hint}")
