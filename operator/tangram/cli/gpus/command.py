"""`tangram gpus` and `tangram mig`: the facts on which every computation rests, with their sources."""

import click

from tangram.catalog import GPU, InputError, gpu, skus
from tangram.catalog.lookup import gpu_of_name
from tangram.catalog.prices import Prices
from tangram.catalog.provenance import gpu_sources, mig_sources, profile_sources
from tangram.cli.gpus.output import gpu_row, profile_row, show_gpus, show_profiles
from tangram.cli.options.prices import prices_option
from tangram.cli.output import document, output_option


@click.command()
@prices_option
@output_option
def gpus(prices: Prices, fmt: str) -> None:
    """Show every GPU of the catalog: memory, bandwidth, compute, links, price, sources."""
    source_texts = gpu_sources()
    rows = [gpu_row(facts, prices, source_texts) for facts in _all_gpus()]
    if fmt == "table":
        show_gpus(rows, prices, source_texts)
    else:
        document(rows, fmt)


@click.command()
@click.argument("sku", required=False)
@prices_option
@output_option
def mig(sku: str | None, prices: Prices, fmt: str) -> None:
    """Show the MIG profiles of one SKU, or of all: memory, SMs, shares, legal starts, sources."""
    sources, source_texts = profile_sources(), mig_sources()
    rows = [
        profile_row(facts, profile, sources[facts.mig_key or "", profile.name], prices, source_texts)
        for facts in _gpus_with_mig(sku)
        for profile in facts.profiles
    ]
    if fmt == "table":
        show_profiles(rows, prices, source_texts, with_sources=sku is not None)
    else:
        document(rows, fmt)


def _all_gpus() -> list[GPU]:
    return [facts for facts in map(gpu, skus()) if facts is not None]


def _gpus_with_mig(sku: str | None) -> list[GPU]:
    if sku is None:
        return [facts for facts in _all_gpus() if facts.profiles]
    facts = gpu_of_name(sku, "SKU")
    if not facts.profiles:
        raise InputError("SKU", f"{facts.sku} does not support MIG")
    return [facts]
