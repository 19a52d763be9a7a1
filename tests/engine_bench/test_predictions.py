"""Predictions stand in the repository before anything is measured, and follow from bytes and rates alone."""

import json

import pytest

from benchmarks.engine import predictions
from benchmarks.engine.predictions import FORMATS, GPUS, H200, LLAMA_8B, QWEN3_06B, RUNGS


def test_the_file_holds_what_the_formulas_give():
    assert predictions.PREDICTIONS.read_text() == predictions.document(), (
        "run: python benchmarks/engine/predictions.py"
    )


def test_a_llama_3_8b_has_the_parameters_that_are_published():
    assert LLAMA_8B.body == pytest.approx(6.979e9, rel=1e-3)
    assert LLAMA_8B.head == pytest.approx(0.525e9, rel=1e-3)
    assert LLAMA_8B.kv_bytes == 131_072


@pytest.mark.parametrize(
    ("weights", "batch", "tokens_per_second"),
    [
        ("bf16", 1, 284),
        ("bf16", 64, 11_661),
        ("bf16", 256, 19_915),
        ("fp8", 1, 527),
        ("fp8", 64, 16_558),
        ("int4", 1, 894),
        ("int4", 64, 18_975),
    ],
)
def test_the_limits_of_decoding_on_an_h200_are_those_of_the_requirements(weights, batch, tokens_per_second):
    assert predictions.decode_ceiling(LLAMA_8B, weights, batch, H200) == pytest.approx(
        tokens_per_second, abs=1.0
    )


@pytest.mark.parametrize(("length", "tokens_per_second"), [(1024, 55_500), (8192, 49_000)])
def test_the_limits_of_prefill_on_an_h200_are_those_of_the_requirements(length, tokens_per_second):
    assert predictions.prefill_ceiling(LLAMA_8B, length, H200) == pytest.approx(tokens_per_second, rel=2e-3)


def test_the_requests_are_those_of_nano_vllm():
    work = predictions.nano_workload()

    assert len(work) == 256
    assert sum(len(prompt) for prompt, _ in work) == 142_827
    assert sum(count for _, count in work) == 133_966
    assert max(len(prompt) + count for prompt, count in work) == 2_011


@pytest.mark.parametrize(("shape", "tokens_per_second"), [(QWEN3_06B, 36_204), (LLAMA_8B, 13_292)])
def test_the_limits_of_nano_vllms_requests_are_those_of_the_requirements(shape, tokens_per_second):
    assert predictions.nano_ceiling(shape, H200) == pytest.approx(tokens_per_second, abs=1.0)


def test_the_kernels_of_a_step_move_the_weights_and_the_cache_and_little_else():
    for batch in predictions.BATCHES:
        moved = sum(k.calls * k.bytes for k in predictions.step_kernels(LLAMA_8B, "bf16", batch, 1024))
        needed = 2 * (LLAMA_8B.body + LLAMA_8B.head) + batch * 1024 * LLAMA_8B.kv_bytes

        assert needed < moved < 1.08 * needed


@pytest.mark.parametrize("gpu", GPUS.values(), ids=GPUS)
def test_no_row_is_predicted_beyond_its_limit(gpu):
    for name, row in predictions.rows(gpu).items():
        faster = row.predicted < row.wire if row.unit == "us" else row.predicted > row.wire

        assert not faster, name


@pytest.mark.parametrize("gpu", GPUS.values(), ids=GPUS)
@pytest.mark.parametrize("batch", predictions.BATCHES)
def test_each_rung_of_the_ladder_is_as_fast_as_the_one_below(gpu, batch):
    steps = {rung: predictions.predicted_step(LLAMA_8B, "bf16", batch, gpu, rung) for rung in RUNGS}
    graph = steps.pop(
        "graph"
    )  # reads the cache many times, to be simple: slower than eager where that is much

    assert list(steps.values()) == sorted(steps.values(), reverse=True)
    assert graph > steps["fused"]


def test_a_device_is_known_by_the_name_that_cuda_gives():
    assert predictions.gpu_by_device_name("NVIDIA H100 80GB HBM3") is predictions.H100
    assert predictions.gpu_by_device_name("NVIDIA H200") is H200
    assert predictions.gpu_by_device_name("NVIDIA A100-SXM4-80GB") is None


def test_every_goal_has_a_row_and_every_row_a_finite_time():
    found = json.loads(predictions.PREDICTIONS.read_text())

    assert {goal.prediction for goal in predictions.GOALS} <= set(found["H200"])
    assert set(found) == {"assumed", *GPUS}
    assert len(FORMATS) == 3
