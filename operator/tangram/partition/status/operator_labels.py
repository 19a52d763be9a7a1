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


def paused_components(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels of the components that are paused, sorted by name."""
    return {
        name: labels[name]
        for name in sorted(labels)
        if name.startswith(DEPLOY_PREFIX) and labels[name].startswith(PAUSED_PREFIX)
    }
