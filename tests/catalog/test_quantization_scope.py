"""Which modules of a checkpoint are quantised, and how: the scopes of each dialect, in bytes."""

import time
from typing import Any

import pytest

from tangram.capacity.memory.weights import stored_bytes
from tangram.catalog import InputError
from tangram.catalog.configs.model_config import architecture_from_config
from tangram.catalog.models.precision import precision

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128_256,
    "max_position_embeddings": 131_072,
    "torch_dtype": "bfloat16",
}
# Parameters of Llama 3.1 8B by what they are for.
LAYERS = 32
MLP = LAYERS * 3 * 4096 * 14336
ATTENTION = LAYERS * 2 * (4096 * 4096 + 4096 * 1024)
TABLE = 128_256 * 4096
NORMS = 65 * 4096
GPTQ_MATRICES = {
    (4096, 14336): 2 * LAYERS,
    (14336, 4096): LAYERS,
    (4096, 4096): 2 * LAYERS,
    (4096, 1024): 2 * LAYERS,
}  # (input, output) features


def gptq(bits: int, matrices: dict[tuple[int, int], int]) -> int:
    """Bytes by GPTQModel: qweight, fp16 scales and zeros per group of 128, an int32 index per input."""
    return sum(
        count * (rows * columns * bits // 8 + rows // 128 * columns * (16 + bits) // 8 + 4 * rows)
        for (rows, columns), count in matrices.items()
    )


MLP_MATRICES = {shape: count for shape, count in GPTQ_MATRICES.items() if 14336 in shape}


def size_of(quantization: dict[str, Any], **changes: Any) -> int:
    config = LLAMA | changes | {"quantization_config": quantization}
    return stored_bytes(architecture_from_config(config, "m"))


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128}
MLP_ALONE = gptq(4, MLP_MATRICES) + 2 * (ATTENTION + 2 * TABLE + NORMS)


@pytest.mark.parametrize(
    ("scope", "nbytes"),
    [
        ({}, gptq(4, GPTQ_MATRICES) + 2 * (2 * TABLE + NORMS)),
        ({"dynamic": {"-:.*self_attn.*": {}}}, MLP_ALONE),
        ({"dynamic": {r"-:model\.layers\.\d+\.self_attn.*": {}}}, MLP_ALONE),
        (
            {"dynamic": {"+:.*self_attn.*": {"bits": 8}}},
            gptq(4, MLP_MATRICES)
            + gptq(8, {key: count for key, count in GPTQ_MATRICES.items() if key not in MLP_MATRICES})
            + 2 * (2 * TABLE + NORMS),
        ),
        (
            {
                "modules_in_block_to_quantize": [
                    ["mlp.gate_proj", "mlp.up_proj"],
                    ["mlp.down_proj"],
                ]
            },
            MLP_ALONE,
        ),
        (
            {"lm_head": True},
            gptq(4, GPTQ_MATRICES) + gptq(4, {(4096, 128_256): 1}) + 2 * (TABLE + NORMS),
        ),
    ],
)
def test_gptq_quantises_what_its_rules_name(scope: dict[str, Any], nbytes: int):
    assert size_of(GPTQ | scope) == nbytes


def packed(matrices: dict[tuple[int, int], int]) -> int:
    """Bytes by compressed-tensors' pack-quantized: int4, bf16 scales per 128, a shape of two int64."""
    return sum(
        count * (rows * columns // 2 + rows // 128 * columns * 2 + 16)
        for (rows, columns), count in matrices.items()
    )


INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True}
FP8 = {"num_bits": 8, "type": "float", "strategy": "channel"}


def fp8(matrices: dict[tuple[int, int], int]) -> int:
    """Bytes with one fp32 scale per output feature."""
    return sum(count * (rows * columns + 4 * columns) for (rows, columns), count in matrices.items())


@pytest.mark.parametrize(
    "target", ["re:.*mlp.*", r"re:model\.layers\.\d+\.mlp\.\w+", "re:.*(gate|up|down)_proj$"]
)
def test_compressed_tensors_quantise_their_targets_alone(target: str):
    groups = {"group_0": {"targets": [target], "weights": INT4}}

    found = size_of({"quant_method": "compressed-tensors", "config_groups": groups, "ignore": ["lm_head"]})

    assert found == packed(MLP_MATRICES) + 2 * (ATTENTION + 2 * TABLE + NORMS)


def test_a_named_target_comes_before_the_class_and_an_ignored_layer_before_both():
    groups = {
        "group_0": {"targets": ["Linear"], "weights": FP8},
        "group_1": {"targets": ["re:.*mlp.*"], "weights": INT4},
    }
    ignored = ["lm_head", *(f"model.layers.{layer}.self_attn.q_proj" for layer in range(16))]

    found = size_of({"quant_method": "compressed-tensors", "config_groups": groups, "ignore": ignored})

    attention = {(4096, 4096): 2 * LAYERS - 16, (4096, 1024): 2 * LAYERS}
    sixteen_bits = 16 * 4096 * 4096 + 2 * TABLE + NORMS
    assert found == packed(MLP_MATRICES) + fp8(attention) + 2 * sixteen_bits


