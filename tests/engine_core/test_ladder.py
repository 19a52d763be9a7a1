"""Steps follow from the SMs of the slice, not from the name of the board."""

import pytest

from tangram_engine.run.ladder import LARGEST_STEP, SMALLEST_STEP, captured_sizes, step_tokens


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
