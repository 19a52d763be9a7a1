"""`tangram gpus` and `tangram mig`: the facts that everything else is computed from, with their sources."""

from collections.abc import Mapping
from typing import Any

import click

from tangram.catalog import GPU, InputError, Profile, gpu, skus
from tangram.catalog.lookup import find_gpu, nearest
from tangram.catalog.prices import Prices
from tangram.catalog.provenance import gpu_sources, mig_sources, profile_sources
from tangram.cli.options.prices import DEFAULT_PRICE_NOTE, prices_option
from tangram.cli.output import Column, document, note, notes, output_option, table

GPU_COLUMNS = (
    Column("SKU"),
    Column("MEMORY MiB", right=True),
    Column("GB/s", right=True),
    Column("SMs", right=True, rank=4),
    Column("BF16", right=True, rank=1),
    Column("FP8", right=True, rank=1),
    Column("INT8", right=True, rank=6),
    Column("FP4", right=True, rank=5),
    Column("NVLINK GB/s", right=True, rank=2),
    Column("PCIe", right=True, rank=7),
    Column("MIG", right=True, rank=3),
    Column("CC", right=True, rank=8),
    Column("$/h", right=True),
    Column("RANGE", right=True, rank=3),
    Column("SOURCES", rank=9),
)
MIG_COLUMNS = (
    Column("SKU"),
    Column("PROFILE"),
    Column("MEMORY MiB", right=True),
    Column("SMs", right=True),
    Column("COMPUTE", right=True, rank=2),
    Column("MEMORY", right=True, rank=2),
    Column("SHARE", right=True),
    Column("$/h", right=True),
    Column("STARTS", rank=3),
    Column("SOURCES", rank=9),
)


@click.command()
@prices_option
@output_option
def gpus(prices: Prices, fmt: str) -> None:
    """Show every GPU of the catalog: memory, bandwidth, compute, links, price, sources."""
    found = [facts for facts in map(gpu, skus()) if facts is not None]
    if fmt != "table":
        texts = gpu_sources()
        document([_gpu_document(facts, prices, texts) for facts in found], fmt)
        return
    table(GPU_COLUMNS, [_gpu_row(facts, prices) for facts in found])
    below = [
        "MEMORY is what NVML reports. BF16 (a T4: FP16), FP8, INT8, FP4: dense TFLOP/s (INT8: TOP/s)."
        " NVLINK: both directions together; x2: a bridge between two, larger groups use PCIe."
        " MIG: profiles, `tangram mig SKU` lists them.",
        _price_note(prices),
    ]
    if any(facts.unverified for facts in found):
        below.append(
            "* recalled from a data sheet, not read in a cited source: verify before you rely on it."
        )
    notes(below)
    _print_sources({key for facts in found for key in facts.sources}, gpu_sources())


@click.command()
@click.argument("sku", required=False)
@prices_option
@output_option
def mig(sku: str | None, prices: Prices, fmt: str) -> None:
    """Show the MIG profiles of one SKU, or of all: memory, SMs, shares, legal starts, sources."""
    boards = _boards(sku)
    sources = profile_sources()
    rows = [
        (facts, profile, sources[facts.mig_key or "", profile.name])
        for facts in boards
        for profile in facts.profiles
    ]
    if fmt != "table":
        texts = mig_sources()
        document([_profile_document(*row, prices, texts) for row in rows], fmt)
        return
    table(MIG_COLUMNS, [_profile_row(*row, prices) for row in rows])
    below = [
        "MEMORY MiB is the real size: the GB in a profile's name is a label. SHARE is the larger of the"
        " compute and memory share and what a slice is priced by. Bandwidth follows MEMORY, compute follows"
        " SMs. STARTS: first memory slice of each place that an instance may take.",
        _price_note(prices),
    ]
    if any(profile.unverified_fields for _, profile, _ in rows):
        below.append(
            "* by analogy with another board or from one report only: discover it on the machine before you"
            " rely on it."
        )
    notes(below)
    if sku is None:
        click.echo("\nSources: `tangram mig SKU`.")
    else:
        _print_sources({key for _, _, keys in rows for key in keys}, mig_sources())


