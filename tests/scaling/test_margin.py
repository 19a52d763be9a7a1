"""What misses buy, and for how long: after a step from idle, beside a margin, against a prediction."""

from collections import deque
from dataclasses import replace
from statistics import fmean

import pytest

from tangram.scaling import Evidence, ScalingMemory
from tangram.scaling.feed_forward import needed
from tangram.scaling.outlook.load_history import LoadHistory, extended
from tangram.scaling.outlook.load_outlook import LoadOutlook
from tangram.scaling.outlook.miss_balance import LEAST_KEPT, NONE_COUNTED
from tangram.scaling.outlook.replica_capacity import ReplicaCapacity
from tests.scaling.test_feed_forward import CHAT, PARAMS, decided, outlook, sample

ROUND_S, START_S = 15.0, 60.0
GENTLE = ReplicaCapacity(((99, 1.2), (95, 1.9), (90, 2.2), (50, 3.0)))


class Service:
    """Replicas that carry what is predicted, an hour or so of rounds, and what they were ordered."""

    def __init__(self):
        self.memory, self.history = ScalingMemory(replicas=1), LoadHistory(0.0)
        self.now, self.ordered = 0.0, [1]
        self.rates, self.missed, self.overload = deque([0.0], maxlen=4), deque([0.0], maxlen=4), 0.0

    def run(self, minutes, rate):
        """Serve `rate` requests/s; what waits while replicas start is served when they are ready."""
        for _ in range(round(minutes * 60 / ROUND_S)):
            self.now += ROUND_S
            ready = min(self.ordered[-round(START_S / ROUND_S) :])
            self.overload = max(0.0, self.overload + ROUND_S * (rate - 3.0 * ready))
            self.rates.append(rate)
            self.missed.append(rate * (1.0 if self.overload else GENTLE.missed_share(rate / ready)))
            seen = fmean(self.rates)
            if self.now % 60 == 0:
                self.history = extended(self.history, seen, self.now)
            attainment = 1 - fmean(self.missed) / seen if seen else 1.0
            reading = sample(seen, attainment=attainment, waiting=self.overload)
            known = LoadOutlook(self.history, GENTLE, START_S)
            self.memory = decided(self.memory, reading, ready=ready, now=self.now, known=known).memory
            self.ordered.append(self.memory.replicas)


def fixed(rate):
    return next(count for count in range(1, 100) if GENTLE.missed_share(rate / count) <= 0.1)


def test_after_a_step_from_idle_replicas_are_soon_about_those_that_would_do_all_day():
    service = Service()
    service.run(30, 0.0)
    service.run(25, 9.0)
    first = len(service.ordered)
    service.run(60, 9.0)
    after = service.ordered[first:]

    assert max(after) <= fixed(9.0) + 1
    assert fmean(after) >= fixed(9.0) - 0.5


def test_a_margin_is_given_back_while_far_fewer_miss_than_expected():
    known = LoadOutlook(LoadHistory(0.0, (9.0, 9.0, 9.0, 16.0) * 60), GENTLE, START_S)

    def need(missed):
        balance = NONE_COUNTED.counted(10_000.0, missed, 0.08)
        memory = ScalingMemory(evidence=Evidence(balance=balance))
        return needed(memory, PARAMS, CHAT, known, sample(9.0), queued=False, now=0.0)

    assert need(0.01).replicas < need(0.08).replicas
    assert need(0.01).missed_share <= 0.1
    assert need(0.01).rate >= need(0.01).load.expected


@pytest.mark.parametrize(
    ("minutes", "missed", "expected", "kept"),
    [
        (120, 0.002, 0.02, LEAST_KEPT),
        (120, 0.012, 0.02, 0.6),
        (120, 0.02, 0.02, 1.0),
        (120, 0.002, 0.001, 1.0),
        (120, 0.042, 0.09, 1.0),
        (3, 0.0, 0.04, 1.0),
    ],
    ids=[
        "never below a bound",
        "what missed",
        "as expected",
        "more than expected",
        "budget spent",
        "too few requests",
    ],
)
def test_a_margin_follows_misses_far_below_the_budget_alone(minutes, missed, expected, kept):
    balance = NONE_COUNTED
    for _ in range(minutes):
        balance = balance.faded(60.0).counted(100.0, missed, expected)

    assert balance.margin_kept(0.05) == pytest.approx(kept, abs=0.05)


def test_misses_of_a_leap_are_spent_but_say_nothing_about_the_margin():
    balance = NONE_COUNTED.counted(10_000.0, 0.004, 0.02)

    after = balance.counted(1000.0, 0.2, None)

    assert after.margin_kept(0.05) == balance.margin_kept(0.05) < 0.5
    assert after.counted(1000.0, 0.3, None).margin_kept(0.05) == 1.0, "the budget is spent"


def orders(reading_with, memory, known, rounds):
    """Return the decisions under a constant load, whose reading follows from the number of replicas."""
    decisions = []
    for step in range(1, rounds):
        held = memory.replicas
        decision = decided(memory, reading_with(held), ready=held, now=15.0 * step, known=known)
        memory = decision.memory
        decisions.append(decision)
    return decisions


def changes(decisions):
    return [decision.replicas for decision in decisions if decision.replicas != decision.previous]


def test_late_tokens_of_requests_that_meet_their_objective_buy_no_replica():
    reading = sample(7.0, attainment=0.99)
    wider = tuple(replace(window, itl_attainment=0.7) for window in reading.wider)
    late = replace(reading, itl_attainment=0.7, wider=wider)

    assert changes(orders(lambda _: late, ScalingMemory(replicas=1), outlook(7.0, 10.0), 40)) == []


def test_the_load_at_which_objectives_were_missed_wins_over_a_prediction_of_a_hundred_times_as_much():
    def reading(replicas):
        return sample(7.0, attainment=0.7 if replicas == 1 else 0.99)

    known = outlook(rate=7.0, replica_rate=1860.0)
    *_, before = orders(reading, ScalingMemory(replicas=1), known, 20)
    forgotten = replace(before.memory, evidence=Evidence(), spare_since=None)

    decisions = orders(reading, forgotten, known, 240)

    assert before.replicas >= 2
    assert decisions[-1].replicas == 2
    assert changes(decisions) in ([], [2]), "down to two at most"
    assert "with 1 more missed than allowed" in decisions[-1].message


def test_a_rate_is_readable_however_large_it_is():
    known = outlook(rate=7.0, replica_rate=1860.0)

    assert (
        "1,860 per replica"
        in needed(ScalingMemory(), PARAMS, CHAT, known, sample(7.0), queued=False, now=0.0).cause
    )


def test_a_removal_under_a_constant_load_is_not_said_to_follow_the_load():
    memory, reasons = ScalingMemory(replicas=6), []
    for step in range(1, 60):
        before = memory.replicas
        decision = decided(
            memory, sample(3.0), ready=before, now=15.0 * step, known=outlook(rate=3.0), of=CHAT
        )
        memory, reasons = decision.memory, [*reasons, decision.reason]

    assert "FewerSuffice" in reasons
    assert "LoadFell" not in reasons
