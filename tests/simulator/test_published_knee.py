"""A published sweep over the rate of one replica: its P99 of TTFT leaps within one step of the rate."""

import pytest

from benchmarks.published_knee import PUBLISHED_TOKENS_PER_S, sweep


@pytest.fixture(scope="module", params=[1, 3])
def rates(request):
    return {row.rate: row for row in sweep(request.param)}


def test_below_the_knee_nearly_every_first_token_comes_within_half_a_second(rates):
    assert max(rates[rate].ttft_p99_s for rate in (0.5, 1.0, 1.5)) < 0.5


def test_ttft_leaps_a_hundredfold_between_one_and_a_half_and_three_requests_per_second(rates):
    assert 0.5 < rates[2.0].ttft_p99_s < 18.8  # published around 2: from 0.136 to 18.8 s
    assert rates[2.5].ttft_p99_s > 100 * rates[1.5].ttft_p99_s
    assert rates[3.0].ttft_p99_s > 60.0  # what was published as the rate of the highest throughput


def test_the_replica_gives_at_most_the_published_tokens_per_second_less_a_tenth(rates):
    most = max(row.output_tokens_per_s for row in rates.values())

    assert most == pytest.approx(PUBLISHED_TOKENS_PER_S, rel=0.1)
    assert rates[3.0].output_tokens_per_s == pytest.approx(PUBLISHED_TOKENS_PER_S, rel=0.15)
