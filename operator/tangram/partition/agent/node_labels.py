"""Labels of a Node that keep a node agent from changing anything."""

from collections.abc import Mapping

from tangram.partition.status.conditions import NodeConditionState
from tangram.partition.status.operator_labels import (
    MIG_CONFIG_LABEL,
    MIG_MANAGER_LABEL,
    paused_components,
    shared_devices,
)


def conflict(labels: Mapping[str, str]) -> NodeConditionState | None:
    """Return why nothing may be changed on a node with these labels; None where it may."""
    if MIG_CONFIG_LABEL in labels and labels.get(MIG_MANAGER_LABEL) == "true":
        text = f"mig-manager is deployed and follows {MIG_CONFIG_LABEL}={labels[MIG_CONFIG_LABEL]}"
        remedy = f"set {MIG_MANAGER_LABEL}=false on the node, or partition it through mig-manager"
        return NodeConditionState("False", "BackendConflict", f"{text}: {remedy}")
    shared = shared_devices(labels)
    if shared is not None:  # nor would the node ever offer as many devices as its GPUs hold
        text = f"the device plugin shares devices among pods ({shared}): their GPUs are not cut"
        return NodeConditionState(
            "False", "SharedDevices", f"{text}; switch sharing off in its configuration"
        )
    paused = [f"{name}={value}" for name, value in paused_components(labels).items()]
    if paused:
        return NodeConditionState(
            "False", "ComponentsPaused", f"the GPU Operator works on this node: {', '.join(paused)}"
        )
    return None
