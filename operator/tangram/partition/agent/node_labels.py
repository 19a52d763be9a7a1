"""Labels of a Node by which NVIDIA's GPU Operator says that its own components are at work."""

from collections.abc import Mapping

from tangram.partition.agent.conditions import NodeConditionState

MIG_CONFIG_LABEL = "nvidia.com/mig.config"  # the layout that mig-manager is to make
DEPLOY_PREFIX = "nvidia.com/gpu.deploy."  # one label per component of the GPU Operator on this node
MIG_MANAGER_LABEL = DEPLOY_PREFIX + "mig-manager"
PAUSED_PREFIX = "paused-for-"  # mig-change, driver-upgrade


def conflict(labels: Mapping[str, str]) -> NodeConditionState | None:
    """Return why nothing may be changed on a node with these labels; None where it may."""
    if MIG_CONFIG_LABEL in labels and labels.get(MIG_MANAGER_LABEL) == "true":
        text = f"mig-manager is deployed and follows {MIG_CONFIG_LABEL}={labels[MIG_CONFIG_LABEL]}"
        remedy = f"set {MIG_MANAGER_LABEL}=false on the node, or partition it through mig-manager"
        return NodeConditionState("False", "BackendConflict", f"{text}: {remedy}")
    paused = sorted(
        f"{name}={value}"
        for name, value in labels.items()
        if name.startswith(DEPLOY_PREFIX) and value.startswith(PAUSED_PREFIX)
    )
    if paused:
        return NodeConditionState(
            "False", "ComponentsPaused", f"the GPU Operator works on this node: {', '.join(paused)}"
        )
    return None
