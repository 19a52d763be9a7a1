from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram import catalog
from tangram.capacity import memory_fit, model_length, tpot_bound_ms
from tangram.capacity.memory import GIB, MIB
from tests.support.fleet import FACTS_1B, FACTS_8B


def test_kv_of_llama_8b_is_128_kib_per_token():
    """Published: 2 x 32 layers x 8 KV heads x 128 x 2 bytes = 131072 bytes."""
    fit = memory_fit(FACTS_8B, 8192, 64, 81559)

    assert fit.kv == 8192 * 131072


def test_an_8b_model_in_bf16_fits_a_24_gb_gpu_with_a_short_context_only():
    memory = catalog.gpu("L4").memory_mib

    assert memory_fit(FACTS_8B, 8192, 64, memory).missing == 0
    assert memory_fit(FACTS_8B, 131072, 64, memory).missing > 0


def test_a_tenth_of_the_memory_is_left_alone():
    assert memory_fit(FACTS_1B, 4096, 64, 10_000).usable == int(10_000 * MIB * 0.9)


def test_what_is_missing_is_what_is_needed_less_what_is_there():
    fit = memory_fit(FACTS_8B, 131072, 64, 9984)

    assert fit.missing == fit.weights + fit.kv + fit.activations + fit.overhead - fit.usable
    assert f"needs {fit.required / GIB:.1f} GiB" in str(fit)


@given(st.integers(16, 131072), st.integers(1, 4096), st.integers(1024, 200_000))
def test_more_of_anything_needs_more_and_more_memory_helps(length, requests, memory):
    fit = memory_fit(FACTS_8B, length, requests, memory)

    assert memory_fit(FACTS_8B, length + 1, requests, memory).required > fit.required
    assert memory_fit(FACTS_8B, length, requests + 1, memory).required > fit.required
    assert memory_fit(FACTS_8B, length, requests, memory + 1).missing <= fit.missing
    assert memory_fit(replace(FACTS_8B, dtype="fp32"), length, requests, memory).kv == 2 * fit.kv


def test_the_served_length_is_never_above_the_checkpoints():
    assert model_length(FACTS_8B, None) == 131072
    assert model_length(FACTS_8B, 4096) == 4096
    assert model_length(FACTS_8B, 10**6) == 131072


def test_a_step_reads_all_weights_but_an_untied_input_embedding():
    """8.03 B parameters less 0.525 B of the input embedding, 2 bytes each, at 3350 GB/s."""
    assert tpot_bound_ms(FACTS_8B, 3350) == pytest.approx(
        2 * (8.03026e9 - 0.52534e9) / 3350e9 * 1e3, rel=1e-3
    )
    assert tpot_bound_ms(FACTS_1B, 3350) == pytest.approx(2 * 1.23581e9 / 3350e9 * 1e3, rel=1e-3)


def test_a_slice_reads_at_the_share_of_its_memory_slices():
    assert tpot_bound_ms(FACTS_8B, 3350, 1 / 8) == pytest.approx(8 * tpot_bound_ms(FACTS_8B, 3350))
