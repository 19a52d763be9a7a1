"""Read and validate the catalog's files. A wrong entry is a bug: it stops the program."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from tangram.catalog.reading.packaged_yaml import packaged_yaml
from tangram.catalog.records import GPU, Profile


class CatalogError(ValueError):
    """An entry of the catalog is missing a fact or contradicts itself."""


@cache
def load() -> Mapping[str, GPU]:
    """Return every GPU of the shipped catalog by SKU, sorted."""
    return parse(read_document("gpus.yaml"), read_document("mig_profiles.yaml"))


def parse(gpus: Mapping[str, Any], mig: Mapping[str, Any]) -> Mapping[str, GPU]:
    """Build the catalog from the two documents. Raises `CatalogError` naming the entry that is wrong."""
    boards = {board["key"]: board for board in mig["products"]}
    return {sku: _gpu(sku, gpus["gpus"][sku], boards) for sku in sorted(gpus["gpus"])}


def read_document(name: str) -> Mapping[str, Any]:
    """Return a file of the catalog as it is written."""
    document: Mapping[str, Any] = packaged_yaml("tangram.catalog", name)
    return document


def _gpu(sku: str, entry: Mapping[str, Any], boards: Mapping[str, Mapping[str, Any]]) -> GPU:
    key = entry["mig_key"]
    if key is not None and key not in boards:
        raise CatalogError(f"gpus.yaml: {sku}.mig_key {key!r} is not a board of mig_profiles.yaml")
    if entry["mig"] != (key is not None):
        raise CatalogError(f"gpus.yaml: {sku}.mig and {sku}.mig_key contradict each other")
    memory = _positive(entry["memory_mib"], f"gpus.yaml: {sku}.memory_mib")
    return GPU(
        sku=sku,
        memory_mib=int(memory),
        mem_bw_gbps=_positive(entry["mem_bw_gbps"], f"gpus.yaml: {sku}.mem_bw_gbps"),
        tflops=tuple(sorted((kind, float(value)) for kind, value in entry["tflops"].items() if value)),
        product_patterns=tuple(entry["gfd_product_label_patterns"]),
        mig_key=key,
        unverified_facts=tuple(
            fact
            for fact, check in (("data sheet", entry["check"]), ("memory", entry["memory_mib_check"]))
            if check != "stored"
        ),
        aliases=tuple(entry.get("aliases") or ()),
        sms=entry.get("sms"),
        nvlink_gbps=float(entry["nvlink_gbps"]),
        nvlink_gpus=_nvlink_gpus(sku, entry),
        peer_to_peer=bool(entry.get("peer_to_peer", True)),
        pcie_gen=int(entry["pcie_gen"]),
        compute_capability=str(entry["compute_capability"]),
        price_range=_price_range(sku, entry["usd_per_hour"]),
        sources=tuple(entry["source"]),
        profiles=_profiles(boards[key], memory) if key is not None else (),
        compute_slices=boards[key]["compute_slices_total"] if key is not None else 0,
        memory_slices=boards[key]["memory_slices_total"] if key is not None else 0,
        engine_caps=_engines(boards[key]["engine_caps"]) if key is not None else (),
    )


def _nvlink_gpus(sku: str, entry: Mapping[str, Any]) -> int | None:
    gpus = entry.get("nvlink_gpus")
    if gpus is None:
        return None
    if not entry["nvlink_gbps"] or not isinstance(gpus, int) or gpus < 2:
        raise CatalogError(f"gpus.yaml: {sku}.nvlink_gpus {gpus!r} joins nothing")
    return gpus


def _price_range(sku: str, price_range: Mapping[str, float | None]) -> tuple[float, float] | None:
    low, high = price_range["low"], price_range["high"]
    if low is None or high is None:
        return None
    if not 0 < low <= high:
        raise CatalogError(f"gpus.yaml: {sku}.usd_per_hour is not a range")
    return low, high


def _profiles(board: Mapping[str, Any], board_memory_mib: float) -> tuple[Profile, ...]:
    where = f"mig_profiles.yaml: {board['key']}"
    compute = _positive(board["compute_slices_total"], f"{where}.compute_slices_total")
    memory = _positive(board["memory_slices_total"], f"{where}.memory_slices_total")
    profiles = tuple(_profile(where, entry, compute, memory) for entry in board["profiles"])
    if len({profile.resource for profile in profiles}) != len(profiles):
        raise CatalogError(f"{where}: two profiles share one resource name")
    for profile in profiles:
        if profile.memory_mib is not None and profile.memory_mib > board_memory_mib:
            raise CatalogError(f"{where}.{profile.name}: more memory than its board")
    return profiles


def _profile(where: str, entry: Mapping[str, Any], compute: float, memory: float) -> Profile:
    where = f"{where}.{entry['name']}"
    compute_share = _positive(entry["compute_slices"], f"{where}.compute_slices") / compute
    memory_share = _positive(entry["memory_slices"], f"{where}.memory_slices") / memory
    if max(compute_share, memory_share) > 1:
        raise CatalogError(f"{where}: more slices than its board has")
    return Profile(
        name=entry["name"],
        resource=entry["k8s_resource"],
        memory_mib=entry["memory_mib"],
        compute_share=compute_share,
        memory_share=memory_share,
        sm_count=entry["sm_count"],
        unverified_fields=tuple(entry.get("unverified_fields") or ()),
        compute_slices=entry["compute_slices"],
        memory_slices=entry["memory_slices"],
        starts=_starts(where, entry["placement"], memory),
        engines=_engines(entry["engines"]),
    )


def _starts(where: str, placement: Mapping[str, Any] | None, memory: float) -> tuple[int, ...]:
    if placement is None:
        return ()
    starts = tuple(sorted(placement["starts"]))
    if not starts or starts[0] < 0 or starts[-1] + placement["size"] > memory:
        raise CatalogError(f"{where}.placement.starts {list(starts)} leave the board")
    return starts


def _engines(counts: Mapping[str, int | None] | None) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((kind, count) for kind, count in (counts or {}).items() if count is not None))


def _positive(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise CatalogError(f"{where} is {value!r}, not a positive number")
    return float(value)
