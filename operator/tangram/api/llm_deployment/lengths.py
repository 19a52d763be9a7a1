"""Lengths of prompts and answers in the API: mean and P90, or one length for all."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, StrictInt, model_validator

from tangram.api.common.base import APIModel, optional
from tangram.api.common.values import rule, validations

ONE_FORM = "exactly one of mean and fixed must be set"
P90_OF_MEAN = "p90 may be set beside mean only: with fixed, all have one length"
MOST_P90_PERCENT = 227
P90_RANGE = (
    "p90 must be from 1 to 2.27 times mean; lengths with a longer tail need a histogram, in files of "
    "`tangram plan -f` and `tangram size`"
)

Tokens = Annotated[StrictInt, Field(ge=1, le=1_048_576)]


def lengths_of_the_api(value: object) -> object:
    """Return `value`, unless it is a form of lengths that objects do not have. Raises `ValueError`."""
    if isinstance(value, int) and not isinstance(value, bool):
        raise ValueError(f"must be an object: write {{mean: {value}}}, not {value}")  # noqa: TRY004
    if isinstance(value, Mapping) and "histogram" in value:
        raise ValueError(
            "histogram is for files of the command line (`tangram plan -f`); for a cluster write mean and p90"
        )
    return value


class LengthsSpec(APIModel):
    """How many tokens prompts or answers have: `mean`, with `p90` where it is known, or `fixed`."""

    mean: Tokens | None = optional("Mean length in tokens. Exactly one of mean and fixed is set.")
    p90: Tokens | None = optional(
        "90th percentile in tokens: a tenth are longer. From 1 to 2.27 times the mean. Default: twice the "
        "mean."
    )
    fixed: Tokens | None = optional("Length in tokens where all have the same.")

    @model_validator(mode="before")
    @classmethod
    def _understood(cls, value: Any) -> Any:
        return lengths_of_the_api(value)

    @model_validator(mode="after")
    def _one_form(self) -> "LengthsSpec":
        if (self.mean is None) == (self.fixed is None):
            raise ValueError(ONE_FORM)
        if self.p90 is not None:
            if self.mean is None:
                raise ValueError(P90_OF_MEAN)
            if not 100 * self.mean <= 100 * self.p90 <= MOST_P90_PERCENT * self.mean:
                raise ValueError(P90_RANGE)
        return self

    @property
    def expected(self) -> int:
        """Mean length in tokens."""
        return self.mean or self.fixed or 0


LENGTHS_RULES = validations(
    rule("has(self.mean) != has(self.fixed)", ONE_FORM),
    rule("!has(self.p90) || has(self.mean)", P90_OF_MEAN),
    rule(
        "!has(self.p90) || !has(self.mean) || "
        f"(self.p90 >= self.mean && self.p90 * 100 <= self.mean * {MOST_P90_PERCENT})",
        P90_RANGE,
    ),
)
