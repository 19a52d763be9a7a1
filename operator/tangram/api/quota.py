"""A ResourceQuota as the operator keeps it: its limits."""

from collections.abc import Mapping
from typing import Any

from tangram.fleet import QuotaLimit
from tangram.fleet.quantity import parse_quantity


def parse_quota(quota: Mapping[str, Any]) -> list[QuotaLimit]:
    """Return the limits of a mirrored ResourceQuota. Raises ValueError for an invalid quantity."""
    meta, used = quota["metadata"], quota["used"]
    terms = tuple((operator, tuple(values)) for operator, values in quota.get("priorityClasses", ()))
    return [
        QuotaLimit(
            meta.get("namespace", ""),
            meta["name"],
            resource,
            parse_quantity(hard),
            parse_quantity(used.get(resource, 0)),
            terms,
        )
        for resource, hard in quota["hard"].items()
    ]
