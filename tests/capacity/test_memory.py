"""The memory budget: what adds up, what grows with what, and what is refused."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram import catalog
from tangram.capacity.hardware import hardware
from tangram.capacity.memory.budget import memory_budget, model_length
from tangram.capacity.memory.engine_buffers import MIB, EngineSettings, captured_sizes
from tangram.capacity.memory.footprint import footprint
from tangram.capacity.memory.relief import ReplicaSetup, reliefs
from tangram.catalog import InputError
from tangram.fleet import WHOLE_GPU
from tests.support.fleet import FACTS_1B, FACTS_8B
from tests.support.model_figures import footprint_from_facts

H100 = "H100-80GB-SXM"
LLAMA = footprint_from_facts(FACTS_8B)
LLAMA_1B = footprint_from_facts(FACTS_1B)
PLACES = [(H100, WHOLE_GPU), (H100, "1g.10gb"), (H100, "1g.20gb"), (H100, "3g.40gb"), ("L4", WHOLE_GPU)]


def on(sku=H100, profile=WHOLE_GPU, held=LLAMA, **limits):
    return memory_budget(held, hardware(sku, profile), EngineSettings(**({"max_model_len": 8192} | limits)))


def test_kv_of_llama_8b_is_128_kib_per_token():
    """Published: 2 x 32 layers x 8 KV heads x 128 x 2 bytes = 131072 bytes."""
    assert on().kv_needed == 8192 * 131072


def test_an_8b_model_in_bf16_fits_a_24_gb_gpu_with_a_short_context_only():
    assert on("L4").fits
    assert not on("L4", max_model_len=131072).fits


@pytest.mark.parametrize(
    ("profile", "weights", "least", "most"),
    [("1g.10gb", "fp8", 0, 0), ("1g.20gb", "fp8", 120_000, 160_000), (WHOLE_GPU, "bf16", 380_000, 460_000)],
)
def test_kv_tokens_are_those_that_others_count(profile, weights, least, most):
    """The research table behind the product: none, 144 k and 415 k tokens (with 3.5 GB of overhead)."""
    held = footprint(catalog.known_model("Llama-3.1-8B"), weights, "fp8" if weights == "fp8" else "bf16")
    assert least <= on(H100, profile, held).kv_tokens <= most


@pytest.mark.parametrize(("sku", "profile"), PLACES)
def test_the_terms_add_up_to_the_memory(sku, profile):
    b = on(sku, profile, LLAMA_1B)
    parts = b.reserve + b.context + b.graphs + b.collectives + b.workspace + b.activations + b.weights + b.kv
    assert parts == b.total == hardware(sku, profile).memory_mib * MIB


def test_a_tenth_and_the_engines_margin_are_left_alone():
    total = hardware(H100).memory_mib * MIB
    assert on().reserve == total - int(total * 0.9) + total // 100
    assert on(H100, "1g.10gb").reserve == 9984 * MIB - int(9984 * MIB * 0.9) + 256 * MIB


def test_a_slice_has_a_smaller_context_than_its_board():
    assert on(H100, "1g.10gb").context < on(H100, "3g.40gb").context < on().context


def test_only_groups_of_gpus_pay_for_communication():
    held = footprint(catalog.known_model("Llama-3.1-8B"), "bf16", tensor_parallel=2)
    assert on(held=held).collectives > on().collectives == 0
    assert "collectives" in on(held=held).unverified


def test_terms_of_cuda_are_marked_as_not_measured():
    assert {"context", "graphs"} <= set(on().unverified)
    assert "memory" in on("A100-80GB-SXM").unverified


def test_requests_take_up_whole_blocks():
    b = on(block_size=64)
    assert b.request_bytes(1) == b.request_bytes(64) == 64 * 131072
    assert b.request_bytes(65) == 2 * b.request_bytes(1)


def test_a_window_bounds_what_a_request_holds():
    windowed = replace(LLAMA, kv=((65536, None), (65536, 1024)))
    assert on(held=windowed).request_bytes(8192) == 65536 * (8192 + 1024)
    assert on(held=windowed).kv_tokens > on().kv_tokens


def test_concurrency_ends_with_memory_or_with_the_limit():
    b = on(max_running=1000)
    assert b.concurrent(1024) == b.kv // (1024 * 131072)
    assert on(max_running=3).concurrent(1024) == 3
    assert on(H100, "1g.10gb").concurrent(1024) == 0


def test_what_is_missing_is_what_would_have_to_be_added():
    b = on(H100, "1g.10gb")
    assert b.missing == b.weights + b.overhead + b.kv_needed - b.total > 0
    assert b.kv_tokens == 0
    assert f"has {9984 / 1024:.1f} GiB" in str(b)


@given(st.integers(16, 100_000), st.integers(1, 4096), st.integers(64, 16384), st.sampled_from(PLACES))
def test_more_of_anything_leaves_no_more_for_requests(length, running, tokens, place):
    def budget(**more):
        limits = {"max_model_len": length, "max_running": running, "max_batched_tokens": max(tokens, running)}
        return on(*place, LLAMA_1B, **(limits | more))

    b = budget()
    assert budget(max_model_len=length + 1).kv <= b.kv
    assert budget(max_running=running + 1, max_batched_tokens=max(tokens, running) + 1).kv <= b.kv
    assert budget(utilisation=0.8).kv < b.kv
    assert budget(max_model_len=length + 16).missing >= b.missing
    assert b.fits == (b.kv >= b.kv_needed)
    assert b.concurrent(length) > 0 if b.fits else b.concurrent(length) == 0


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"max_model_len": 0}, "max_model_len"),
        ({"max_running": -1}, "max_running"),
        ({"max_batched_tokens": 0}, "max_batched_tokens"),
        ({"block_size": 0}, "block_size"),
        ({"block_size": 1025}, "block_size"),
        ({"utilisation": 0.0}, "utilisation"),
        ({"utilisation": 1.01}, "utilisation"),
        ({"utilisation": float("nan")}, "utilisation"),
    ],
)
def test_limits_that_no_engine_accepts_are_refused_by_name(wrong, field):
    with pytest.raises(InputError) as caught:
        EngineSettings(**({"max_model_len": 100} | wrong))
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("most", "sizes"),
    [(1, (1,)), (3, (1, 2, 3)), (20, (1, 2, 4, 8, 16, 20)), (10_000, None)],
)
def test_captured_batch_sizes_end_with_the_largest(most, sizes):
    found = captured_sizes(most)
    assert sorted(set(found)) == list(found)
    assert found == sizes if sizes else found[-1] == 512


def test_the_served_length_is_never_above_the_checkpoints():
    assert model_length(FACTS_8B, None) == 131072
    assert model_length(FACTS_8B, 4096) == 4096
    assert model_length(FACTS_8B, 10**6) == 131072


# --- what would make it fit


def replica(name="Llama-3.1-8B", sku=H100, profile=WHOLE_GPU, length=131072, **more):
    parts = {"weights": "bf16", "kv": "bf16", "tensor_parallel": 1} | more
    return ReplicaSetup(catalog.known_model(name), sku, profile, limits=EngineSettings(length), **parts)


@pytest.mark.parametrize(
    "one",
    [
        replica(sku="L4"),
        replica(profile="1g.10gb"),
        replica("Llama-3.1-70B", length=8192),
        replica("Llama-3.1-405B", length=8192),
        replica("gpt-oss-120b", sku="L40S", weights="mxfp4"),
    ],
)
def test_every_relief_that_is_told_fits(one):
    assert not one.budget().fits
    found = reliefs(one, shortest=1280)
    assert found
    for each in found:
        assert each.replica.budget().fits, each.options


def test_the_longest_length_that_fits_is_told_exactly():
    length = next(each for each in reliefs(replica(sku="L4"), 1280) if each.options[0][0] == "max-model-len")
    longest = int(length.options[0][1])
    assert replica(sku="L4", length=longest).budget().fits
    assert not replica(sku="L4", length=longest + 1).budget().fits


def test_a_slice_is_never_told_to_share_a_model():
    found = reliefs(replica(profile="1g.10gb"), shortest=1280)
    assert not any(option == "tp" for each in found for option, _ in each.options)


def test_nothing_is_told_where_nothing_helps():
    assert reliefs(replica("Llama-3.1-405B", sku="L4", length=131072), shortest=131072) == ()
