"""Lift the holds that an operator left on Nodes when it was uninstalled: no later operator may come."""

import asyncio
import logging

from tangram.eligibility.devices.tolerations import held_resource
from tangram.kube.client import UNGUARDED, ApiClient, ApiError
from tangram.kube.kinds import NODES, Object
from tangram.kube.retry_delays import RetryDelays
from tangram.shell.repartition.fleet_state import holds

log = logging.getLogger(__name__)

MANAGER = "tangram-partition"
ATTEMPTS = 8  # for all nodes; a Node is often written by others at the same time


async def lift_holds(client: ApiClient) -> bool:
    """Lift every hold that has instants, so not those of a person; return whether none is left.

    Each write carries the version of the Node: no taint of another author is lost.
    """
    delays = RetryDelays()
    for attempt in range(ATTEMPTS):
        if attempt:
            await asyncio.sleep(delays.next_s())
        try:
            if await _lift_all(client):
                return True
        except ApiError as error:
            log.warning("Nodes: %s", error)
            if not error.transient:
                return False
    return False


async def _lift_all(client: ApiClient) -> bool:
    """Try each node once; return whether no hold is left."""
    is_done = True
    for node in (await client.list(NODES, reduce=_reduced)).items:
        name, lifted = node["metadata"]["name"], {h.resource for h in holds(node) if h.until is not None}
        taints = [taint for taint in node["taints"] if held_resource(taint) not in lifted]
        if len(taints) == len(node["taints"]):
            continue
        patch = {
            "metadata": {"resourceVersion": node["metadata"]["resourceVersion"]},
            "spec": {"taints": taints},
        }
        try:
            await client.merge(NODES, "", name, patch, manager=MANAGER, guard=UNGUARDED)
        except ApiError as error:
            if error.status != 404:  # the node is gone, and its holds with it
                is_done = False
                log.warning("Node %s: %s", name, error)
        else:
            log.info("Node %s: lifted the holds for %s", name, ", ".join(sorted(lifted)))
    return is_done


def _reduced(node: Object) -> Object:
    return {"metadata": node["metadata"], "taints": node.get("spec", {}).get("taints") or []}
