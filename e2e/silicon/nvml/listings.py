"""The state of a node in the form of `nvidia-smi mig`, for people."""

from __future__ import annotations

from e2e.silicon.nvml.placements import remaining_capacity
from e2e.silicon.nvml.state import Gpu, NvmlState


def profiles(state: NvmlState) -> str:
    """Return what `nvidia-smi mig -lgip` prints: the profiles of each GPU, and how many still fit."""
    rule = f"+{'-' * 79}+"
    lines = [
        rule,
        f"| {'GPU instance profiles:':<78}|",
        "| GPU   Name               ID    Instances   Memory     P2P    SM    DEC   ENC  |",
        "|                                Free/Total   GiB              CE    JPEG  OFA  |",
        f"|{'=' * 79}|",
    ]
    head = len(lines)
    for index, gpu in enumerate(state.gpus):
        if not _lists_profiles(state, gpu):
            continue
        for profile in state.board.profiles.values():
            free = remaining_capacity(state.board, state.placed(gpu), profile)
            engines = profile.engines
            lines += [
                f"|{index:>4}  MIG {profile.name:<16}{profile.profile_id:>2}     "
                f"{free}/{profile.max_instances}        "
                f"{profile.memory_mib / 1024:<11.2f}No     {profile.multiprocessors:<7}"
                f"{engines['decoder']:<6}{engines['encoder']:<4}|",
                f"|{engines['copy']:>64}{engines['jpeg']:>6}{engines['ofa']:>6}   |",
                rule,
            ]
    return "\n".join(lines) if len(lines) > head else NO_DEVICE


def _lists_profiles(state: NvmlState, gpu: Gpu) -> bool:
    return gpu.mig_mode or state.answers_while_off


def placements(state: NvmlState) -> str:
    """Return what `nvidia-smi mig -lgipp` prints: the starts of each profile, and its size."""
    lines = [
        f"GPU {index:>2} Profile ID {profile.profile_id:>2} Placement"
        f"{'s' if len(profile.starts) > 1 else ' '}: {{{','.join(map(str, profile.starts))}}}:{profile.size}"
        for index, gpu in enumerate(state.gpus)
        if _lists_profiles(state, gpu)
        for profile in state.board.profiles.values()
    ]
    return "\n".join(lines) or NO_DEVICE


def instances(state: NvmlState) -> str:
    """Return what `nvidia-smi mig -lgi` prints: the GPU instances of each GPU, by profile and id."""
    rule = f"+{'-' * 55}+"
    rows = [
        f"|{index:>4}  MIG {one.profile:<16}{profile.profile_id:>2}       {one.id:>2}"
        f"{f'{one.start}:{profile.size}':>13}     |"
        for index, gpu in enumerate(state.gpus)
        for one in sorted(gpu.instances, key=lambda one: (one.profile, one.id))
        for profile in (state.profile(one),)
    ]
    if not any(gpu.mig_mode for gpu in state.gpus):
        return NO_DEVICE
    if not rows:
        return "No GPU instances found: Not Found"
    head = [
        rule,
        f"| {'GPU instances:':<54}|",
        "| GPU   Name             Profile  Instance   Placement  |",
        "|                          ID       ID       Start:Size |",
        f"|{'=' * 55}|",
    ]
    return "\n".join([*head, *(line for row in rows for line in (row, rule))])


NO_DEVICE = "No MIG-enabled devices found."
