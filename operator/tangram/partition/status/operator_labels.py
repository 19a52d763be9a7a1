"""Labels of a Node by which NVIDIA's GPU Operator says that its own components are at work.

Source: NVIDIA/mig-parted (cmd/nvidia-mig-manager), NVIDIA/gpu-operator (controllers/state_manager.go).
"""

from collections.abc import Mapping

MIG_CONFIG_LABEL = "nvidia.com/mig.config"  # the layout that mig-manager is to make
MIG_STATE_LABEL = "nvidia.com/mig.config.state"  # pending, rebooting, success, failed
DEPLOY_PREFIX = "nvidia.com/gpu.deploy."  # one label per component of the GPU Operator on this node
MIG_MANAGER_LABEL = DEPLOY_PREFIX + "mig-manager"
PAUSED_PREFIX = "paused-for-"  # mig-change, driver-upgrade
PAUSED_FOR_MIG = PAUSED_PREFIX + "mig-change"
_SHARING_SUFFIX, _SHARED = ".sharing-strategy", ("time-slicing", "mps")
_REPLICAS_SUFFIX = ".replicas"  # devices on offer for each GPU or slice; 1: it is not shared


def paused_components(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels of the components that are paused, sorted by name."""
    return {
        name: labels[name]
        for name in sorted(labels)
        if name.startswith(DEPLOY_PREFIX) and labels[name].startswith(PAUSED_PREFIX)
    }


def shared_devices(labels: Mapping[str, str]) -> str | None:
    """Return the label, with its value, by which the device plugin shares devices among pods, if it does.

    Source: NVIDIA/k8s-device-plugin (internal/lm/resource.go).
    """
    for name in sorted(labels):
        value, is_nvidia = labels[name], name.startswith("nvidia.com/")
        is_strategy = name.endswith(_SHARING_SUFFIX) and value in _SHARED
        is_count = name.endswith(_REPLICAS_SUFFIX) and value.isdecimal() and value not in ("0", "1")
        if is_nvidia and (is_strategy or is_count):
            return f"{name}={value}"
    return None
