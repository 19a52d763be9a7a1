"""GPUNodes and layouts: what the spec of a GPUNode wants, and what its status says of its node's GPUs."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Literal

from tangram import catalog
from tangram.api.gpu_node import GPUNodeSpec, GPUStatus, InstanceHolder, InstanceStatus
from tangram.api.llm_deployment.status import MAX_SHORT_TEXT
from tangram.fleet import WHOLE_GPU
from tangram.packing.geometry.layouts import Placement
from tangram.partition.layouts import ObservedInstance, ObservedLayout, WantedLayout

Holders = Mapping[str, InstanceHolder | None]  # by UUID of a GPU or MIG device; None: the pod is not known
_NO_HOLDERS: Holders = {}
_MODES: Mapping[bool, Literal["Enabled", "Disabled"]] = {True: "Enabled", False: "Disabled"}
_USAGE: Mapping[bool, Literal["Held", "Free"]] = {True: "Held", False: "Free"}


def wanted_layouts(spec: GPUNodeSpec) -> tuple[WantedLayout, ...]:
    """Return the layouts that a GPUNode wants, of the GPUs that it lists."""
    return tuple(
        WantedLayout(
            gpu.id, gpu.mig_enabled, tuple(sorted(Placement(i.start, i.profile) for i in gpu.instances))
        )
        for gpu in spec.gpus
    )


def gpu_status(observed: ObservedLayout, holders: Holders = _NO_HOLDERS) -> GPUStatus:
    """Return the status of one GPU. `holders`: the devices that pods hold, as the kubelet lists them."""
    cuttable = observed.board is not None or observed.mig_enabled
    differs = observed.pending_mig_enabled != observed.mig_enabled
    return GPUStatus(
        id=observed.gpu,
        index=observed.index,
        product=observed.product,
        sku=catalog.match_device_name(observed.product),
        mig_mode=_MODES[observed.mig_enabled] if cuttable else "Unsupported",
        pending_mig_mode=_MODES[observed.pending_mig_enabled] if differs else None,
        instances=tuple(_instance_status(instance, holders) for instance in observed.instances),
        usage=None if observed.mig_enabled else _USAGE[observed.is_held(holders.keys())],
        holder=None if observed.mig_enabled else holders.get(observed.gpu),
    )


def layout_display(layouts: Iterable[ObservedLayout]) -> str:
    """Return the layouts of a node as text, the most frequent first: `6x gpu, 2x 3g.40gb+4g.40gb`."""
    return display_of(map(_text_of, layouts))


def display_of(texts: Iterable[str]) -> str:
    """Return the layouts of a node as text, from those of its GPUs."""
    counts = Counter(texts)
    parts = (f"{count}x {text}" for text, count in sorted(counts.items(), key=lambda c: (-c[1], c[0])))
    text = ", ".join(parts)
    return text if len(text) <= MAX_SHORT_TEXT else text[: MAX_SHORT_TEXT - 3] + "..."


def applied_display(wanted: Iterable[WantedLayout], observed: Iterable[ObservedLayout]) -> str:
    """Return how many GPUs are as wanted, over the GPUs of which a layout is wanted: `7/8`."""
    by_gpu = {layout.gpu: layout for layout in observed}
    applied = [layout.gpu in by_gpu and layout.is_applied(by_gpu[layout.gpu]) for layout in wanted]
    return f"{sum(applied)}/{len(applied)}"


def _instance_status(instance: ObservedInstance, holders: Holders) -> InstanceStatus:
    pods = [holders[device] for device in instance.devices if device in holders]
    return InstanceStatus(
        uuid=instance.devices[0] if len(instance.devices) == 1 else None,
        profile=instance.placement.profile,
        start=instance.placement.start,
        memory_mebibytes=instance.memory_mib,
        usage=_USAGE[instance.is_held(holders.keys())],
        holder=next((pod for pod in pods if pod is not None), None),
    )


def _text_of(layout: ObservedLayout) -> str:
    if not layout.mig_enabled:
        return WHOLE_GPU
    return "+".join(placement.profile for placement in layout.placements) or "empty"
