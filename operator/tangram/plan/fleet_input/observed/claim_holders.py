"""Claims of scheduled pods as holders of devices."""

from collections.abc import Container, Mapping

from tangram.fleet import Claim
from tangram.plan.fleet_input.documents.pods import DeviceHolder
from tangram.plan.fleet_input.observed.partitioned_gpus import SliceOwner

UNMANAGED_OWNER = "(others)"  # of pods without an LLMDeployment; no LLMDeployment can have this name


def claim_owner(claim: Claim, names: Mapping[str, str], immovable: Container[str | None]) -> SliceOwner:
    """Return the owner of a claim. `names`: LLMDeployments by uid; `immovable`: uids of those whose replicas
    do not move.
    """
    name = names.get(claim.owner_uid or "")
    if name is None:
        return SliceOwner(UNMANAGED_OWNER, movable=False)
    return SliceOwner(name, movable=claim.owner_uid not in immovable)


def claim_holder(name: str, claim: Claim, owner: SliceOwner) -> DeviceHolder:
    """Return the holder of what one pod claims of one resource. `name`: unique; holders are sorted by it."""
    counts = ((claim.resource, claim.count),)
    return DeviceHolder(claim.node, name, owner.name, movable=owner.movable, counts=counts)
