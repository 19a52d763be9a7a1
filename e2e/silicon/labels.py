"""The node labels of GPU feature discovery in the mixed strategy, key by key as NVIDIA's own writes them.

Source: the labelers of NVIDIA/k8s-device-plugin (internal/lm) and a captured node (tests/silicon/golden).
"""

from __future__ import annotations

from collections import Counter

from e2e.silicon.board import Machine
from e2e.silicon.catalog import ENGINES, Profile


def _versions(machine: Machine) -> dict[str, str]:
    major, minor, revision = (*machine.driver.split("."), "", "")[:3]
    cuda_major, cuda_minor = (*machine.cuda.split("."), "0")[:2]
    return {
        "nvidia.com/cuda.driver-version.full": machine.driver,
        "nvidia.com/cuda.driver-version.major": major,
        "nvidia.com/cuda.driver-version.minor": minor,
        "nvidia.com/cuda.driver-version.revision": revision,
        "nvidia.com/cuda.driver.major": major,
        "nvidia.com/cuda.driver.minor": minor,
        "nvidia.com/cuda.driver.rev": revision,
        "nvidia.com/cuda.runtime-version.full": f"{cuda_major}.{cuda_minor}",
        "nvidia.com/cuda.runtime-version.major": cuda_major,
        "nvidia.com/cuda.runtime-version.minor": cuda_minor,
        "nvidia.com/cuda.runtime.major": cuda_major,
        "nvidia.com/cuda.runtime.minor": cuda_minor,
    }


def _whole(machine: Machine) -> dict[str, str]:
    """`gpu.count` counts GPUs with MIG on too; `gpu.replicas` is 0 when every GPU has MIG on."""
    board = machine.board
    major, _, minor = board.compute_capability.partition(".")
    any_whole = any(gpu.instances is None for gpu in machine.gpus)
    return {
        "nvidia.com/gpu.compute.major": major,
        "nvidia.com/gpu.compute.minor": minor,
        "nvidia.com/gpu.count": str(len(machine.gpus)),
        "nvidia.com/gpu.family": board.family,
        "nvidia.com/gpu.machine": machine.name,
        "nvidia.com/gpu.memory": str(board.memory_mib),
        "nvidia.com/gpu.mode": "compute",
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.product": board.product,
        "nvidia.com/gpu.replicas": "1" if any_whole else "0",
        "nvidia.com/gpu.sharing-strategy": "none",
    }


def _slice(machine: Machine, profile: Profile, count: int) -> dict[str, str]:
    values: dict[str, object] = {
        "count": count,
        "memory": profile.memory_mib,
        "multiprocessors": profile.multiprocessors,
        "product": f"{machine.board.product}-MIG-{profile.dotted}",
        "replicas": 1,
        "sharing-strategy": "none",
        "slices.ci": profile.compute_slices,
        "slices.gi": profile.compute_slices,
        **{f"engines.{engine}": profile.engines[engine] for engine in ENGINES},
    }
    return {f"{profile.resource}.{key}": str(value) for key, value in values.items()}


def gfd_labels(machine: Machine, started: int) -> dict[str, str]:
    """Return every label that GPU feature discovery would set on a node with this silicon.

    `started` is Unix time in seconds. `gpu.present` is the GPU operator's, added because many select on it.
    """
    labels = {
        "nvidia.com/gfd.timestamp": str(started),
        "nvidia.com/mig.capable": str(bool(machine.board.profiles)).lower(),
        "nvidia.com/mig.strategy": "mixed",
        "nvidia.com/mps.capable": "false",
        **_versions(machine),
        **_whole(machine),
    }
    instances = [one for gpu in machine.gpus for one in gpu.instances or ()]
    profiles = {one.profile.name: one.profile for one in instances}
    for name, count in Counter(one.profile.name for one in instances).items():
        labels |= _slice(machine, profiles[name], count)
    return labels
