"""Random weights need config.json alone, and are scaled as real ones."""

import json
import math

import pytest
import torch

from tangram_engine.checkpoint import CheckpointError, read_shapes
from tangram_engine.config import EngineConfig
from tangram_engine.models.dummy import STD, dummy_source
from tangram_engine.run import LLMEngine
from tests.contracts.memory_golden import LLAMA, QWEN2, QWEN3, sizes

CPU = torch.device("cpu")
SHAPES = {
    "llama": LLAMA | sizes(2, 64, 112, 4, 2, 199, 256),
    "qwen2": QWEN2 | sizes(2, 64, 112, 4, 2, 199, 256),
    "qwen3": QWEN3 | sizes(2, 64, 112, 4, 2, 199, 256),
}


@pytest.fixture
def directory(tmp_path):
    def write(variant="llama", **fields):
        (tmp_path / "config.json").write_text(json.dumps(SHAPES[variant] | fields))
        return tmp_path

    return write


@pytest.mark.parametrize("variant", list(SHAPES))
def test_an_engine_runs_on_random_weights_without_any_safetensors(directory, run, greedy, variant, caplog):
    config = EngineConfig(directory(variant), device="cpu", kv_cache_bytes=4 << 20, load_format="dummy")
    one, same = LLMEngine(config), LLMEngine(config)
    assert "the weights are random" in caplog.text
    answers = [run(each, [greedy("a", range(5, 40), 8)])["a"] for each in (one, same)]
    assert answers[0][-1].finish == "length"
    assert [output.token for output in answers[0]] == [output.token for output in answers[1]]


def test_weights_are_normal_norms_are_one_and_biases_zero(directory):
    spec = read_shapes(directory("qwen2", hidden_size=256)).spec
    source = dummy_source(spec, torch.float32, CPU, seed=1)
    assert source("model.embed_tokens.weight").std().item() == pytest.approx(STD, rel=0.05)
    assert source("model.embed_tokens.weight").mean().abs() < 0.001
    deep = source("model.layers.1.mlp.down_proj.weight").std().item()
    assert deep == pytest.approx(STD / math.sqrt(4), rel=0.05)
    assert (source("model.layers.0.input_layernorm.weight") == 1).all()
    assert (source("model.norm.weight") == 1).all()
    assert (source("model.layers.0.self_attn.q_proj.bias") == 0).all()


def test_another_seed_gives_other_weights(directory):
    spec = read_shapes(directory()).spec
    one, other = (dummy_source(spec, torch.float32, CPU, seed)("lm_head.weight") for seed in (0, 1))
    assert not torch.equal(one, other)


@pytest.mark.parametrize(
    ("name", "dtype"), [("float16", "fp16"), ("bfloat16", "bf16"), (None, "bf16"), (7, "bf16")]
)
def test_the_dtype_is_that_of_the_config(directory, name, dtype):
    assert read_shapes(directory(dtype=name)).spec.dtype == dtype


def test_a_config_that_is_refused_with_weights_is_refused_without(directory):
    with pytest.raises(CheckpointError, match="mlp_bias"):
        read_shapes(directory(mlp_bias=True))


def test_an_unknown_load_format_is_refused(tmp_path):
    with pytest.raises(ValueError, match="load_format 'npz'"):
        EngineConfig(tmp_path, load_format="npz")
