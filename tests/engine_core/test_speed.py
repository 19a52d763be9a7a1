"""What the device can do is measured at start, and its memory is given back."""

import pytest
import torch

from tangram_engine.checkpoint.config import parse_config
from tangram_engine.messages import EngineInfo
from tangram_engine.run import speed
from tangram_engine.run.memory import read_bytes
from tangram_engine.run.speed import DeviceSpeed, measure_speed, predicted_tokens_per_second
from tangram_engine.serve.metrics import EngineMetrics
from tests.contracts.memory_golden import LLAMA, TIED, sizes
from tests.support.simulated_device import SimulatedDevice

CPU = torch.device("cpu")


def test_both_rates_are_measured_and_nothing_stays_allocated(monkeypatch, caplog):
    monkeypatch.setattr(speed, "PROBE_S", 0.001)
    with SimulatedDevice(300 << 20, 0) as device, caplog.at_level("INFO"):
        found = measure_speed(4 << 20, torch.float32, CPU)
        assert device.allocated() == 0
        assert device.peak_reserved() <= 2 << 20
    assert found.read_bandwidth > 0
    assert found.gemm_flops > 0
    assert "TFLOP/s" in caplog.text


@pytest.mark.parametrize(("free", "size"), [(80 << 30, 8192), (1 << 30, 4096), (0, 256)])
def test_matrices_are_as_large_as_memory_allows(free, size):
    assert speed._gemm_size(free // speed.SHARE_OF_FREE) == size


def test_one_request_alone_gets_what_the_wire_carries():
    """Llama-3-8B in bf16: 15.01 GB a token, 286 tokens/s at 4.3 TB/s without any context."""
    spec = parse_config(LLAMA | sizes(32, 4096, 14336, 32, 8, 128256, 8192), {}, "bf16")
    read = read_bytes(spec, torch.bfloat16)
    assert read == pytest.approx(15.01e9, rel=0.001)
    assert predicted_tokens_per_second(read, DeviceSpeed(4.3e12, 790e12)) == pytest.approx(286.5, rel=0.001)


def test_a_tied_embedding_is_read_as_the_head():
    tied = parse_config(LLAMA | TIED | sizes(2, 64, 112, 4, 2, 199, 256), {}, "bf16")
    own = parse_config(LLAMA | sizes(2, 64, 112, 4, 2, 199, 256), {}, "bf16")
    assert read_bytes(tied, torch.bfloat16) == read_bytes(own, torch.bfloat16)


def info(**measured):
    return EngineInfo(16, 8, 512, 4, 512, 320, "bfloat16", "cuda:0", 1.0, 1.0, **measured)


def test_measured_rates_are_gauges_and_absent_where_nothing_was_measured():
    metrics, silent = EngineMetrics("m"), EngineMetrics("m")
    metrics.engine_ready(info(read_bandwidth=4e12, gemm_flops=7e14))
    silent.engine_ready(info())
    labels = {"model_name": "m", "engine": "0"}
    for name, value in (("read_bandwidth_bytes_per_second", 4e12), ("gemm_flops_per_second", 7e14)):
        assert metrics.registry.get_sample_value(f"tangram_engine_{name}", labels) == value
        assert silent.registry.get_sample_value(f"tangram_engine_{name}", labels) is None
