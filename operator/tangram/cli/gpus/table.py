"""GPUs and MIG profiles of the catalog as people read them."""

from collections.abc import Mapping, Sequence

import click

from tangram.catalog import GPU, Profile
from tangram.catalog.prices import Prices
from tangram.cli.options.prices import DEFAULT_PRICE_NOTE
from tangram.cli.output import Column, note, notes, table

ProfileRow = tuple[GPU, Profile, tuple[str, ...]]
"""A MIG profile, its GPU, and the keys of its sources."""

_GPU_COLUMNS = (
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


_MIG_COLUMNS = (
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


def show_gpus(gpus: Sequence[GPU], prices: Prices, source_texts: Mapping[str, str]) -> None:
    """Print a row per GPU, then what the columns mean and the sources."""
    table(_GPU_COLUMNS, [_gpu_row(facts, prices) for facts in gpus])
    texts = [
        "MEMORY is what NVML reports. BF16 (T4: FP16), FP8, INT8, FP4: dense TFLOP/s (INT8: TOP/s)."
        " NVLINK: sum of both directions; x2: a bridge between two GPUs, larger groups use PCIe."
        " MIG: number of profiles, `tangram mig SKU` lists them.",
        _price_note(prices),
    ]
    if any(facts.unverified for facts in gpus):
        texts.append("* From a data sheet, without a cited source: verify before you rely on it.")
    notes(texts)
    _print_sources({key for facts in gpus for key in facts.sources}, source_texts)


def show_profiles(
    rows: Sequence[ProfileRow], prices: Prices, source_texts: Mapping[str, str], *, with_sources: bool
) -> None:
    """Print a row per MIG profile, then what the columns mean and the sources."""
    table(_MIG_COLUMNS, [_profile_row(*row, prices) for row in rows])
    texts = [
        "MEMORY MiB is the real size: the GB in a profile's name is a label. SHARE is the larger of the"
        " compute and memory share; it sets the price of a slice. Bandwidth is proportional to MEMORY,"
        " compute to SMs. STARTS: the memory slices at which an instance may start.",
        _price_note(prices),
    ]
    if any(profile.unverified_fields for _, profile, _ in rows):
        texts.append(
            "* Derived from another board or from a single report: read it on the machine before you rely on"
            " it."
        )
    notes(texts)
    if with_sources:
        _print_sources({key for _, _, keys in rows for key in keys}, source_texts)
    else:
        click.echo("\nSources: `tangram mig SKU`.")


def _gpu_row(facts: GPU, prices: Prices) -> list[str]:
    tflops = dict(facts.tflops)
    unverified = facts.unverified_facts
    mark = "*" if "data sheet" in unverified else ""
    return [
        facts.sku + ("*" if unverified else ""),
        f"{facts.memory_mib}" + ("*" if "memory" in unverified else ""),
        f"{facts.mem_bw_gbps:.0f}{mark}",
        str(facts.sms or "?"),
        _number(tflops.get("bf16") or tflops.get("fp16")) + mark,
        _number(tflops.get("fp8")),
        _number(tflops.get("int8")),
        _number(tflops.get("fp4")),
        _number(facts.nvlink_gbps or None) + (f" x{facts.nvlink_gpus}" if facts.nvlink_gpus else ""),
        f"gen{facts.pcie_gen}",
        str(len(facts.profiles) or "-"),
        facts.compute_capability,
        _price(prices.gpu_hour(facts.sku)),
        "yours" if not prices.is_default(facts.sku) else _range(facts.price_range),
        " ".join(facts.sources),
    ]


def _profile_row(facts: GPU, profile: Profile, sources: tuple[str, ...], prices: Prices) -> list[str]:
    unverified = profile.unverified_fields
    return [
        facts.sku,
        profile.name + ("*" if unverified else ""),
        ("?" if profile.memory_mib is None else str(profile.memory_mib))
        + ("*" if "memory" in unverified else ""),
        ("?" if profile.sm_count is None else str(profile.sm_count)) + ("*" if "sm" in unverified else ""),
        f"{profile.compute_slices}/{facts.compute_slices}",
        f"{profile.memory_slices}/{facts.memory_slices}",
        f"{profile.dominant_share:.0%}",
        _price(prices.replica_hour(facts.sku, profile.name)),
        (",".join(map(str, profile.starts)) or "?") + ("*" if "placement" in unverified else ""),
        " ".join(sources),
    ]


def _price_note(prices: Prices) -> str:
    if not prices.overrides:
        return DEFAULT_PRICE_NOTE + "."
    return f"{DEFAULT_PRICE_NOTE}; your own: {', '.join(sorted(prices.overrides))}."


def _print_sources(used: set[str], source_texts: Mapping[str, str]) -> None:
    click.echo("\nSources:")
    for key in (key for key in source_texts if key in used):
        note(f"  {key}: {source_texts[key]}", indent="    ")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def _price(value: float | None) -> str:
    return "?" if value is None else f"{value:.2f}"


def _range(prices: tuple[float, float] | None) -> str:
    return f"{prices[0]:.2f}-{prices[1]:.2f}" if prices else "none known"
