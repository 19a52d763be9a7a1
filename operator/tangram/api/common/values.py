"""Values that several objects share, with their bounds, and validation rules in CEL.

Money, rates and shares are decimals in text, "0.5", or whole numbers. A float would not survive: JSON, YAML,
Helm and clients each print it in their own way. Text stays as it was written, and "0.1" is exactly 0.1.
"""

import re
from decimal import Decimal, InvalidOperation
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, JsonValue, StrictStr, StringConstraints, WithJsonSchema

from tangram.api.common.labels import LONGEST_LABEL, LONGEST_NAME
from tangram.catalog import InputError
from tangram.catalog.models.precision import PRECISIONS, precision
from tangram.catalog.prices import HIGHEST_USD_PER_HOUR

MAX_REPLICAS = 1000
SKU_PATTERN = r"^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?$"
NAME_PATTERN = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"  # of a cluster-scoped object
AS_STORED, ANY = "AsStored", "Any"
WEIGHT_FORMATS = (AS_STORED, ANY, *PRECISIONS)

SKU = Annotated[StrictStr, StringConstraints(min_length=1, max_length=LONGEST_LABEL, pattern=SKU_PATTERN)]
_NAME = StringConstraints(min_length=1, max_length=LONGEST_NAME, pattern=NAME_PATTERN)
PoolName = Annotated[StrictStr, _NAME]
PriorityClassName = Annotated[StrictStr, _NAME]
Hash = Annotated[str, StringConstraints(max_length=12, pattern=r"^[0-9a-f]{12}$")]  # of a FleetPlan
LOWEST_RATE = 1e-6  # a request in eleven days is no load to size for
HIGHEST_RATE = 1_000_000.0
HIGHEST_BUDGET = 1_000_000.0  # USD per hour

DECIMAL_PATTERN = r"^(0|[1-9][0-9]*)([.][0-9]+)?$"
# At most 15 digits beside the point: as many as a binary float gives back as they were written (DBL_DIG).
LONGEST_DECIMAL = 16
DECIMAL_HELP = 'must be a decimal in quotes, such as "0.5": digits and at most one point'
_DECIMAL = re.compile(DECIMAL_PATTERN.strip("^$"))


def rule(expression: str, message: str) -> dict[str, JsonValue]:
    """Return a validation rule in CEL, with the message of the API server."""
    return {"rule": expression, "message": message}


def validations(*rules: JsonValue) -> dict[str, JsonValue]:
    """Return the part of a schema that holds rules."""
    return {"x-kubernetes-validations": list(rules)}


def decimal_number(value: object) -> float:
    """Return a decimal of the API as a float. Raises `ValueError` with what to write instead."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(DECIMAL_HELP)  # noqa: TRY004 - pydantic reports ValueErrors
    if isinstance(value, float):
        plain = _plain(repr(value))
        help_ = f'must be a decimal in quotes: write "{plain}", not {value}' if plain else DECIMAL_HELP
        raise ValueError(help_)  # noqa: TRY004
    text = value if isinstance(value, str) else ""
    if len(text) > LONGEST_DECIMAL or (isinstance(value, int) and abs(value) >= 10**LONGEST_DECIMAL):
        raise ValueError(f"must be a decimal of at most {LONGEST_DECIMAL} characters")
    if isinstance(value, str) and not _DECIMAL.fullmatch(text):
        plain = _plain(text)
        raise ValueError(DECIMAL_HELP + (f'; write "{plain}", not "{text}"' if plain else ""))
    return float(value)


def _plain(text: str) -> str:
    """Return a number as the API takes it; the empty string where it is none, negative or too long."""
    try:
        number = Decimal(text)
    except InvalidOperation:
        return ""
    if not number.is_finite() or abs(number.adjusted()) > LONGEST_DECIMAL:
        return ""
    plain = f"{number:f}"
    plain = plain.rstrip("0").rstrip(".") if "." in plain else plain
    return plain if len(plain) <= LONGEST_DECIMAL and _DECIMAL.fullmatch(plain) else ""


def bounded(
    low: float, high: float, *, above: bool = False, hint: str = ""
) -> tuple[BeforeValidator, AfterValidator, WithJsonSchema]:
    """Return what makes a float of a model a decimal: its validators, and its schema with the same bounds.

    `above`: `low` itself is out of bounds. `hint` ends the message of a value that is out of bounds.
    """
    least, sign = ("above", ">") if above else ("at least", ">=")
    message = f"must be {least} {_plain(repr(low))} and at most {_plain(repr(high))}{hint}"

    def within(number: float) -> float:
        if number > high or number < low or (above and number == low):
            raise ValueError(message)
        return number

    decimal = f"type(self) == int || self.matches('{DECIMAL_PATTERN}')"
    # The API server judges each rule for itself: to this one, text that is no decimal is in bounds.
    bounds = f"!({decimal}) || (double(self) {sign} {low:f} && double(self) <= {high:f})"
    schema: dict[str, JsonValue] = {
        "x-kubernetes-int-or-string": True,
        "maxLength": LONGEST_DECIMAL,
        **validations(rule(decimal, DECIMAL_HELP), rule(bounds, message)),
    }
    return BeforeValidator(decimal_number), AfterValidator(within), WithJsonSchema(schema)


PricePerGPUHour = Annotated[float, *bounded(0, HIGHEST_USD_PER_HOUR)]
Budget = Annotated[float, *bounded(0, HIGHEST_BUDGET, above=True)]
Share = Annotated[float, *bounded(0, 1, above=True)]
Tolerance = Annotated[float, *bounded(0, 1)]
Rate = Annotated[float, *bounded(LOWEST_RATE, HIGHEST_RATE, hint=", or left out where it is not known")]


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
