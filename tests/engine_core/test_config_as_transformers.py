"""config.json is read as transformers 5 reads it, however a setting is spelt; else it is refused by name."""

import json
import shutil

import pytest
import torch
import transformers

from tangram_engine.checkpoint import CheckpointError, read_checkpoint
from tests.engine_core.test_same_as_transformers import TOLERANCE, decoder_of, logits_of
from tests.support.tiny_checkpoints import LINEAR_ROPE, LLAMA3_ROPE, MULTIPLIERS, YARN_ROPE

DROP = object()
LINEAR = {"type": "linear", "factor": 4.0}
LLAMA3 = {key: value for key, value in LLAMA3_ROPE.items() if key != "rope_theta"}
DEFAULT = {"rope_type": "default", "rope_theta": 10000.0}
SLIDING = {"use_sliding_window": True, "layer_types": DROP}
ALIKE = {
    # Two spellings of the rotary settings
    "rope_scaling beside rope_parameters": {"rope_scaling": LINEAR},
    "llama3 scaling beside rope_parameters": {"rope_scaling": LLAMA3},
    "rope_scaling against rope_parameters": {"rope_scaling": LLAMA3, "rope_parameters": LINEAR_ROPE},
    "a default rope_scaling against rope_parameters": {
        "rope_scaling": {"rope_type": "default"},
        "rope_parameters": LINEAR_ROPE,
    },
    "an empty rope_scaling": {"rope_scaling": {}, "rope_parameters": LINEAR_ROPE},
    "rope_theta inside and beside": {
        "rope_theta": 777.0,
        "rope_parameters": LINEAR_ROPE | {"rope_theta": 99.0},
    },
    "rope_theta beside both": {"rope_theta": 777.0, "rope_scaling": LINEAR, "rope_parameters": DEFAULT},
    "rope_theta in rope_scaling": {"rope_theta": 777.0, "rope_scaling": LINEAR | {"rope_theta": 99.0}},
    "type and rope_type": {"rope_parameters": LINEAR_ROPE | {"type": "default"}},
    "the original context beside the block": {
        "original_max_position_embeddings": 32,
        "rope_parameters": LLAMA3_ROPE,
    },
    "the original context is the context": {
        "rope_parameters": {k: v for k, v in LLAMA3_ROPE.items() if k != "original_max_position_embeddings"}
    },
    # Switches without effect
    "factor 1": {"rope_scaling": LINEAR | {"factor": 1.0}},
    "yarn of factor 1": {"rope_scaling": {"rope_type": "yarn", "factor": 1.0}},
    "dynamic scaling within the context": {"rope_scaling": {"type": "dynamic", "factor": 4.0}},
    "yarn of the whole context": {"rope_scaling": {"type": "yarn", "factor": 4.0}},
    "yarn with all its settings": {
        "rope_parameters": YARN_ROPE
        | {"beta_fast": 8.0, "beta_slow": 2.0, "attention_factor": 1.3, "truncate": False}
    },
    "a full rotation": {"partial_rotary_factor": 1.0},
    "no layer slides": SLIDING | {"sliding_window": 32, "max_window_layers": 3},
    "no layer slides by default": SLIDING | {"sliding_window": 32},
    "no window": SLIDING | {"sliding_window": None, "max_window_layers": 0},
    "a window as long as the context": SLIDING | {"sliding_window": 256, "max_window_layers": 0},
    "all layers are full": {"layer_types": ["full_attention"] * 3},
    "another name of silu": {"hidden_act": "swish"},
    # Numbers
    "as few keys as may be": dict.fromkeys(
        ("head_dim", "rope_parameters", "sliding_window", "layer_types"), DROP
    ),
    "nulls": dict.fromkeys(("rope_scaling", "sliding_window", "layer_types", "pad_token_id", "torch_dtype")),
}
REFUSED = {
    "longrope beside rope_parameters": (
        {"rope_scaling": {"type": "longrope", "factor": 4.0}},
        "rope_scaling.rope_type",
    ),
    "yarn whose fast pairs are slower than its slow ones": (
        {"rope_scaling": {"type": "yarn", "factor": 4.0, "beta_fast": 1, "beta_slow": 2}},
        "rope_scaling.beta_fast",
    ),
    "mrope": ({"rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}}, "rope_scaling.mrope_section"),
    "a type that is a list": ({"rope_scaling": {"rope_type": ["linear"]}}, "rope_scaling.rope_type"),
    "rope_theta in the block that does not count": (
        {"rope_scaling": LINEAR, "rope_parameters": {"rope_type": "default", "rope_theta": 99.0}},
        "rope_scaling: replaces rope_parameters",
    ),
    "a block for each kind of layer": (
        {"rope_parameters": {"full_attention": LINEAR_ROPE}},
        "rope_parameters.full_attention",
    ),
    "yarn whose base has no logarithm": (
        {"rope_parameters": YARN_ROPE | {"rope_theta": 1.0}},
        "config.json: rope_theta",
    ),
    "yarn beyond all contexts": (
        {"rope_parameters": YARN_ROPE | {"factor": 1e6, "original_max_position_embeddings": 1 << 30}},
        "rope_scaling: a context of",
    ),
    "yarn of DeepSeek": (
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "mscale": 1.0}},
        "rope_scaling.mscale",
    ),
    "a factor in the older block": (
        {"rope_scaling": {"type": "linear", "factor": 0.5}},
        "rope_scaling.factor",
    ),
    "part of the rotation": (
        {"rope_parameters": DEFAULT | {"partial_rotary_factor": 0.5}},
        "partial_rotary_factor",
    ),
    "one layer slides": (SLIDING | {"sliding_window": 32, "max_window_layers": 2}, "use_sliding_window"),
    "all layers slide": (SLIDING | {"sliding_window": 255, "max_window_layers": 0}, "use_sliding_window"),
    "one layer slides by its type": (
        {"sliding_window": 32, "layer_types": ["full_attention", "sliding_attention", "full_attention"]},
        "layer_types",
    ),
    "layers of another kind": ({"layer_types": ["linear_attention"] * 3}, "layer_types"),
    "quantization_config": ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
    "compression_config": ({"compression_config": {"format": "int-quantized"}}, "compression_config"),
    "quantization": ({"quantization": {"bits": 4}}, "config.json: quantization: "),
    "text_config": ({"text_config": {"hidden_size": 32}}, "text_config"),
    "layers that are no whole number": ({"num_hidden_layers": 2.5}, "num_hidden_layers"),
    "more layers than stored, as a float": ({"num_hidden_layers": 4.0}, "model.layers.3"),
}
FLOATS = {
    "num_hidden_layers": 3.0,
    "vocab_size": 199.0,
    "num_attention_heads": 4.0,
    "eos_token_id": [2.0, 3.0],
}


