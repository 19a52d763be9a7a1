"""Read the kinds `Inventory` and `SliceRequest`: a fleet, and demand for slices, written by hand."""

from collections.abc import Mapping
from typing import Any

from tangram.catalog.reading.fields import Fields
from tangram.catalog.records import NODE_GPUS
from tangram.fleet import WHOLE_GPU
from tangram.packing import GPUState, Headroom, Instance
from tangram.packing.geometry.board import board
from tangram.plan.fleet_input.documents import document_fields as read
from tangram.plan.fleet_input.documents.fleet_input import FleetInput, PlanTerms, SliceRequest
from tangram.plan.fleet_input.documents.profile_names import full_name

MOST_GPUS = 1_000_000
_BACKENDS = ("nvml", "mig-manager")
_GPU_KEYS = (
    "id", "node", "sku", "zone", "pool", "migEnabled", "cuttable", "backend", "nvlinkGPUs", "pricePerGPUHour",
    "instances", "free", "inferred",
)  # fmt: skip
_INSTANCE_KEYS = ("profile", "start", "owner", "movable", "moveCost", "gang")


def read_inventory(document: Mapping[str, Any], where: str) -> FleetInput:
    """Read an Inventory. Raises `InputError` with file, key and valid values."""
    fields = read.body(document, where)
    read.closed(fields, ("gpus", "headroom", "prices", "moveCost", "moveBudget", "horizonHours"))
    entries = read.objects(fields, "gpus")
    return FleetInput(
        gpus=tuple(_gpu(entry) for entry in entries),
        headroom=tuple(_headroom(entry) for entry in read.objects(fields, "headroom")),
        terms=PlanTerms(
            prices=read.prices(fields),
            move_cost=read.move_cost(fields),
            move_budget=fields.size("moveBudget", 0, minimum=0) if fields.has("moveBudget") else None,
            horizon_h=_horizon(fields),
        ),
        inferred=frozenset(read.word(entry, "id") for entry in entries if entry.flag("inferred")),
    )


def read_slice_request(document: Mapping[str, Any], where: str) -> SliceRequest:
    """Read a SliceRequest; its default name is its profile."""
    fields = read.body(document, where)
    read.closed(fields, ("name", "profile", "count", "sku", "priority"))
    profile = read.word(fields, "profile")
    name = read.name_of(document, where) or read.optional_word(fields, "name") or profile
    return SliceRequest(
        name=name,
        profile=profile,
        count=fields.size("count", 1, minimum=0, maximum=MOST_GPUS),
        sku=read.sku(fields) if fields.has("sku") else None,
        priority=fields.size("priority", 0, minimum=-(10**9)),
    )


def _horizon(fields: Fields) -> float | None:
    shortest, longest = read.HORIZON_RANGE_H
    hours = read.number(fields, "horizonHours", longest)
    if hours is not None and hours < shortest:
        raise fields.error("horizonHours", f"must be at least {shortest:g}" if hours else "must be above 0")
    return hours


def _gpu(fields: Fields) -> GPUState:
    read.closed(fields, _GPU_KEYS)
    gpu_id = read.word(fields, "id")
    sku = read.sku(fields)
    entries = (*read.objects(fields, "instances"), *read.objects(fields, "free"))
    instances = [_instance(entry, sku) for entry in entries]
    instances.sort(key=lambda i: (i.start, i.profile))
    _refuse_overlaps(fields, gpu_id, sku, instances)
    backend = read.optional_word(fields, "backend") or "nvml"
    if backend not in _BACKENDS:
        raise fields.error("backend", f"is {backend!r}, must be {' or '.join(_BACKENDS)}")
    cuttable = fields.flag("cuttable", default=True)
    states_mode = fields.has("migEnabled")
    cut = any(instance.profile != WHOLE_GPU for instance in instances)
    return GPUState(
        id=gpu_id,
        node=read.optional_word(fields, "node") or gpu_id,
        sku=sku,
        zone=read.optional_word(fields, "zone") or "",
        pool=read.optional_word(fields, "pool") or "",
        cuttable=cuttable,
        mig_enabled=fields.flag("migEnabled") if states_mode else cut,
        # An empty GPU without migEnabled may be used whole or be cut.
        convertible=not states_mode and not instances and cuttable and board(sku) is not None,
        backend="nvml" if backend == "nvml" else "mig-manager",
        nvlink_gpus=fields.size("nvlinkGPUs", NODE_GPUS),
        price_per_hour=read.price(fields, "pricePerGPUHour"),
        instances=tuple(instances),
    )


def _refuse_overlaps(fields: Fields, gpu_id: str, sku: str, instances: list[Instance]) -> None:
    """Raise `InputError` naming the first two of the sorted `instances` that share memory slices."""
    used = 0
    earlier: list[Instance] = []
    for instance in instances:
        mask = _memory_mask(sku, instance)
        if used & mask:
            other = next(i for i in earlier if _memory_mask(sku, i) & mask)
            overlap = f"{_described(instance)} overlaps {_described(other)}"
            raise fields.error("instances", f"GPU {gpu_id}: {overlap}")
        used |= mask
        earlier.append(instance)


def _memory_mask(sku: str, instance: Instance) -> int:
    """Return memory slices as bits: all for a whole GPU, none for a placement that the board lacks."""
    if instance.profile == WHOLE_GPU:
        return -1
    mig_board = board(sku)
    option = mig_board.option(instance.profile, instance.start) if mig_board else None
    return option.mask if option else 0


def _described(instance: Instance) -> str:
    owner = "free" if instance.owner is None else f"of {instance.owner}"
    return f"{instance.profile}@{instance.start} ({owner})"


def _instance(fields: Fields, sku: str) -> Instance:
    read.closed(fields, _INSTANCE_KEYS)
    profile = full_name(sku, read.word(fields, "profile"))
    if profile != WHOLE_GPU and not fields.has("start"):
        raise fields.error("start", "is missing: the memory slice at which the instance begins")
    return Instance(
        profile=profile,
        start=fields.size("start", 0, minimum=0, maximum=63),
        owner=read.optional_word(fields, "owner"),
        movable=fields.flag("movable", default=True),
        move_cost=read.move_cost(fields),
        gang=read.optional_word(fields, "gang"),
    )


def _headroom(fields: Fields) -> Headroom:
    read.closed(fields, ("sku", "profile", "count"))
    sku = read.sku(fields)
    return Headroom(sku, full_name(sku, read.word(fields, "profile")), fields.size("count", 1, minimum=0))
