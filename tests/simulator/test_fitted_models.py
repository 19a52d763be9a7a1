"""Models that published laws fit: the queue of one replica, its filter, a line through step times."""

import pytest

from tangram.simulator.controllers.fitted_models.queueing_analyzer import QueueingAnalyzer, StepCoefficients
from tangram.simulator.controllers.fitted_models.step_filter import StepFilter
from tangram.simulator.controllers.fitted_models.step_regression import StepRegression

COEFFICIENTS = StepCoefficients(0.010, 5e-5, 1e-7)


def analyzer(coefficients=COEFFICIENTS, max_running=8):
    return QueueingAnalyzer(coefficients, max_running, input_tokens=1000.0, output_tokens=200.0)


def means_by_states(model, rate):
    """Mean requests in service, mean queue and served rate, by the balance of all states one by one."""
    weights = [1.0]
    for count in range(1, 11 * model.max_running + 1):
        running = min(count, model.max_running)
        prompt_s = 0.010 + running * model._slope_s() + (5e-5 + 1e-7) * 1000
        token_s = 0.010 + running * model._slope_s() + 5e-5 + 1e-7 * 1100
        weights.append(weights[-1] * rate / (running / (prompt_s + 200 * token_s)))
    total = sum(weights)
    in_service = sum(min(n, model.max_running) * w for n, w in enumerate(weights)) / total
    queued = sum(max(0, n - model.max_running) * w for n, w in enumerate(weights)) / total
    return in_service, queued, rate * (1 - weights[-1] / total)


@pytest.mark.parametrize("share", [0.05, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("max_running", [1, 8, 64])
def test_the_latency_of_a_queue_is_that_of_its_states(share, max_running):
    model = analyzer(max_running=max_running)
    rate = share * model.peak_rate
    in_service, queued, served = means_by_states(model, rate)
    service_s = in_service / served

    ttft, itl = model.latency(rate)

    prompt_s = ttft - queued / served
    assert prompt_s + 200 * itl == pytest.approx(service_s, rel=1e-6)
    assert ttft > queued / served > 0 or queued == pytest.approx(0, abs=1e-9)


def test_the_highest_rate_is_where_an_objective_is_reached():
    model = analyzer(max_running=64)

    rate = model.highest_rate(2.0, 0.015)

    assert 0 < rate < model.peak_rate
    assert model.latency(rate)[1] == pytest.approx(0.015, rel=1e-6)
    assert model.highest_rate(2.0, 0.001) == pytest.approx(0, abs=1e-6)
    assert model.highest_rate(1e9, 1e9) == pytest.approx(model.peak_rate, rel=0.01)


def test_the_filter_learns_coefficients_from_latency():
    true = StepCoefficients(0.016, 7e-5, 1.5e-7)
    estimate = StepFilter(COEFFICIENTS)
    accepted = 0
    for step in range(60):
        rate = (0.2 + 0.6 * (step % 7) / 7) * analyzer(true).peak_rate
        accepted += estimate.update(
            analyzer(true).latency(rate), lambda fitted, at=rate: analyzer(fitted).latency(at)
        )

    rate = 0.5 * analyzer(true).peak_rate
    assert accepted > 30
    assert analyzer(estimate.estimate).latency(rate) == pytest.approx(analyzer(true).latency(rate), rel=0.05)


def test_the_filter_rejects_an_outlier():
    estimate = StepFilter(COEFFICIENTS)
    rate = 0.5 * analyzer().peak_rate
    ttft, itl = analyzer().latency(rate)

    assert not estimate.update((50 * ttft, 50 * itl), lambda fitted: analyzer(fitted).latency(rate))
    assert estimate.estimate == COEFFICIENTS


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
