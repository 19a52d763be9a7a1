"""A key of a Secret in the namespace of the object that names it."""

import re
from typing import Annotated

from pydantic import AfterValidator, Field, StrictStr

from tangram.api.common.base import APIModel
from tangram.api.common.labels import DNS_SUBDOMAIN, LONGEST_NAME
from tangram.api.common.values import rule, validations

_NAME_PATTERN = rf"^{DNS_SUBDOMAIN}$"
_KEY_PATTERN = r"^[-_A-Za-z0-9][-._A-Za-z0-9]*$"  # no leading dot: neither `..` nor a hidden file
_NAME_HELP = f"must be the name of a Secret: letters a-z, digits, '-' and '.', up to {LONGEST_NAME}"
_KEY_HELP = f"must be a key of a Secret: letters, digits and - _ . with no dot first, up to {LONGEST_NAME}"


def _matching(pattern: str, message: str) -> AfterValidator:
    expression = re.compile(pattern.removesuffix("$") + r"\Z")

    def check(text: str) -> str:
        if not expression.match(text):
            raise ValueError(message)
        return text

    return AfterValidator(check)


class SecretRefSpec(APIModel):
    """A Secret of this namespace."""

    name: Annotated[StrictStr, _matching(_NAME_PATTERN, _NAME_HELP)] = Field(
        min_length=1,
        max_length=LONGEST_NAME,
        description="Name of the Secret, in the namespace of this object.",
        json_schema_extra=validations(rule(f"self.matches(r'{_NAME_PATTERN}')", _NAME_HELP)),
    )


class SecretKeySpec(SecretRefSpec):
    """A key of a Secret of this namespace."""

    key: Annotated[StrictStr, _matching(_KEY_PATTERN, _KEY_HELP)] = Field(
        default="api-keys",
        min_length=1,
        max_length=LONGEST_NAME,
        description="Key of the Secret whose value is the file.",
        json_schema_extra=validations(rule(f"self.matches(r'{_KEY_PATTERN}')", _KEY_HELP)),
    )
