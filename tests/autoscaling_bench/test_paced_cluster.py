"""A replay on a cluster beside its simulation: a pace as step model, courses of replicas, files."""

from dataclasses import replace
from statistics import fmean

import pytest

from benchmarks.paced_cluster.__main__ import MEASURED, report
from benchmarks.paced_cluster.recording import Answer, Course, PacedSteps, Recording, read
from benchmarks.paced_cluster.simulation import simulated, simulated_orders, start_times
from benchmarks.paced_cluster.slow_gpu import Load, Pace, calibration_at, requests_of, step_model
from tangram.api.llm_deployment.facts import Facts
from tangram.capacity.load.traffic import SimulatedRequest
from tangram.capacity.sizing.assessment_cache import assessment_cache
from tangram.capacity.steps import calibration
from tangram.capacity.steps.step_model import Coefficients, StepModel
from tangram.simulator.traffic.trace import Trace

TINY = {
    "architecture": "LlamaForCausalLM",
    "digest": "tiny",
    "dtype": "bf16",
    "layers": 4,
    "hiddenSize": 256,
    "heads": 8,
    "kvHeads": 4,
    "headDim": 32,
    "vocabSize": 4096,
    "maxPositionEmbeddings": 1024,
    "parameters": 3803392,
    "weightBytes": 7606784,
    "embeddingBytes": 2097152,
    "tiedEmbeddings": True,
    "attentionBias": False,
    "qkNorm": False,
}
FACTS = Facts.model_validate(TINY).to_noun()
PACE = Pace(100.0, 3.0, 0.75)
SETTINGS = {
    "engineImage": "engine",
    "operator": {"tickSeconds": 5},
    "prometheus": {
        "url": "http://prometheus:9090",
        "windowSeconds": 20,
        "intervalSeconds": 5,
        "scrapeIntervalSeconds": 5,
    },
    "scaling": {
        "upAfterSeconds": 10,
        "downAfterSeconds": 45,
        "minSamples": 10,
        "blindAfterSeconds": 30,
        "historySeconds": 120,
    },
}
OBJECT = {
    "apiVersion": "tangram.dev/v1alpha1",
    "kind": "LLMDeployment",
    "metadata": {
        "name": "paced",
        "namespace": "default",
        "uid": "1",
        "creationTimestamp": "2026-01-01T00:00:00Z",
    },
    "spec": {
        "model": {"uri": "image:///models/tangram-tiny"},
        "engine": {"maxRunningRequests": 16},
        "objectives": {
            "ttft": {"percentile": 90, "milliseconds": 1000},
            "tpot": {"percentile": 90, "milliseconds": 150},
        },
        "placement": {"mig": "Required"},
        "scaling": {"minReplicas": 1, "maxReplicas": 5},
    },
    "status": {"model": {"uri": "image:///models/tangram-tiny", "engineImage": "engine", "facts": TINY}},
}


def recording(answers: tuple[Answer, ...], duration_s: float = 240.0) -> Recording:
    one = Course(((0.0, 1),))
    steps = PacedSteps(100, 1, 10.1, 10.0)
    pace = (PACE.step_ms, PACE.decode_ms, PACE.prompt_token_ms)
    starts = (14.0, 15.0, 16.0)
    return Recording("today", pace, OBJECT, SETTINGS, starts, 20.0, duration_s, steps, answers, one, one)


def every(gap_s: float, count: int, prompt: int = 100, answer: int = 21) -> tuple[Answer, ...]:
    return tuple(Answer(gap_s * n, prompt, answer, "served", 0.2, 0.1) for n in range(count))


@pytest.mark.parametrize(
    ("decodes", "prompt_tokens", "seconds"),
    [(1, 0, 0.103), (16, 0, 0.148), (0, 200, 0.25), (8, 100, 0.199)],
)
def test_the_calibration_gives_the_steps_their_pace(decodes, prompt_tokens, seconds):
    document = calibration_at(PACE, FACTS)

    shipped = step_model(FACTS)
    model = StepModel(shipped.footprint, shipped.hardware, Coefficients(**document["all"]["coefficients"]))

    assert model.step_s(decodes, 150.0, prompt_tokens, prompt_tokens / 2).total == pytest.approx(
        seconds, rel=0.01
    )


def test_a_pace_whose_decodes_cost_less_than_a_prompt_token_is_refused():
    with pytest.raises(ValueError, match="takes longer than a prompt token"):
        calibration_at(Pace(100.0, 0.5, 0.75), FACTS)


def test_a_replay_has_the_first_minutes_of_the_trace_slower_and_shorter():
    trace = Trace(
        (
            SimulatedRequest(0.0, 1000, 200),
            SimulatedRequest(10.0, 9000, 1),
            SimulatedRequest(19.0, 300, 5000),
            SimulatedRequest(21.0, 100, 100),
        )
    )

    requests = requests_of(trace, Load(minutes=1.0, slower=3.0, shorter=10.0))

    assert requests == (
        SimulatedRequest(0.0, 100, 20),
        SimulatedRequest(30.0, 400, 2),
        SimulatedRequest(57.0, 30, 200),
    )


