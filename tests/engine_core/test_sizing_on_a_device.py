"""On a GPU each byte counts once, the trial is gone before free memory is read, and nothing grows later."""

import json
import weakref
from functools import partial

import pytest
import torch

from tangram_engine.config import EngineConfig
from tangram_engine.kernels.ops import reference_ops
from tangram_engine.run import LLMEngine
from tangram_engine.run import engine as engine_module
from tangram_engine.run.attention import reference as attention
from tangram_engine.run.ladder import captured_sizes
from tangram_engine.run.load import load
from tangram_engine.run.memory import MIB, OutOfMemory
from tangram_engine.run.sizing import SizingTrial, measure_steps, measured_pool_bytes
from tests.contracts.memory_golden import LLAMA, sizes
from tests.support.simulated_device import SimulatedDevice

CONTEXT = 10 * MIB
RESERVE = 256 * MIB
TOKEN_BYTES = 2 * 2 * 2 * 16 * 4


@pytest.fixture
def device():
    with SimulatedDevice(300 * MIB, CONTEXT) as simulated:
        yield simulated


def piece(size):
    return torch.empty(size, dtype=torch.uint8)


class Trial:
    """An engine of four numbers: what steps need, what libraries keep, what graphs take, what leaks."""

    def __init__(self, device, step=0, library=0, graph=0, leak=0):
        self.device, self.step, self.library = device, step, library
        self.graph, self.leak = graph, leak
        self.pool = self.kept = None
        self.leaked = []

    def allocate(self, num_blocks):
        self.pool = None
        self.pool = piece(num_blocks * MIB)
        return self.pool.nbytes

    def run(self):
        if self.kept is None:
            self.kept = piece(self.library)
        self.leaked.append(piece(self.leak))
        piece(self.step)

    def capture(self):
        graph = type("Graph", (), {})()
        self.device.graphs += self.graph

        def release():
            self.device.graphs -= self.graph

        weakref.finalize(graph, release)
        return graph

    def sizing(self):
        return SizingTrial(self.allocate, self.run, self.capture if self.graph else None)


def test_what_a_library_keeps_is_used_and_no_part_of_a_step(device):
    trial = Trial(device, step=5 * MIB, library=3 * MIB)
    found = measure_steps(device, trial.sizing())
    assert (found.activations, found.graphs, found.kept) == (5 * MIB, 0, 0)
    assert device.allocated() == 3 * MIB


def test_the_pool_is_what_the_trial_of_everything_leaves(device):
    weights = piece(7 * MIB)
    trial = Trial(device, step=5 * MIB, library=3 * MIB, graph=6 * MIB)
    pool = measured_pool_bytes(device, trial.sizing(), 1.0)
    assert device.read_at_end == weights.nbytes + 3 * MIB
    assert pool == 300 * MIB - CONTEXT - RESERVE - (7 + 3) * MIB - 5 * MIB - 6 * MIB
    assert device.graphs == 0


def test_what_the_trial_leaves_behind_is_noticed(device, caplog):
    found = measure_steps(device, Trial(device, leak=MIB).sizing())
    assert found.kept == MIB
    assert "left 1.0 MiB behind" in caplog.text


def lower_right_mask(queries, keys):
    return torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)


@pytest.fixture(params=["plain torch", "device rows and graphs"])
def on_the_device(request, tmp_path, monkeypatch, device):
    """Build an engine that fills the simulated device, with either implementation of a step."""
    ops = reference_ops() if request.param == "device rows and graphs" else None
    # torch's own bias cannot be made while the simulated device watches; a mask means the same.
    monkeypatch.setattr("torch.nn.attention.bias.causal_lower_right", lower_right_mask)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | sizes(2, 64, 112, 4, 2, 199, 256)))
    monkeypatch.setattr(attention, "COLLECTED_BYTES", 300 * TOKEN_BYTES // 2)  # of 300 tokens

    def build(**options):
        monkeypatch.setattr(engine_module, "load", partial(load, memory=device))
        settings = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "block_size": 4}
        settings |= {"load_format": "dummy", "dtype": "float32", "gpu_memory_utilization": 1.0} | options
        return LLMEngine(EngineConfig(tmp_path, device="cpu", **settings), ops=ops)

    # Recorded steps keep rows and ids, and share their logits; a CPU computes these beside the shared ones.
    build.graphs = sum(captured_sizes(8)) * (4 + 4) + 2 * 8 * 4 * 199 if ops else 0

    return build


def test_an_engine_fills_its_share_of_the_device_and_no_byte_twice(device, on_the_device):
    one = on_the_device()
    pool = one._runner.attention.pool
    made_later = device.allocated() - pool.nbytes - device.read_at_end
    # Nothing of the trial was there; the sampler comes last, or the graphs.
    assert 0 <= made_later <= (on_the_device.graphs or 8 * one.info.vocab_size)
    unused = device.free_and_total()[0] - RESERVE
    # Less than a block: nothing was counted twice.
    assert 0 <= unused <= pool.nbytes // one.info.num_blocks + on_the_device.graphs


def test_recorded_steps_of_all_sizes_leave_their_logits_in_one_place(on_the_device):
    runner = on_the_device()._runner
    if runner._graphs is not None:
        places = {recorded.logits.untyped_storage()._cdata for recorded in runner._graphs._recorded.values()}
        assert len(places) == 1


def test_nothing_grows_after_the_engine_is_ready(device, on_the_device, run, greedy):
    one = on_the_device()
    held = device.reserved()
    device.reset_peak()
    # More tokens side by side than one request of full length has: the workspace once grew for them.
    run(one, [greedy(f"{n}", [5 + n] * 95, 8, logprobs=None) for n in range(8)])
    run(
        one,
        [greedy("long", [5] * 200, 50), *(greedy(f"{n}", [7] * n, 5, temperature=1.0) for n in range(1, 40))],
    )
    edited = {"logprobs": 2, "allowed_token_ids": (7, 8), "logit_bias": ((7, 1.0),), "min_tokens": 3}
    run(one, [greedy(f"edited {n}", [5 + n] * 95, 8, **edited) for n in range(8)])
    # Without a GPU, a recorded step computes new results before it overwrites the old ones.
    assert held <= device.peak_reserved() <= held + on_the_device.graphs
    one.audit()


def test_too_small_a_device_names_the_length_that_would_work(device, on_the_device):
    room_for = on_the_device(kv_cache_bytes=256 * TOKEN_BYTES)
    room_for_100 = 156 * TOKEN_BYTES - on_the_device.graphs
    device.context = device.total - RESERVE - device.reserved() + room_for_100
    del room_for
    device.trim()
    with pytest.raises(OutOfMemory, match=r"largest workable max_model_len is (\d+)") as refused:
        on_the_device()
    fits = int(str(refused.value).rsplit(" ", 1)[1])
    del refused
    device.trim()
    assert 100 <= fits < 256
    on_the_device(max_model_len=fits)