@pytest.fixture
def changed(checkpoint, tmp_path):
    """A copy of a tiny checkpoint with other keys in config.json."""

    def change(changes, variant="qwen2"):
        directory = shutil.copytree(checkpoint(variant)[0], tmp_path / "model")
        path = directory / "config.json"
        config = json.loads(path.read_text()) | changes
        path.write_text(json.dumps({key: value for key, value in config.items() if value is not DROP}))
        return directory

    return change


@pytest.mark.parametrize("changes", ALIKE.values(), ids=ALIKE)
def test_logits_are_those_of_transformers(changes, changed):
    assert_equal_logits(changed(changes))


def assert_equal_logits(directory):
    tokens = torch.randint(3, 199, (120,), generator=torch.Generator().manual_seed(5)).tolist()
    oracle = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    with torch.inference_mode():
        expected = oracle(torch.tensor([tokens])).logits[0]
    torch.testing.assert_close(
        logits_of(decoder_of(directory), tokens, [120]), expected, atol=TOLERANCE, rtol=0
    )


@pytest.mark.parametrize(("changes", "key"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_implemented_is_refused_by_its_key(changes, key, changed):
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(changed(changes))
    assert key in caught.value.message


def test_whole_numbers_may_be_written_as_floats(changed):
    directory = changed(FLOATS)
    (directory / "generation_config.json").write_text('{"eos_token_id": 7.0}')
    spec = read_checkpoint(directory).spec
    assert (spec.layers, spec.vocab_size, spec.heads, spec.eos_token_ids) == (3, 199, 4, (2, 3, 7))
    assert all(type(number) is int for number in (spec.layers, spec.vocab_size, *spec.eos_token_ids))


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"sliding_window": None}, None),
        ({"sliding_window": DROP}, None),  # 4096 then, which is longer than the context
        ({"sliding_window": 256}, None),
        ({"sliding_window": 24}, "sliding_window"),
        (
            {"sliding_window": 24, "layer_types": ["full_attention"] * 2},
            "sliding_window",
        ),  # not read
        ({"max_position_embeddings": 8192, "sliding_window": DROP}, "sliding_window"),
    ],
    ids=["none", "the default", "the context", "short", "short, with types", "the default in a long context"],
)
def test_mistral_is_served_where_no_window_is_shorter_than_the_context(changes, key, changed):
    directory = changed(changes, "mistral")
    if key is None:
        assert read_checkpoint(directory).spec.family == "mistral"
        return
    with pytest.raises(CheckpointError, match=f"config.json: {key}: "):
        read_checkpoint(directory)


