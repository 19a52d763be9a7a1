"""Engine and operator each have one table of model families; both read a config.json as the same tensors."""

import math
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tangram.api.llm_deployment.facts import Facts
from tangram.capacity.memory.from_facts import architecture_from_facts
from tangram.catalog import Architecture
from tangram.catalog.configs.families import FAMILIES as OPERATORS
from tangram.catalog.configs.model_config import architecture_from_config
from tangram_engine.checkpoint import Checkpoint, TensorEntry, expected_shapes
from tangram_engine.checkpoint.config import FAMILIES as ENGINES
from tangram_engine.checkpoint.config import parse_config
from tangram_engine.checkpoint.errors import CheckpointError
from tangram_engine.inspect import facts
from tests.catalog.real_checkpoints import real_checkpoints

Tensors = Counter[tuple[str, tuple[int, ...]]]  # name, with * for the number of a layer, and shape

CONFIG: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 200,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "vocab_size": 512,
    "max_position_embeddings": 256,
    "torch_dtype": "bfloat16",
}
CONFIGS = {
    "as few keys as may be": CONFIG,
    "groups of heads": CONFIG | {"num_key_value_heads": 2},
    "heads of another size": CONFIG | {"num_key_value_heads": 4, "head_dim": 32},
    "tied embeddings": CONFIG | {"tie_word_embeddings": True},
    "biases that are switched off": CONFIG | {"attention_bias": False},
    "windows that are switched off": CONFIG
    | {"use_sliding_window": False, "sliding_window": 64, "max_window_layers": 1},
}


def checkpoint_of(config: dict[str, Any]) -> Checkpoint:
    """A checkpoint that has the tensors that the engine expects, and no files."""
    spec = parse_config(config, {}, "bf16")
    tensors = {
        name: TensorEntry(Path("model.safetensors"), "BF16", shape, offset=0, nbytes=2 * math.prod(shape))
        for name, shape in expected_shapes(spec)
    }
    return Checkpoint(spec, tensors, digest="0" * 64)


def engines_tensors(checkpoint: Checkpoint) -> Tensors:
    """With those that a family stores as one counted one by one, as tensor parallelism splits them."""
    apart = replace(checkpoint.spec, packed_projections=False)
    return Counter(
        (re.sub(r"layers\.\d+\.", "layers.*.", name), shape) for name, shape in expected_shapes(apart)
    )


def operators_tensors(architecture: Architecture) -> Tensors:
    tensors: Tensors = Counter()
    for tensor in architecture.tensors:
        tensors[tensor.name, tensor.shape] += tensor.count
    return tensors


def test_the_operator_knows_which_families_the_engine_serves() -> None:
    assert {name for name, family in OPERATORS.items() if family.in_engine} == set(ENGINES)


@pytest.mark.parametrize("repo", real_checkpoints())
def test_sizing_says_of_a_real_checkpoint_whether_the_engine_serves_it(repo: str) -> None:
    config = real_checkpoints()[repo].config | {"eos_token_id": 1}
    try:
        parse_config(config, {}, "bf16")
    except CheckpointError:
        served = False
    else:
        served = True

    assert architecture_from_config(config, repo).served_by_engine is served


@pytest.mark.parametrize("config", CONFIGS.values(), ids=list(CONFIGS))
@pytest.mark.parametrize("family", ENGINES)
def test_both_read_the_same_tensors_from_a_config(family: str, config: dict[str, Any]) -> None:
    if "sliding_window" in config and ENGINES[family].windowed:  # it has no switch but the window itself
        config = config | {"sliding_window": None}
    assert_both_read_the_same_tensors(config | {"architectures": [family]})


ROTATIONS: dict[str, dict[str, Any]] = {
    "of every pair": {"rope_theta": 5e5},
    "linear": {"rope_scaling": {"type": "linear", "factor": 2.0}},
    "dynamic": {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
    "yarn": {"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64}},
    "yarn of a context beside it": {
        "rope_scaling": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64},
        "original_max_position_embeddings": 32,
    },
    "longrope": {"rope_scaling": {"rope_type": "longrope", "factor": 2.0}},
    "of some pairs": {"partial_rotary_factor": 0.5},
    "of some pairs, in a block": {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}},
}


@pytest.mark.parametrize("rotation", ROTATIONS.values(), ids=list(ROTATIONS))
@pytest.mark.parametrize("family", ENGINES)
def test_both_know_which_rotations_the_engine_computes(family: str, rotation: dict[str, Any]) -> None:
    config = CONFIG | rotation | {"architectures": [family], "sliding_window": None}
    try:
        context = parse_config(config, {}, "bf16").max_position_embeddings
    except CheckpointError:
        context = None

    architecture = architecture_from_config(config, "a model")

    assert architecture.served_by_engine is (context is not None)
    assert context in {None, architecture.max_position_embeddings}


def assert_both_read_the_same_tensors(config: dict[str, Any]) -> None:
    """The operator's, from config.json and from the engine's report, are the engine's."""
    checkpoint = checkpoint_of(config)
    reported = Facts.model_validate(facts(checkpoint)).to_noun()

    from_config = architecture_from_config(config, "a model")
    from_report = architecture_from_facts(reported)

    assert operators_tensors(from_config) == engines_tensors(checkpoint)
    assert operators_tensors(from_report) == engines_tensors(checkpoint)
    assert from_report.groups == from_config.groups
    assert from_report.unverified == from_config.unverified == ()
