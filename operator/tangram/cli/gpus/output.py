"""What `tangram gpus` and `tangram mig` print: a row for each GPU or MIG profile of the catalog."""

from collections.abc import Mapping, Sequence
from typing import Any

import click

from tangram.catalog import GPU, Profile
from tangram.catalog.prices import Prices
from tangram.cli.options.prices import DEFAULT_PRICE_NOTE
from tangram.cli.output import ANY, Column, Row, note, notes, table


def gpu_row(facts: GPU, prices: Prices, source_texts: Mapping[str, str]) -> dict[str, Any]:
    """Return one GPU. `source_texts`: citations by key."""
    return {
        "sku": facts.sku,
        "memory_mib": facts.memory_mib,
        "memory_bandwidth_gb_per_s": facts.mem_bw_gbps,
        "sms": facts.sms,
        "dense_tflops": dict(facts.tflops),
        "compute_capability": facts.compute_capability,
        "nvlink_gb_per_s": facts.nvlink_gbps,
        "nvlink_gpus": facts.nvlink_gpus,
        "peer_to_peer": facts.peer_to_peer,
        "pcie_gen": facts.pcie_gen,
        "mig_profiles": [profile.name for profile in facts.profiles],
        "usd_per_hour": prices.gpu_hour(facts.sku),
        "usd_per_hour_is_default": prices.is_default(facts.sku),
        "usd_per_hour_range": list(facts.price_range) if facts.price_range else None,
        "sources": {key: source_texts[key] for key in facts.sources},
        "unverified": list(facts.unverified_facts),
    }


def profile_row(
    facts: GPU, profile: Profile, sources: Sequence[str], prices: Prices, source_texts: Mapping[str, str]
) -> dict[str, Any]:
    """Return one MIG profile of a GPU. `sources`: keys of `source_texts`."""
    return {
        "sku": facts.sku,
        "profile": profile.name,
        "resource": profile.resource,
        "memory_mib": profile.memory_mib,
        "sms": profile.sm_count,
        "compute_slices": profile.compute_slices,
        "compute_slices_of_board": facts.compute_slices,
        "memory_slices": profile.memory_slices,
        "memory_slices_of_board": facts.memory_slices,
        "dominant_share": profile.dominant_share,
        "usd_per_hour": prices.replica_hour(facts.sku, profile.name),
        "usd_per_hour_is_default": prices.is_default(facts.sku),
        "starts": list(profile.starts),
        "sources": {key: source_texts[key] for key in sources},
        "unverified": list(profile.unverified_fields),
    }


def show_gpus(rows: Sequence[Row], prices: Prices, source_texts: Mapping[str, str]) -> None:
    """Print a table of GPUs, then what the columns mean and the sources."""
    table(_GPU_COLUMNS, rows)
    texts = [
        "MEMORY is what NVML reports. BF16 (T4: FP16), FP8, INT8, FP4: dense TFLOP/s (INT8: TOP/s)."
        " NVLINK: sum of both directions; x2: a bridge between two GPUs, which predictions count as PCIe."
        " MIG: number of profiles, `tangram mig SKU` lists them.",
        _price_note(prices),
    ]
    if any(row["unverified"] for row in rows):
        texts.append("* From a data sheet, without a cited source: verify before you rely on it.")
    notes(texts)
    _print_sources(rows, source_texts)


def show_profiles(
    rows: Sequence[Row], prices: Prices, source_texts: Mapping[str, str], *, with_sources: bool
) -> None:
    """Print a table of MIG profiles, then what the columns mean and the sources."""
    table(_PROFILE_COLUMNS, rows)
    texts = [
        "MEMORY MiB is the real size: the GB in a profile's name is a label. SHARE is the larger of the"
        " compute and memory share; it sets the price of a slice. Bandwidth is proportional to MEMORY,"
        " compute to SMs. STARTS: the memory slices at which an instance may start.",
        _price_note(prices),
    ]
    if any(row["unverified"] for row in rows):
        texts.append(
            "* Derived from another board or from a single report: read it on the machine before you rely on"
            " it."
        )
    notes(texts)
    if with_sources:
        _print_sources(rows, source_texts)
    else:
        click.echo("\nSources: `tangram mig SKU`.")


def _bf16(row: Row) -> float | None:
    tflops: Mapping[str, float] = row["dense_tflops"]
    return tflops.get("bf16") or tflops.get("fp16")


def _nvlink(row: Row) -> str:
    speed = f"{row['nvlink_gb_per_s']:.0f}" if row["nvlink_gb_per_s"] else "-"
    return f"{speed} x{row['nvlink_gpus']}" if row["nvlink_gpus"] else speed


def _range(row: Row) -> str:
    if not row["usd_per_hour_is_default"]:
        return "yours"
    lowest, highest = row["usd_per_hour_range"] or (None, None)
    return "none known" if lowest is None else f"{lowest:.2f}-{highest:.2f}"


_MEMORY = Column("MEMORY MiB", "memory_mib", missing="?", mark="memory", right=True)
_PRICE = Column("$/h", "usd_per_hour", ".2f", missing="?", right=True)
_SOURCES = Column("SOURCES", lambda row: " ".join(row["sources"]), rank=9)

_GPU_COLUMNS = (
    Column("SKU", "sku", mark=ANY),
    _MEMORY,
    Column("GB/s", "memory_bandwidth_gb_per_s", ".0f", mark="data sheet", right=True),
    Column("SMs", "sms", missing="?", right=True, rank=4),
    Column("BF16", _bf16, ".0f", mark="data sheet", right=True, rank=1),
    Column("FP8", lambda row: row["dense_tflops"].get("fp8"), ".0f", right=True, rank=1),
    Column("INT8", lambda row: row["dense_tflops"].get("int8"), ".0f", right=True, rank=6),
    Column("FP4", lambda row: row["dense_tflops"].get("fp4"), ".0f", right=True, rank=5),
    Column("NVLINK GB/s", _nvlink, right=True, rank=2),
    Column("PCIe", lambda row: f"gen{row['pcie_gen']}", right=True, rank=7),
    Column("MIG", lambda row: len(row["mig_profiles"]) or None, right=True, rank=3),
    Column("CC", "compute_capability", right=True, rank=8),
    _PRICE,
    Column("RANGE", _range, right=True, rank=3),
    _SOURCES,
)

_PROFILE_COLUMNS = (
    Column("SKU", "sku"),
    Column("PROFILE", "profile", mark=ANY),
    _MEMORY,
    Column("SMs", "sms", missing="?", mark="sm", right=True),
    Column("COMPUTE", "{compute_slices}/{compute_slices_of_board}".format_map, right=True, rank=2),
    Column("MEMORY", "{memory_slices}/{memory_slices_of_board}".format_map, right=True, rank=2),
    Column("SHARE", "dominant_share", ".0%", right=True),
    _PRICE,
    Column("STARTS", lambda row: ",".join(map(str, row["starts"])) or "?", mark="placement", rank=3),
    _SOURCES,
)


def _price_note(prices: Prices) -> str:
    if not prices.overrides:
        return DEFAULT_PRICE_NOTE + "."
    return f"{DEFAULT_PRICE_NOTE}; your own: {', '.join(sorted(prices.overrides))}."


def _print_sources(rows: Sequence[Row], source_texts: Mapping[str, str]) -> None:
    used = {key for row in rows for key in row["sources"]}
    click.echo("\nSources:")
    for key in (key for key in source_texts if key in used):
        note(f"  {key}: {source_texts[key]}", indent="    ")
