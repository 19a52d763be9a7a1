"""Whether mig-manager can change the layouts of a node, and what to set where it cannot."""

from tangram.partition.mig_manager.config_entries import MIGConfig
from tangram.partition.mig_manager.managed_node import ManagedNode
from tangram.partition.status.conditions import NodeConditionState
from tangram.partition.status.operator_labels import (
    MIG_MANAGER_LABEL,
    PAUSED_FOR_MIG,
    paused_components,
    shared_devices,
)

NOT_NAMED = "ConfigMapNotNamed"
CAPABLE_LABEL, STRATEGY_LABEL = "nvidia.com/mig.capable", "nvidia.com/mig.strategy"
READY = NodeConditionState("True", "Running", "mig-manager is deployed here and reads our ConfigMap")


def readiness(node: ManagedNode, config: MIGConfig, *, under_way: bool) -> NodeConditionState:
    """Return the condition Ready: what is missing first, and what to set.

    `under_way`: a change is, in which GPU feature discovery is stopped and its labels may be gone.
    """
    absent = (None,) if under_way else ()
    return _not_deployed(node, absent) or _not_countable(node, absent) or _not_configured(config) or READY


def patch_command(config: MIGConfig) -> str:
    """Return the command by which ClusterPolicy names our ConfigMap."""
    patch = f'{{"spec":{{"migManager":{{"config":{{"name":"{config.name}"}}}}}}}}'
    return f"kubectl patch clusterpolicies.nvidia.com {config.policy} --type merge -p '{patch}'"


def _not_deployed(node: ManagedNode, absent: tuple[None, ...]) -> NodeConditionState | None:
    if node.labels.get(CAPABLE_LABEL) not in ("true", *absent):
        text = f"no label {CAPABLE_LABEL}=true: deploy GPU feature discovery; where MIG cannot cut its GPUs,"
        return _not_ready("NotMIGCapable", f"{text} leave the node out of the pool")
    if node.labels.get(MIG_MANAGER_LABEL) != "true":
        text = "mig-manager is not deployed on the node: set spec.migManager.enabled=true in ClusterPolicy"
        return _not_ready("MIGManagerNotDeployed", f"{text}, and the label {MIG_MANAGER_LABEL}=true")
    others = {n: v for n, v in paused_components(node.labels).items() if v != PAUSED_FOR_MIG}
    if others:
        text = ", ".join(f"{name}={value}" for name, value in others.items())
        return _not_ready("ComponentsPaused", f"the GPU Operator works on this node: {text}")
    return None


def _not_countable(node: ManagedNode, absent: tuple[None, ...]) -> NodeConditionState | None:
    strategy = node.labels.get(STRATEGY_LABEL)
    if strategy not in ("mixed", *absent):
        text = f"{STRATEGY_LABEL} is {strategy or 'not set'}: set spec.mig.strategy=mixed in ClusterPolicy"
        return _not_ready("MIGStrategy", text)
    shared = shared_devices(node.labels)
    if shared:
        text = f"{shared}: the node does not show how many devices it has"
        return _not_ready("SharedDevices", f"{text}; switch sharing off in the device plugin's configuration")
    return None


def _not_configured(config: MIGConfig) -> NodeConditionState | None:
    if config.policy is None:
        text = "no ClusterPolicy is found: install NVIDIA's GPU Operator, or name the one that it uses"
        return _not_ready("NoClusterPolicy", text)
    if config.problem:
        return _not_ready("ConfigMapUnreadable", f"ConfigMap {config.name}: {config.problem}")
    if config.named == config.name:
        return None
    named = f"names the ConfigMap {config.named}" if config.named else "names no ConfigMap"
    text = f"ClusterPolicy {config.policy} {named}, not {config.name}"
    if config.missing:
        text += f", which lacks entries that labels of nodes name: copy {', '.join(config.missing)}, then"
    return _not_ready(NOT_NAMED, f"{text}: {patch_command(config)}")


def _not_ready(reason: str, message: str) -> NodeConditionState:
    return NodeConditionState("False", reason, message)
