"""Claims of scheduled pods as holders of devices."""

from collections.abc import Container, Mapping
from dataclasses import dataclass

from tangram.fleet import Claim
from tangram.plan.fleet_input.documents.pods import DeviceHolder


@dataclass(frozen=True, slots=True)
class SliceOwner:
    """The owner of a pod that holds a slice or a GPU."""

    name: str
    movable: bool


UNMANAGED = SliceOwner("(others)", movable=False)  # of other pods; no LLMDeployment can have this name


def claim_owner(claim: Claim, names: Mapping[str, str], immovable: Container[str | None]) -> SliceOwner:
    """Return the owner of a claim. `names`: LLMDeployments by uid; `immovable`: uids of those whose replicas
    do not move.
    """
    name = names.get(claim.owner_uid or "")
    return UNMANAGED if name is None else SliceOwner(name, movable=claim.owner_uid not in immovable)


def claim_holder(name: str, claim: Claim, owner: SliceOwner) -> DeviceHolder:
    """Return the holder of what one pod claims of one resource. `name`: unique; holders are sorted by it."""
    counts = ((claim.resource, claim.count),)
    return DeviceHolder(claim.node, name, owner.name, movable=owner.movable, counts=counts)
