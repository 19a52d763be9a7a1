"""Kernels that are compiled after the engine is ready are counted on /metrics."""

from types import SimpleNamespace

import triton

from tangram_engine.messages import StepStats
from tangram_engine.serve.metrics import EngineMetrics


def test_a_kernel_made_after_ready_is_in_the_next_steps_stats(engine, monkeypatch):
    monkeypatch.setattr(triton.knobs.compilation, "listener", None)
    ready = engine()

    compiled = {"src": SimpleNamespace(name="some_kernel"), "times": SimpleNamespace(total=2_000_000)}
    triton.knobs.compilation.listener(**compiled, metadata={}, metadata_group={}, cache_hit=False)

    assert [ready.step()[1].late_kernels for _ in range(2)] == [1, 0]


def test_late_kernels_are_a_counter():
    metrics, stats = EngineMetrics("m"), StepStats(0, 0, 0, 1, 0, 0, 0, 0, 0, 0.0, late_kernels=2)

    metrics.step(stats)
    metrics.step(stats)

    labels = {"model_name": "m", "engine": "0"}
    assert metrics.registry.get_sample_value("tangram_engine_late_kernels_total", labels) == 4
