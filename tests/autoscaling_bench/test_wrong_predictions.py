"""Services whose replicas are not as predicted: the law meets their objectives, as the benchmark shows."""

from dataclasses import replace

import pytest

from benchmarks.wrong_predictions import KNEE, Service, main, served

RIGHT = Service(95, KNEE, 1.0, 0.0, 0.0, needed=4.5, noise=0.05, swing=0.0, first=5)


@pytest.mark.parametrize(
    "changes",
    [{}, {"share": 0.5, "first": 2}, {"spread": 1.0}, {"unavoidable": 0.02, "swing": 0.4}],
    ids=["as predicted", "half of it", "varying load", "misses at any load"],
)
def test_the_objective_is_met_after_an_hour(changes):
    outcome = served(replace(RIGHT, **changes), hours=2, seed=1)

    assert outcome.missed_share <= 0.05
    assert 0.9 < outcome.cost < 1.9


@pytest.mark.parametrize("needed", [1.5, 2.4])
def test_a_prediction_of_other_hardware_is_given_up(needed):
    far = replace(RIGHT, share=0.002, spread=0.3, needed=needed, noise=0.02, first=1)

    outcome = served(far, hours=2, seed=0)

    assert outcome.missed_share <= 0.05
    assert outcome.cost < 2.2
    assert outcome.changes <= 4


def test_the_last_line_is_a_summary(capsys):
    main(["--services", "1", "--hours", "2"])

    first, last = capsys.readouterr().out.splitlines()
    assert first.startswith("P")
    assert " of 1 missed the objective" in last
