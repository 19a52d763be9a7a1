"""The maximum of recent recommendations, kept as a falling staircase."""

from hypothesis import given
from hypothesis import strategies as st

from tangram.scaling.outlook.recommendations import added, highest

HISTORY = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 50)), min_size=1, max_size=200)


@given(HISTORY, st.integers(60, 7200))
def test_the_highest_is_that_of_all_recommendations_within_the_window(history, window_s):
    history = sorted(history, key=lambda item: item[0])
    staircase, now = (), 0.0
    for minute, replicas in history:
        now = 60.0 * minute + 1
        staircase = added(staircase, replicas, now)

    first = (now - window_s) // 60
    assert highest(staircase, now, window_s) == max(n for minute, n in history if minute >= first)


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=3000))
def test_the_staircase_stays_short_and_never_below_the_true_maximum(numbers):
    staircase = ()
    for minute, replicas in enumerate(numbers):
        staircase = added(staircase, replicas, 60.0 * minute)

    assert len(staircase) <= 49
    for window in (10, 100, len(numbers)):
        recent = numbers[-window - 1 :]
        assert highest(staircase, 60.0 * (len(numbers) - 1), 60.0 * window) >= max(recent)


def test_a_recommendation_of_the_future_of_a_clock_that_was_set_back_is_forgotten():
    assert added(added((), 9, 6000.0), 2, 60.0) == ((1, 2),)
