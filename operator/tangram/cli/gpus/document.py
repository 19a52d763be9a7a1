"""GPUs and MIG profiles of the catalog as JSON and YAML show them."""

from collections.abc import Mapping
from typing import Any

from tangram.catalog import GPU, Profile
from tangram.catalog.prices import Prices


def gpu_document(facts: GPU, prices: Prices, source_texts: Mapping[str, str]) -> dict[str, Any]:
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


def profile_document(
    facts: GPU, profile: Profile, sources: tuple[str, ...], prices: Prices, source_texts: Mapping[str, str]
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
