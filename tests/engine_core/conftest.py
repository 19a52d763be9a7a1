"""One thread, tiny checkpoints, and an engine to talk to."""

import pytest
import torch

from tangram_engine.config import EngineConfig
from tangram_engine.run import LLMEngine
from tangram_engine.sample.params import SamplingParams
from tangram_engine.schedule import Request
from tests.support.tiny_checkpoints import write_tiny_checkpoint


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """variant -> (directory, model of transformers), written once."""
    written = {}

    def get(variant="llama"):
        if variant not in written:
            directory = tmp_path_factory.mktemp(variant)
            written[variant] = directory, write_tiny_checkpoint(directory, variant)
        return written[variant]

    return get


@pytest.fixture
def engine(checkpoint):
    """Build an engine; at the end every one of them must be idle, empty and balanced."""
    built = []

    def build(variant="llama", lag=None, **options):
        options = {
            "max_num_batched_tokens": 64,
            "max_num_seqs": 8,
            "kv_cache_bytes": 4 << 20,
            "block_size": 4,
        } | options
        built.append(LLMEngine(EngineConfig(checkpoint(variant)[0], device="cpu", **options), lag))
        return built[-1]

    yield build
    for one in built:
        one.audit()
        assert not one.has_work()
        assert one.step()[1].kv_used_blocks == 0


@pytest.fixture
def run():
    """Feed requests into an engine until it is idle: id -> its outputs."""

    def go(engine, requests):
        outputs = {request.id: [] for request in requests}
        for request in requests:
            engine.add(request)
        for _ in range(10_000):
            if not engine.has_work():
                return outputs
            for output in engine.step()[0]:
                outputs[output.request_id].append(output)
        return pytest.fail("the engine does not come to an end")

    return go


@pytest.fixture
def greedy():
    """A request for exactly `count` tokens."""

    def make(name, prompt, count=8, **params):
        settings = {"temperature": 0.0, "ignore_eos": True, "logprobs": 2} | params
        return Request(name, tuple(prompt), SamplingParams(max_tokens=count, **settings), arrival=0.0)

    return make