OWN_KEYS_ALIKE = {
    "layers that rotate, one by one": ("smollm3", {"no_rope_layers": [0, 1, 1, 0, 1, 0]}),
    "an interval": ("smollm3", {"no_rope_layers": None, "no_rope_layer_interval": 2}),
    "no multipliers": ("granite-tied", dict.fromkeys(MULTIPLIERS, DROP)),
    "theta and epsilon of the family": ("ernie4.5", {"rope_parameters": DROP, "rms_norm_eps": DROP}),
}


@pytest.mark.parametrize(("variant", "changes"), OWN_KEYS_ALIKE.values(), ids=OWN_KEYS_ALIKE)
def test_keys_of_one_family_are_read_as_transformers_reads_them(variant, changes, changed):
    assert_equal_logits(changed(changes, variant))


@pytest.mark.parametrize(
    ("variant", "changes", "message"),
    [
        ("smollm3", {"no_rope_layers": [1, 0]}, "no_rope_layers: has 2 entries for 5 layers"),
        ("smollm3", {"no_rope_layers": ["1"] * 5}, "no_rope_layers"),
        ("smollm3", {"no_rope_layer_interval": 0}, "no_rope_layer_interval"),
        ("smollm3", SLIDING | {"sliding_window": 32}, "use_sliding_window"),
        ("granite-tied", {"residual_multiplier": 0}, "residual_multiplier"),
        ("granite-tied", {"logits_scaling": "8"}, "logits_scaling"),
        ("granite-tied", {"attention_multiplier": 1e9}, "attention_multiplier"),
        ("granite-tied", {"attention_bias": True}, "attention_bias"),
        ("phi3", {"sliding_window": 24}, "sliding_window"),
        ("phi3", {"rope_scaling": LINEAR}, "rope_scaling"),
        ("phi3", {"partial_rotary_factor": 0.75}, "partial_rotary_factor"),
        ("phi3", {"rope_scaling": {"type": "longrope", "short_factor": [1.0]}}, "rope_scaling.short_factor"),
        ("ernie4.5", {"use_bias": True}, "use_bias"),
        ("internlm3", {"qkv_bias": True}, "qkv_bias"),
        ("internlm3", {"bias": True}, "bias"),
        ("iquestcoder", {"clip_qkv": 8.0}, "clip_qkv"),
    ],
)
def test_keys_of_one_family_are_refused_by_name(variant, changes, message, changed):
    with pytest.raises(CheckpointError, match=f"config.json: {message}"):
        read_checkpoint(changed(changes, variant))


@pytest.mark.parametrize("value", [-1, "2", True, 1.5, [2, None, "3"]])
def test_a_refusal_names_the_file_that_has_the_value(value, changed):
    directory = changed({})
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": value}))
    with pytest.raises(CheckpointError, match=r"^InvalidCheckpoint: generation_config\.json: eos_token_id"):
        read_checkpoint(directory)