def _boards(sku: str | None) -> list[GPU]:
    if sku is None:
        return [facts for facts in map(gpu, skus()) if facts is not None and facts.profiles]
    facts = find_gpu(sku)
    if facts is None:
        raise InputError("SKU", f"no GPU is called {sku!r}{nearest(sku)}; `tangram gpus` lists them")
    if not facts.profiles:
        raise InputError("SKU", f"{facts.sku} has no MIG")
    return [facts]


def _gpu_row(facts: GPU, prices: Prices) -> list[str]:
    tera = dict(facts.tflops)
    recalled = facts.unverified_facts
    sheet = "*" if "data sheet" in recalled else ""
    return [
        facts.sku + ("*" if recalled else ""),
        f"{facts.memory_mib}" + ("*" if "memory" in recalled else ""),
        f"{facts.mem_bw_gbps:.0f}{sheet}",
        str(facts.sms or "?"),
        _number(tera.get("bf16") or tera.get("fp16")) + sheet,
        _number(tera.get("fp8")),
        _number(tera.get("int8")),
        _number(tera.get("fp4")),
        _number(facts.nvlink_gbps or None) + (f" x{facts.nvlink_gpus}" if facts.nvlink_gpus else ""),
        f"gen{facts.pcie_gen}",
        str(len(facts.profiles) or "-"),
        facts.compute_capability,
        _price(prices.gpu_hour(facts.sku)),
        "yours" if not prices.is_default(facts.sku) else _range(facts.price_range),
        " ".join(facts.sources),
    ]


def _profile_row(facts: GPU, profile: Profile, sources: tuple[str, ...], prices: Prices) -> list[str]:
    doubted = profile.unverified_fields
    return [
        facts.sku,
        profile.name + ("*" if doubted else ""),
        ("?" if profile.memory_mib is None else str(profile.memory_mib))
        + ("*" if "memory" in doubted else ""),
        ("?" if profile.sm_count is None else str(profile.sm_count)) + ("*" if "sm" in doubted else ""),
        f"{profile.compute_slices}/{facts.compute_slices}",
        f"{profile.memory_slices}/{facts.memory_slices}",
        f"{profile.dominant_share:.0%}",
        _price(prices.replica_hour(facts.sku, profile.name)),
        (",".join(map(str, profile.starts)) or "?") + ("*" if "placement" in doubted else ""),
        " ".join(sources),
    ]


def _gpu_document(facts: GPU, prices: Prices, texts: Mapping[str, str]) -> dict[str, Any]:
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
        "sources": {key: texts[key] for key in facts.sources},
        "unverified": list(facts.unverified_facts),
    }


def _profile_document(
    facts: GPU, profile: Profile, sources: tuple[str, ...], prices: Prices, texts: Mapping[str, str]
) -> dict[str, Any]:
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
        "sources": {key: texts[key] for key in sources},
        "unverified": list(profile.unverified_fields),
    }


def _price_note(prices: Prices) -> str:
    if not prices.overrides:
        return DEFAULT_PRICE_NOTE + "."
    return f"{DEFAULT_PRICE_NOTE}; yours here: {', '.join(sorted(prices.overrides))}."


def _print_sources(used: set[str], sources: Mapping[str, str]) -> None:
    click.echo("\nSources:")
    for key in (key for key in sources if key in used):
        note(f"  {key}: {sources[key]}", indent="    ")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def _price(value: float | None) -> str:
    return "?" if value is None else f"{value:.2f}"


def _range(found: tuple[float, float] | None) -> str:
    return f"{found[0]:.2f}-{found[1]:.2f}" if found else "none known"
