"""Arrivals by the minute and the capacity of a replica: what the law knows beside a reading."""

from dataclasses import replace

import pytest

from tangram.fleet import Objective, Traffic
from tangram.fleet.lengths import around
from tangram.scaling import Sample
from tangram.scaling.outlook.load_history import MOST_BINS, LoadHistory
from tangram.scaling.sample import Window
from tangram.shell.measure.load_outlooks import LoadOutlooks, OutlookInputs
from tests.support.fleet import FACTS_8B, intent, shape

CHAT = intent(
    ttft=Objective(90, 1000),
    tpot=Objective(90, 50),
    traffic=Traffic(None, around(700), around(150)),
    max_model_len=8192,
)
KNOWN = OutlookInputs({CHAT.uid: FACTS_8B}, {(CHAT.uid, shape()): 80.0})


def sample(at, arrived=600.0, prompt=None, answer=None):
    wider = Window(300.0, 3000.0, prompt_tokens_mean=prompt, answer_tokens_mean=answer)
    return Sample(at=at, requests=arrived, arrived=arrived, wider=(wider,))


def observed(*samples):
    outlooks = LoadOutlooks(60.0, 20)
    for one in samples:
        outlooks.observe(CHAT.uid, one)
    return outlooks


def test_a_bin_ends_with_each_full_minute():
    outlook = observed(sample(630.0), sample(645.0), sample(661.0, 1200.0), sample(851.0, 60.0)).outlook(
        CHAT, shape(), KNOWN
    )

    assert outlook.history.rates == (10.0, 20.0, None, None, 1.0)
    assert outlook.history.end_s == 840.0


def test_without_an_arrival_counter_first_tokens_stand_in():
    outlook = observed(replace(sample(630.0), arrived=None, requests=300.0)).outlook(CHAT, shape(), KNOWN)

    assert outlook.history.rates == (5.0,)


def test_longer_requests_leave_a_replica_less():
    short = observed(sample(630.0, prompt=500.0, answer=100.0)).outlook(CHAT, shape(), KNOWN)
    long = observed(sample(630.0, prompt=2000.0, answer=400.0)).outlook(CHAT, shape(), KNOWN)

    assert 0 < long.capacity.rate_at(90) < 0.5 * short.capacity.rate_at(90)
    assert short.start_s == 80.0


@pytest.mark.parametrize(
    ("changed", "of_shape", "known"),
    [
        ({}, None, KNOWN),
        ({}, shape(), OutlookInputs()),
        ({"ttft": None, "tpot": None}, shape(), KNOWN),
        ({"traffic": Traffic()}, shape(), KNOWN),
    ],
    ids=["no shape", "no facts", "no objective", "no traffic"],
)
def test_what_cannot_be_predicted_leaves_the_law_to_what_it_measures(changed, of_shape, known):
    assert observed(sample(630.0)).outlook(replace(CHAT, **changed), of_shape, known) is None


def test_a_history_from_prometheus_is_continued():
    outlooks = LoadOutlooks(60.0, 20)
    outlooks.restore(CHAT.uid, LoadHistory(600.0, (1.0, 2.0)))

    outlooks.observe(CHAT.uid, sample(661.0))

    rates = outlooks.outlook(CHAT, shape(), KNOWN).history.rates
    assert rates[-3:] == (1.0, 2.0, 10.0)
    assert set(rates[:-3]) == {None}


def test_what_was_seen_here_stays_and_yesterday_is_taken_from_prometheus():
    outlooks = observed(sample(601.0), sample(661.0))
    yesterday = LoadHistory(7200.0, (4.0,) * 60)

    outlooks.restore(CHAT.uid, LoadHistory(660.0, (1.0, 2.0, 3.0), seasons=((86_400.0, yesterday),)))

    history = outlooks.outlook(CHAT, shape(), KNOWN).history
    assert history.rates[-3:] == (1.0, 10.0, 10.0)
    assert history.seasons == ((86_400.0, yesterday),)


def test_histories_are_bounded_and_forgotten():
    outlooks = observed(*(sample(60.0 * minute + 5) for minute in range(1, 600)))
    assert len(outlooks.outlook(CHAT, shape(), KNOWN).history.rates) == MOST_BINS

    outlooks.retain(())

    assert outlooks.outlook(CHAT, shape(), KNOWN) is None
