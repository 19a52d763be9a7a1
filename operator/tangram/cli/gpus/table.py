"""GPUs and MIG profiles of the catalog as people read them."""

from collections.abc import Mapping, Sequence

import click

from tangram.catalog import GPU, Profile
from tangram.catalog.prices import Prices
from tangram.cli.options.prices import DEFAULT_PRICE_NOTE
from tangram.cli.output import Column, Row, note, notes, table, unverified_mark

ProfileRow = tuple[GPU, Profile, tuple[str, ...]]
"""A MIG profile, its GPU, and the keys of its sources."""


def show_gpus(gpus: Sequence[GPU], prices: Prices, source_texts: Mapping[str, str]) -> None:
    """Print a row per GPU, then what the columns mean and the sources."""
    table([_gpu_row(facts, prices) for facts in gpus])
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
    table([_profile_row(*row, prices) for row in rows])
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


def _gpu_row(facts: GPU, prices: Prices) -> Row:
    tflops, unverified = dict(facts.tflops), facts.unverified_facts
    mark = unverified_mark("data sheet" in unverified)
    links = f" x{facts.nvlink_gpus}" if facts.nvlink_gpus else ""
    return [
        (Column("SKU"), facts.sku + unverified_mark(unverified)),
        (Column("MEMORY MiB", right=True), f"{facts.memory_mib}" + unverified_mark("memory" in unverified)),
        (Column("GB/s", right=True), f"{facts.mem_bw_gbps:.0f}{mark}"),
        (Column("SMs", right=True, rank=4), str(facts.sms or "?")),
        (Column("BF16", right=True, rank=1), _number(tflops.get("bf16") or tflops.get("fp16")) + mark),
        (Column("FP8", right=True, rank=1), _number(tflops.get("fp8"))),
        (Column("INT8", right=True, rank=6), _number(tflops.get("int8"))),
        (Column("FP4", right=True, rank=5), _number(tflops.get("fp4"))),
        (Column("NVLINK GB/s", right=True, rank=2), _number(facts.nvlink_gbps or None) + links),
        (Column("PCIe", right=True, rank=7), f"gen{facts.pcie_gen}"),
        (Column("MIG", right=True, rank=3), str(len(facts.profiles) or "-")),
        (Column("CC", right=True, rank=8), facts.compute_capability),
        (Column("$/h", right=True), _price(prices.gpu_hour(facts.sku))),
        (
            Column("RANGE", right=True, rank=3),
            _range(facts.price_range) if prices.is_default(facts.sku) else "yours",
        ),
        (Column("SOURCES", rank=9), " ".join(facts.sources)),
    ]


def _profile_row(facts: GPU, profile: Profile, sources: tuple[str, ...], prices: Prices) -> Row:
    unverified = profile.unverified_fields
    memory = "?" if profile.memory_mib is None else str(profile.memory_mib)
    sms = "?" if profile.sm_count is None else str(profile.sm_count)
    starts = ",".join(map(str, profile.starts)) or "?"
    return [
        (Column("SKU"), facts.sku),
        (Column("PROFILE"), profile.name + unverified_mark(unverified)),
        (Column("MEMORY MiB", right=True), memory + unverified_mark("memory" in unverified)),
        (Column("SMs", right=True), sms + unverified_mark("sm" in unverified)),
        (Column("COMPUTE", right=True, rank=2), f"{profile.compute_slices}/{facts.compute_slices}"),
        (Column("MEMORY", right=True, rank=2), f"{profile.memory_slices}/{facts.memory_slices}"),
        (Column("SHARE", right=True), f"{profile.dominant_share:.0%}"),
        (Column("$/h", right=True), _price(prices.replica_hour(facts.sku, profile.name))),
        (Column("STARTS", rank=3), starts + unverified_mark("placement" in unverified)),
        (Column("SOURCES", rank=9), " ".join(sources)),
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
