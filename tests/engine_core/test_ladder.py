"""Steps, graphs and splits follow from the SMs of the slice, not from the name of the board."""

import pytest

from tangram_engine.run.ladder import (
    LARGEST_STEP,
    PROGRAMS_PER_SM,
    SMALLEST_STEP,
    SPLIT_TOKENS,
    captured_sizes,
    decode_splits,
    largest_row_splits,
    step_tokens,
)

SLICES = (14, 16, 26, 32, 46, 60, 64, 98, 108, 114, 132)


@pytest.mark.parametrize(
    ("sm_count", "tokens"),
    [
        (1, 512),
        (14, 1024),
        (16, 1024),
        (26, 2048),
        (32, 2048),
        (60, 4096),
        (64, 4096),
        (132, 8192),
        (188, 8192),
    ],
)
def test_a_step_has_tokens_in_proportion_to_the_sms(sm_count, tokens):
    assert step_tokens(sm_count) == tokens


def test_more_sms_never_mean_a_smaller_step():
    steps = [step_tokens(sm_count) for sm_count in range(1, 300)]
    assert steps == sorted(steps)
    assert (steps[0], steps[-1]) == (SMALLEST_STEP, LARGEST_STEP)
    assert all(step & (step - 1) == 0 for step in steps)


@pytest.mark.parametrize(
    ("most", "sizes"), [(1, (1,)), (3, (1, 2, 3)), (12, (1, 2, 4, 8, 12)), (64, (1, 2, 4, *range(8, 65, 8)))]
)
def test_captured_sizes_end_with_the_largest_batch(most, sizes):
    assert captured_sizes(most) == sizes


def test_no_batch_above_512_is_captured():
    assert captured_sizes(4096)[-1] == 512


@pytest.mark.parametrize("sm_count", SLICES)
@pytest.mark.parametrize("kv_heads", [1, 2, 8, 32])
def test_splits_fill_the_sms_within_bounds(sm_count, kv_heads):
    for longest in (1, 256, 4096, 131072):
        before = None
        for batch in captured_sizes(512):
            splits = decode_splits(sm_count, kv_heads, batch, longest)
            assert 1 <= splits <= -(-longest // SPLIT_TOKENS)
            assert splits == 1 or splits * batch * kv_heads <= PROGRAMS_PER_SM * sm_count
            assert before is None or splits <= before
            before = splits
            assert batch * splits <= largest_row_splits(sm_count, kv_heads, 512, longest)


def test_a_single_long_context_is_cut_for_all_sms_of_an_h200_and_a_batch_is_not():
    assert decode_splits(132, 8, 1, 131072) == 512
    assert decode_splits(132, 8, 8, 8192) == 32
    assert decode_splits(132, 8, 256, 8192) == 2
    assert decode_splits(16, 8, 64, 8192) == 1
