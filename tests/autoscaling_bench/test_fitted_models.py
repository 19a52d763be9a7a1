"""Models that published laws fit: the queue of one replica, its filter, a line through step times."""

import pytest

from benchmarks.autoscaling.laws.fitted_models.queueing_analyzer import QueueingAnalyzer, StepCoefficients
from benchmarks.autoscaling.laws.fitted_models.step_filter import StepFilter, guessed_coefficients
from benchmarks.autoscaling.laws.fitted_models.step_regression import StepRegression

COEFFICIENTS = StepCoefficients(0.010, 5e-5, 1e-7)
SLOPE_S = 5e-5 * 1200 / 201 + 1e-7 * 1100  # of a step, for one more request


def analyzer(coefficients=COEFFICIENTS, max_running=8, most_waiting=None):
    waiting = 10 * max_running if most_waiting is None else most_waiting
    return QueueingAnalyzer(coefficients, max_running, waiting, input_tokens=1000.0, output_tokens=200.0)


def means_by_states(model, rate):
    """Mean requests in service, mean queue and served rate, by the balance of all states one by one."""
    weights = [1.0]
    for count in range(1, model.most_waiting + model.max_running + 1):
        running = min(count, model.max_running)
        prompt_s = 0.010 + running * SLOPE_S + (5e-5 + 1e-7) * 1000
        token_s = 0.010 + running * SLOPE_S + 5e-5 + 1e-7 * 1100
        weights.append(weights[-1] * rate / (running / (prompt_s + 200 * token_s)))
    total = sum(weights)
    in_service = sum(min(n, model.max_running) * w for n, w in enumerate(weights)) / total
    queued = sum(max(0, n - model.max_running) * w for n, w in enumerate(weights)) / total
    return in_service, queued, rate * (1 - weights[-1] / total)


@pytest.mark.parametrize("share", [0.05, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("max_running", [1, 8, 64])
@pytest.mark.parametrize("most_waiting", [0, 100, 640])
def test_the_latency_of_a_queue_is_that_of_its_states(share, max_running, most_waiting):
    model = analyzer(max_running=max_running, most_waiting=most_waiting)
    rate = share * model.most_rate
    in_service, queued, served = means_by_states(model, rate)
    service_s = in_service / served

    ttft, itl = model.latency(rate)

    prompt_s = ttft - queued / served
    assert prompt_s == pytest.approx(0.010 + in_service * SLOPE_S + 0.0501, rel=1e-6)
    assert prompt_s + 200 * itl == pytest.approx(service_s, rel=1e-6)
    assert ttft > queued / served > 0 or queued == pytest.approx(0, abs=1e-9)


def test_one_slot_without_a_queue_is_counted_by_hand():
    # T(1) = 10.40851 ms, a prompt 60.50851, a token 10.56851: 2,174.211 ms in service. At a quarter of a
    # request in that time the slot is taken for 0.25 / 1.25: a prompt at 0.2 requests takes 10.08170 + 50.1
    # ms.
    model = analyzer(max_running=1, most_waiting=0)

    ttft, itl = model.latency(0.25 / 2.174211)

    assert model.most_rate == pytest.approx(0.999 / 2.174211, rel=1e-6)
    assert ttft == pytest.approx(0.0601817, rel=1e-5)
    assert itl == pytest.approx((2.174211 - 0.0601817) / 200, rel=1e-5)


def test_the_highest_rate_is_where_an_objective_is_reached():
    model = analyzer(max_running=64)

    rate = model.highest_rate(2.0, 0.015)

    assert 0 < rate < model.most_rate
    assert model.latency(rate)[1] == pytest.approx(0.015, rel=1e-6)
    assert model.highest_rate(2.0, 0.001) == pytest.approx(0, abs=1e-6)
    assert model.highest_rate(1e9, 1e9) == pytest.approx(model.most_rate, rel=0.01)


def test_the_first_token_comes_with_the_step_after_its_prompt():
    model = analyzer(max_running=64)

    rate = model.highest_rate(0.080, 1e9)

    assert sum(model.latency(rate)) == pytest.approx(0.080, rel=1e-6)


def test_the_filter_begins_at_what_explains_one_reading_without_a_queue():
    # A step takes 0.9 * 20 = 18 ms. b + g is (300 - 18) / 1000 = 0.282 ms, and
    # g is (20 - 18 - 0.282) / (1000 + 201 / 2 - 1) = 1.562528 us.
    found = guessed_coefficients(0.300, 0.020, 1000.0, 200.0)

    assert found.values() == pytest.approx((0.018, 2.804375e-4, 1.562528e-6), rel=1e-5)


@pytest.mark.parametrize(("ttft", "itl"), [(0.010, 0.020), (3.0, 0.020)])
def test_the_filter_begins_at_defaults_where_one_reading_has_no_explanation(ttft, itl):
    """The prompt is over before a step is, or takes more of a token than there is."""
    assert guessed_coefficients(ttft, itl, 1000.0, 200.0).values() == (5e-3, 5e-5, 5e-8)


def test_the_filter_learns_coefficients_from_latency():
    true = StepCoefficients(0.0108, 5.2e-5, 1.05e-7)
    estimate = StepFilter(COEFFICIENTS)
    accepted = 0
    for step in range(60):
        rate = (0.2 + 0.6 * (step % 7) / 7) * analyzer(true).most_rate
        accepted += estimate.update(
            analyzer(true).latency(rate), lambda fitted, at=rate: analyzer(fitted).latency(at)
        )

    rate = 0.5 * analyzer(true).most_rate
    assert accepted > 30
    assert analyzer(estimate.estimate).latency(rate) == pytest.approx(analyzer(true).latency(rate), rel=0.01)


def test_the_filter_rejects_an_outlier_and_is_as_it_was():
    estimate, fresh = StepFilter(COEFFICIENTS), StepFilter(COEFFICIENTS)
    rate = 0.5 * analyzer().most_rate
    ttft, itl = analyzer().latency(rate)

    def predict(fitted):
        return analyzer(fitted).latency(rate)

    for _ in range(50):
        assert not estimate.update((2 * ttft, 2 * itl), predict)

    assert estimate.estimate == COEFFICIENTS
    near = (1.02 * ttft, 1.02 * itl)
    assert estimate.update(near, predict)
    assert fresh.update(near, predict)
    assert estimate.estimate == fresh.estimate


def test_a_regression_needs_two_readings_and_follows_their_line():
    line = StepRegression(160_000)
    assert line.estimate(5) is None
    line.add(10_000, 0.020)
    assert line.estimate(5) is None
    line.add(50_000, 0.040)

    assert line.estimate(90_000) == pytest.approx(0.060)
    assert line.estimate(10_000) == pytest.approx(0.020)


def test_a_regression_keeps_readings_of_rare_loads():
    line = StepRegression(160_000)
    line.add(150_000, 0.1)
    for _ in range(100):
        line.add(5_000, 0.02)

    assert line.estimate(150_000) == pytest.approx(0.1)
