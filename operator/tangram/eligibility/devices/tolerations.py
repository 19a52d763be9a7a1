"""The tolerations of engine pods, one list for rendered pods and for the reading of nodes.

The list is part of the pod template, and a changed pod template replaces every pod. So nothing here is
derived from the catalog: the profiles of a board are written down, and a profile that joins the catalog later
is not in the list of its board. A hold on such a profile closes its node to all new replicas, which is safe;
the profile may be added with another change of the template. A new board adds a line of its own.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from tangram.fleet import WHOLE_GPU, resource_name
from tangram.fleet.labels import NVIDIA_PREFIX

Toleration = Mapping[str, Any]


HOLD_PREFIX = "hold.tangram.dev/"
"""A NoSchedule taint `hold.tangram.dev/<resource without nvidia.com/>` closes a node to pods that request
that resource, and to no others: slices can be cut while other replicas run and start on the node.
"""

# NVIDIA's operator, GKE (nvidia.com/gpu=present), EKS with Karpenter (=true) and OpenShift taint GPU nodes by
# the resource's name, with one value or another; NVIDIA's own pods tolerate any. AKS names no resource.
# NVIDIA/gpu-operator, deployments/gpu-operator/values.yaml (daemonsets.tolerations);
# cloud.google.com/kubernetes-engine/docs/how-to/gpus (node taints);
# docs.aws.amazon.com/eks/latest/userguide/ml-inference-gpu-nodepool-cli.html;
# learn.microsoft.com/azure/aks/operator-best-practices-advanced-scheduler (sku=gpu:NoSchedule).
# Spot nodes and nodes reserved for a team (dedicated=…) are the installer's choice: left to the settings.
GPU_TAINTS: tuple[Toleration, ...] = (
    MappingProxyType({"key": resource_name(WHOLE_GPU), "operator": "Exists", "effect": "NoSchedule"}),
    MappingProxyType({"key": "sku", "operator": "Equal", "value": "gpu", "effect": "NoSchedule"}),
)
"""Tolerations of engine pods and inspect Jobs under any settings."""

_80GB = "1g.10gb 1g.10gb+me 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb"
HELD_PROFILES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        sku: tuple(profiles.split())
        for sku, profiles in {
            "A100-40GB-SXM": "1g.5gb 1g.5gb+me 1g.10gb 2g.10gb 3g.20gb 4g.20gb 7g.40gb",
            "A100-80GB-PCIE": _80GB,
            "A100-80GB-SXM": _80GB,
            "A30": "1g.6gb 1g.6gb+me 2g.12gb 2g.12gb+me 4g.24gb",
            "B200-180GB-SXM": "1g.23gb 1g.23gb+me 1g.45gb 2g.45gb 3g.90gb 4g.90gb 7g.180gb",
            "GB200-186GB": "1g.23gb 1g.23gb+me 1g.47gb 2g.47gb 3g.93gb 4g.93gb 7g.186gb",
            "H100-80GB-PCIE": _80GB,
            "H100-80GB-SXM": _80GB,
            "H100-94GB-NVL": "1g.12gb 1g.12gb+me 1g.24gb 2g.24gb 3g.47gb 4g.47gb 7g.94gb",
            "H200-141GB-SXM": "1g.18gb 1g.18gb+me 1g.35gb 2g.35gb 3g.71gb 4g.71gb 7g.141gb",
            "RTX-PRO-6000-SERVER": (
                "1g.24gb 1g.24gb+me 1g.24gb+gfx 1g.24gb+me.all 1g.24gb-me"
                " 2g.48gb 2g.48gb+gfx 2g.48gb+me.all 2g.48gb-me 4g.96gb 4g.96gb+gfx"
            ),
        }.items()
    }
)
"""Profiles that nodes of a board may be held for, beside whole GPUs, by SKU. Never add to a released line."""


def hold_taint(resource: str) -> str:
    """Return the key of the taint that holds a node for `resource`: hold.tangram.dev/mig-1g.10gb.me."""
    return HOLD_PREFIX + resource.removeprefix(NVIDIA_PREFIX)


def held_resource(taint: Mapping[str, Any]) -> str:
    """Return the resource that a taint holds its node for; empty if it is no hold."""
    key = str(taint.get("key", ""))
    holds = key.startswith(HOLD_PREFIX) and taint.get("effect") == "NoSchedule"
    return NVIDIA_PREFIX + key.removeprefix(HOLD_PREFIX) if holds else ""


def engine_tolerations(sku: str, resource: str, added: Iterable[Toleration]) -> tuple[Toleration, ...]:
    """Return the tolerations of an engine on `resource` of `sku`, those `added` by the settings last.

    Node affinity keeps the pod on nodes of `sku`, so only holds of that board matter.
    """
    profiles = HELD_PROFILES.get(sku, ())
    held = [resource_name(profile) for profile in (WHOLE_GPU, *profiles)] if profiles else []
    own = () if resource == resource_name(WHOLE_GPU) else (_any_value(resource),)
    holds = (_any_value(hold_taint(other)) for other in held if other != resource)
    return (*GPU_TAINTS, *own, *holds, *added)


def inspect_tolerations(added: Iterable[Toleration]) -> tuple[Toleration, ...]:
    """Return the tolerations of inspect Jobs: they request no device, so every hold of every board."""
    profiles = {profile for board in HELD_PROFILES.values() for profile in board}
    keys = sorted(hold_taint(resource_name(profile)) for profile in (WHOLE_GPU, *profiles))
    return (*GPU_TAINTS, *map(_any_value, keys), *added)


def _any_value(key: str) -> Toleration:
    """Tolerate any taint of this key. For the pod's resource the admission controller
    ExtendedResourceToleration adds the same one (kubernetes.io/docs/reference/access-authn-authz).
    """
    return {"key": key, "operator": "Exists", "effect": "NoSchedule"}


def tolerates(toleration: Toleration, taint: Mapping[str, Any]) -> bool:
    """Whether a pod with `toleration` may start and stay on a node with `taint`."""
    if toleration.get("tolerationSeconds") is not None:
        return False  # it would be evicted again
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    if toleration.get("key") and toleration["key"] != taint.get("key"):
        return False
    operator = toleration.get("operator") or "Equal"
    same = (toleration.get("value") or "") == (taint.get("value") or "")
    return operator == "Exists" or (operator == "Equal" and same)