def test_compressed_tensors_quantise_a_head_that_they_do_not_ignore():
    groups = {"group_0": {"targets": ["Linear"], "weights": FP8}}
    config = {"quant_method": "compressed-tensors", "config_groups": groups}

    assert size_of(config) == fp8(GPTQ_MATRICES) + fp8({(4096, 128_256): 1}) + 2 * (TABLE + NORMS)


MODELOPT = {
    "producer": {"name": "modelopt", "version": "0.31.0"},
    "quant_algo": "FP8",
    "ignore": ["lm_head"],
    "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float", "dynamic": False}}},
}


def test_an_export_of_modelopt_without_a_method_is_read():
    assert size_of(MODELOPT) == fp8(GPTQ_MATRICES) + 2 * (2 * TABLE + NORMS)


def test_modelopt_gives_each_named_layer_its_own_algorithm():
    named = {f"model.layers.{layer}.mlp": {"quant_algo": "NVFP4"} for layer in range(LAYERS)}
    named |= {f"model.layers.{layer}.self_attn.q_proj": {"quant_algo": "FP8"} for layer in range(LAYERS)}
    config = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": named}

    nvfp4 = sum(
        count * (rows * columns // 2 + rows * columns // 16 + 8)
        for (rows, columns), count in MLP_MATRICES.items()
    )
    left = ATTENTION - LAYERS * 4096 * 4096 + 2 * TABLE + NORMS
    assert size_of(config) == nvfp4 + fp8({(4096, 4096): LAYERS}) + 2 * left


@pytest.mark.parametrize(
    ("config", "form", "bits"),
    [
        ({"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, "bnb4", 4 + 32 / 64),
        (
            {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True},
            "bnb4_nested",
            4 + 8 / 64,
        ),
        ({"load_in_8bit": True}, "bnb_int8", 8 + 32 / 4096),
    ],
)
def test_bitsandbytes_keep_a_scale_per_block_or_row(config: dict[str, Any], form: str, bits: float):
    model = architecture_from_config(
        LLAMA | {"quantization_config": {"quant_method": "bitsandbytes", **config}}, "m"
    )

    assert model.quantization == form
    assert precision(form).bytes_of(4096, 4096) == 4096 * 4096 * bits / 8


def refusal(quantization: dict[str, Any], **changes: Any) -> str:
    with pytest.raises(InputError) as caught:
        size_of(quantization, **changes)
    return str(caught.value)


COMPRESSED = {"quant_method": "compressed-tensors"}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (GPTQ | {"dynamic": []}, "dynamic: is [], not an object"),
        (GPTQ | {"dynamic": {"-:(": {}}}, "dynamic: '(' is no expression"),
        (GPTQ | {"dynamic": {"-:(a+)+$": {}}}, "dynamic: '(a+)+$' repeats a group, which is not read"),
        (GPTQ | {"dynamic": {"-:" + "a.*" * 5: {}}}, "has over 1000 characters or over 4 repeats"),
        (GPTQ | {"dynamic": {"+:.*": {"bits": 3}}}, "bits: 3 is not supported with gptq"),
        (GPTQ | {"dynamic": {"+:.*": 4}}, "+:.*: is 4, not an object"),
        (
            GPTQ | {"dynamic": {f"-:{n}": {} for n in range(1001)}},
            "dynamic: has 1001 rules; at most 1000 are read",
        ),
        (
            GPTQ | {"modules_in_block_to_quantize": ["mlp"]},
            "modules_in_block_to_quantize: is ['mlp'], not a list of",
        ),
        (
            GPTQ | {"modules_in_block_to_quantize": [[1]]},
            "modules_in_block_to_quantize: is [[1]], not a list of",
        ),
        (GPTQ | {"dynamic": {"-:.*": {}}}, "quantises no module of the model"),
        (
            COMPRESSED
            | {"config_groups": {"g": {"weights": INT4}}, "ignore": [f"re:.*{n}.*" for n in range(3000)]},
            "ignore: has 3000 expressions, too many for 32 layers",
        ),
        ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}, "quantized_layers: is missing"),
        (
            {"quant_method": "bitsandbytes", "bnb_4bit_quant_type": "nf3"},
            "bnb_4bit_quant_type: 'nf3' is not nf4 or fp4",
        ),
    ],
)
def test_a_scope_that_is_not_read_is_refused_with_its_key(config: dict[str, Any], message: str):
    text = refusal(config)

    assert text.startswith("config.json: quantization_config: ")
    assert message in text
    assert len(text) < 300
    assert "\n" not in text


def test_the_slowest_patterns_that_are_read_take_seconds():
    names = [f"model.layers.{layer}.self_attn.{n}" for layer in range(400) for n in range(25)]
    slow = "re:.*[a-z].*[a-z].*[a-z].*Z"  # fails after all ways to split a name
    config = {"quant_method": "fp8", "ignore": [*names, slow, slow]}

    begin = time.process_time()
    size_of(config, num_hidden_layers=128)
    seconds = time.process_time() - begin

    assert seconds < 20
    assert "ignore: has 3 expressions, too many for 128 layers" in refusal(
        config | {"ignore": [slow, slow, slow]}, num_hidden_layers=128
    )
