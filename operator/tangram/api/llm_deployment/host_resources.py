"""`spec.engine.resources`: CPU and memory of the host for one replica, as Kubernetes quantities."""

import math
import re
from typing import Annotated

from pydantic import BeforeValidator, Field, JsonValue, WithJsonSchema

from tangram.api.common.base import APIModel, optional
from tangram.api.common.values import rule, validations
from tangram.fleet.quantity import parse_quantity

_MIB = 2**20
LONGEST_QUANTITY = 20
CPU_PATTERN = r"^([0-9]{1,4}([.][0-9]{1,3})?|[0-9]{1,7}m)$"
MEMORY_PATTERN = r"^([0-9]{1,15}([.][0-9]{1,3})?(k|M|G|T|Ki|Mi|Gi|Ti)|[0-9]{1,15})$"
CPU_HELP = 'must be an amount of CPU from 500m to 1024, such as 4, "2.5" or 1500m'
# The engine takes 0.6 GiB before the first weight and without CUDA, and up to 0.75 GiB for a request's text.
MEMORY_HELP = "must be an amount of memory from 2Gi to 16Ti, such as 24Gi: the engine does not start in less"


def _quantity(
    pattern: str, low: str, high: str, unit: float, message: str
) -> tuple[BeforeValidator, WithJsonSchema]:
    """Return a validator that reads a quantity as a whole number of `unit`s, rounded up, and its schema."""
    expression = re.compile(pattern.removesuffix("$") + r"\Z")
    least, most = parse_quantity(low), parse_quantity(high)

    def units(value: object) -> int:
        text = str(value)
        if isinstance(value, bool) or not isinstance(value, str | int) or not expression.match(text):
            raise ValueError(message)
        amount = parse_quantity(text)
        if not least <= amount <= most:
            raise ValueError(message)
        return math.ceil(round(amount / unit, 6))

    written = f"string(self).matches('{pattern}')"
    bounds = " && ".join(
        f"quantity(string(self)).compareTo(quantity('{bound}')) {sign} 0"
        for bound, sign in ((low, ">="), (high, "<="))
    )
    schema: dict[str, JsonValue] = {
        "x-kubernetes-int-or-string": True,
        "maxLength": LONGEST_QUANTITY,
        **validations(rule(f"{written} && {bounds}", message)),
    }
    return BeforeValidator(units), WithJsonSchema(schema)


CPUMilli = Annotated[int, *_quantity(CPU_PATTERN, "500m", "1024", 1e-3, CPU_HELP)]
MemoryMiB = Annotated[int, *_quantity(MEMORY_PATTERN, "2Gi", "16Ti", _MIB, MEMORY_HELP)]


class HostRequestsSpec(APIModel):
    """CPU and memory requests of one replica."""

    cpu: CPUMilli | None = optional(
        "CPU of one replica, from 500m to 1024. Default: its share of the operator's setting cpuPerGPU."
    )
    memory: MemoryMiB | None = optional(
        "Host memory of one replica, from 2Gi to 16Ti. A replica that uses more is OOMKilled. Default: "
        "its share of the operator's setting memoryPerGPU."
    )


class HostResourcesSpec(APIModel):
    """CPU and memory of the host."""

    requests: HostRequestsSpec = Field(
        default_factory=HostRequestsSpec,
        description="CPU and memory of one replica, on any shape. Limits are equal to requests (QoS "
        "Guaranteed).",
    )
