"""Whether an objective is missed: by which window, and whether chance explains it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram.fleet import Objective
from tangram.scaling import Sample
from tangram.scaling import objective_evidence as evidence
from tangram.scaling.sample import Window
from tests.support.fleet import intent

CHAT = intent(ttft=Objective(90, 1000))


def window(seconds, requests, attainment, *, widest=False):
    return Window(seconds, requests, 1.0, attainment, is_widest=widest)


def proven(*windows):
    return evidence.proven_violations(CHAT, windows, 20)


def test_the_window_widens_until_it_holds_enough_requests():
    windows = [window(60, 3, None), window(300, 19, None), window(1500, 80, None)]

    assert evidence.narrowest(windows, 20) == windows[2]
    assert evidence.narrowest(windows[:2], 20) == windows[1]
    assert evidence.narrowest([Window(60)], 20) is None


@pytest.mark.parametrize(
    ("windows", "missed"),
    [
        ([window(60, 100, 0.5)], ("ttft",)),  # there is no wider one yet
        ([window(60, 100, 0.85)], ()),  # chance
        ([window(60, 100, 0.7), window(300, 500, 0.93)], ()),  # a bad minute
        ([window(60, 100, 0.5), window(300, 500, 0.82)], ("ttft",)),
        ([window(60, 100, 0.97), window(300, 500, 0.7)], ()),  # it is over
        ([window(60, 1, 0.0), window(300, 3, 0.0), window(1500, 6, 0.0, widest=True)], ("ttft",)),
        ([window(60, 1, 0.0), window(300, 3, 0.0), window(1500, 6, 0.7, widest=True)], ()),
        ([window(60, 0, None), window(300, 500, 0.1)], ()),  # the load has ended
        ([window(60, 2, 1.0), window(300, 500, 0.1)], ()),  # what is left of it is served well
        ([window(60, 1, 0.0), window(300, 6, 0.0)], ()),  # a wider one will tell
        ([window(60, 0, None), window(300, 0, None)], ()),
        ([Window(60)], ()),
    ],
)
def test_a_replica_is_worth_a_miss_that_chance_does_not_explain(windows, missed):
    assert proven(*windows) == missed


@given(st.lists(st.tuples(st.floats(0, 1e7), st.none() | st.floats(0, 1)), min_size=1, max_size=3))
def test_what_is_proven_is_missed_too(counted):
    windows = [window(60 * 5**i, n, share, widest=i == 2) for i, (n, share) in enumerate(counted)]

    narrowest = evidence.narrowest(windows, 20)

    assert set(proven(*windows)) <= set(evidence.violations(CHAT, narrowest, 20))


def test_windows_that_look_back_to_other_replicas_are_left_out():
    sample = Sample(0.0, requests=5.0, wider=(window(300, 9, None), window(1500, 9, None)))

    assert [w.seconds for w in evidence.usable(sample, 60, stable_s=400)] == [60, 300]
