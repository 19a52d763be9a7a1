"""The step of a GPU on a CPU: paged attention on device rows, recorded decode steps, ids one step late."""

from collections import Counter
from dataclasses import replace

import pytest
import torch

from tangram_engine.config import EngineConfig
from tangram_engine.kernels import small_linear, tiles
from tangram_engine.kernels.ops import kernel_ops, reference_ops
from tangram_engine.run import LLMEngine
from tangram_engine.run.attention.paged import PagedAttention
from tangram_engine.sample.params import SamplingParams
from tangram_engine.schedule import Request

OPTIONS = {"max_num_batched_tokens": 64, "max_num_seqs": 5, "kv_cache_bytes": 4 << 20, "block_size": 4}


def device_engine(checkpoint, ops, variant="llama", lag=1, **options):
    config = EngineConfig(checkpoint(variant)[0], device="cpu", **(OPTIONS | options))
    return LLMEngine(config, lag=lag, ops=ops)


def requests(count=9):
    generator = torch.Generator().manual_seed(3)
    settings = (
        {"temperature": 0.0},
        {"temperature": 0.8, "seed": 5, "top_p": 0.9},
        {"temperature": 0.0, "presence_penalty": 0.7, "logprobs": 2},
    )
    return [
        Request(
            f"r{number}",
            tuple(torch.randint(3, 199, (3 + 11 * number,), generator=generator).tolist()),
            SamplingParams(max_tokens=4 + number % 3 * 5, ignore_eos=True, **settings[number % 3]),
            arrival=0.0,
        )
        for number in range(count)
    ]


def tokens(outputs):
    return {name: [output.token for output in found] for name, found in outputs.items()}


@pytest.mark.parametrize("variant", ["llama", "qwen2", "qwen3"])
def test_the_step_of_a_gpu_gives_the_tokens_of_the_cpus(checkpoint, engine, run, variant):
    expected = run(engine(variant), requests())
    one = device_engine(checkpoint, reference_ops(), variant)
    replays = watch_replays(one)
    got = run(one, requests())
    one.audit()
    assert tokens(got) == tokens(expected)
    assert [o.finish for o in got["r1"]] == [o.finish for o in expected["r1"]]
    assert max(replays) > 1  # batches did run through recorded steps


def test_preemption_and_the_prefix_cache_change_no_token(checkpoint, engine, run):
    expected = run(engine(), requests())
    one = device_engine(checkpoint, reference_ops(), kv_cache_bytes=90 << 10, max_model_len=120)
    got = run(one, requests())
    one.audit()
    assert tokens(got) == tokens(expected)
    assert any(output.preemptions for found in got.values() for output in found)


def test_a_step_through_the_kernels_gives_the_same_tokens(checkpoint, engine, run, monkeypatch):
    large = tiles.TILES["small_linear", 0, 0] | {"BLOCK_N": 128}  # interpreted, each program costs 10 ms
    monkeypatch.setitem(tiles.TILES, ("small_linear", 0, 0), large)
    # The warm-up attends to slots that nothing has written; the interpreter warns of infinities there.
    resize = PagedAttention.resize
    monkeypatch.setattr(PagedAttention, "resize", lambda self, n: (resize(self, n), self.pool.zero_())[0])
    few = [
        Request(str(n), (7, 8, 9)[: n + 1], SamplingParams(3, temperature=0.0), arrival=0.0) for n in (1, 2)
    ]
    expected = run(engine(), few)
    fused = []
    ops = replace(kernel_ops(), small_linear=lambda *a: fused.append(a[3:]) or small_linear.small_linear(*a))
    one = device_engine(checkpoint, ops, max_num_seqs=2, max_model_len=12, max_num_batched_tokens=4)
    fused.clear()
    assert tokens(run(one, few)) == tokens(expected)
    kinds = Counter((gated, residual is not None) for gated, residual in fused)
    steps = kinds[True, False] // 2  # of two layers
    assert kinds == {(False, False): 3 * steps, (True, False): 2 * steps, (False, True): 4 * steps}


def watch_replays(one):
    graphs, batches = one._runner._graphs, []
    replay = graphs.replay

    def watched(rows, *change):
        batches.append(len(rows))
        return replay(rows, *change)

    graphs.replay = watched
    return batches