def test_replicas_by_minute_are_means_over_time():
    course = Course(((0.0, 1), (30.0, 2), (90.0, 4)))

    assert course.by_minute(3) == [1.5, 3.0, 4.0]


def test_a_request_that_was_not_served_attains_nothing():
    served, refused = Answer(0.0, 10, 2, "served", 0.5, 0.1), Answer(0.0, 10, 2, "refused 503", 0.0, None)

    outcome = recording((served, replace(served, ttft_s=1.1), replace(served, tpot_s=0.2), refused)).outcome

    assert outcome.attainment == 0.25
    assert outcome.ttft_s == (0.5, 0.5, 0.5)


def test_a_recording_is_the_same_after_it_was_written_and_read(tmp_path):
    written = recording((*every(1.0, 3), Answer(3.0, 5, 1, "cut TimeoutError", 0.3, None)))
    written = replace(written, simulations=(written.outcome, written.outcome))

    written.write(tmp_path / "recording.json")

    assert read(tmp_path / "recording.json") == written


def test_the_simulation_has_the_pace_of_the_recording():
    outcome = simulated(recording(every(4.0, 50)), seed=1)

    first_s = 0.1 + 100 * 0.00075 + 0.01  # a prompt alone in its step, and the request outside of steps
    assert outcome.attainment == 1.0
    assert outcome.ttft_s[0] == pytest.approx(first_s, rel=0.03)
    assert outcome.tpot_s[0] == pytest.approx(0.103, rel=0.01)
    assert set(outcome.ready.changes) == {(outcome.ready.changes[0][0], 1)}


def test_the_simulation_adds_replicas_for_a_load_that_one_cannot_carry():
    outcome = simulated(recording(every(0.25, 900)), seed=1)

    assert outcome.attainment < 1.0
    assert outcome.ready.at(0.0) == 1
    assert max(count for _, count in outcome.ready.changes) > 1


def test_nothing_of_the_pace_is_left_after_a_simulation():
    before = calibration.coefficients_for()

    simulated(recording(every(4.0, 5)), seed=1)

    assert calibration.coefficients_for() == before
    assert assessment_cache.cache_info().currsize == 0


def test_start_times_have_the_mean_that_was_measured():
    starts = start_times((10.0, 14.0, 18.0))

    assert starts.mean_s - starts.endpoint_lag_s == pytest.approx(14.0)
    assert starts.weight_load.cv == pytest.approx(4.0 / 14.0)


def test_the_report_has_the_cluster_beside_the_simulation():
    one = recording(every(4.0, 50))
    simulations = tuple(replace(one.outcome, attainment=share) for share in (0.9, 0.94))

    text = report(replace(one, simulations=simulations))

    assert "50 requests, 100 steps, 1.00 % late, all steps 1.0 % longer than paced" in text
    assert "| attainment, % | 100.0 | 92.0 | 90.0 to 94.0 |" in text
    assert "| simulated | 1.0 | 1.0 | 1.0 | 1.0 |" in text


# -- what was measured ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=sorted(MEASURED.glob("*.json")), ids=lambda file: file.stem)
def measured(request):
    return read(request.param)


@pytest.fixture(scope="module")
def orders(measured):
    """The same replicas simulated: whatever the law becomes, what follows from its orders is compared."""
    return [simulated_orders(measured, seed) for seed in range(3)]


def test_the_engines_kept_their_pace(measured):
    assert measured.steps.late < 0.01 * measured.steps.steps
    assert measured.steps.real_s < 1.01 * measured.steps.paced_s


def test_every_request_of_a_measured_replay_was_served(measured):
    assert {answer.outcome for answer in measured.answers} == {"served"}


def test_with_the_same_orders_attainment_is_within_a_point(measured, orders):
    real = measured.outcome.attainment

    assert max(abs(one.attainment - real) for one in orders) < 0.01


def test_with_the_same_orders_latencies_are_those_that_clients_measured(measured, orders):
    real = measured.outcome
    for one in orders:
        assert one.ttft_s[:2] == pytest.approx(real.ttft_s[:2], rel=0.05)
        assert one.tpot_s == pytest.approx(real.tpot_s, rel=0.05)


def test_with_the_same_orders_replicas_are_ready_at_the_same_time(measured, orders):
    minutes = int(measured.duration_s // 60)
    for one in orders:
        assert one.ready.by_minute(minutes) == pytest.approx(measured.ready.by_minute(minutes), abs=0.3)


def test_the_law_that_was_measured_orders_the_same_in_a_simulation(measured):
    minutes = int(measured.answers[-1].arrival_s // 60) + 1
    real = measured.ready.by_minute(minutes)
    by_minute = [one.ready.by_minute(minutes) for one in measured.simulations]

    means = [fmean(counts) for counts in zip(*by_minute, strict=True)]
    assert means == pytest.approx(real, abs=1.0)
    assert fmean(means) == pytest.approx(fmean(real), abs=0.3)
    assert fmean(one.attainment for one in measured.simulations) == pytest.approx(
        measured.outcome.attainment, abs=0.005
    )
