"""Routing on simulated engines beside published policies; `benchmarks.routing` has the whole table."""

from dataclasses import replace

import pytest

from benchmarks.routing.comparison import BASELINE, BLIND, NOISE, OURS, compared, shortfalls
from benchmarks.routing.traffics import TRAFFICS

BY_NAME = {traffic.name: traffic for traffic in TRAFFICS}


def test_shared_prefixes_get_twice_the_tokens_of_round_robin() -> None:
    ours, blind = (compared(BY_NAME["shared prefixes"], policy, [1]) for policy in (OURS, BLIND))

    assert ours.output_tokens_per_s > 2 * blind.output_tokens_per_s
    assert ours.mean_ttft_s < blind.mean_ttft_s / 2


@pytest.mark.parametrize("traffic", sorted(BY_NAME))
def test_no_traffic_waits_longer_than_with_least_load(traffic: str) -> None:
    ours, least = (compared(BY_NAME[traffic], policy, [2]) for policy in (OURS, BASELINE))

    assert ours.mean_ttft_s < least.mean_ttft_s * (1 + NOISE)
    assert ours.output_tokens_per_s > least.output_tokens_per_s * (1 - NOISE)


def test_the_benchmark_finds_what_falls_short() -> None:
    least = compared(BY_NAME["one hot prefix"], BASELINE, [1])
    rows = [replace(least, policy=policy, traffic="shared prefixes") for policy in (OURS, BASELINE, BLIND)]
    slower = replace(rows[0], mean_ttft_s=2 * rows[0].mean_ttft_s)

    assert len(shortfalls(rows)) == 1
    assert len(shortfalls([slower, *rows[1:]])) == 2
