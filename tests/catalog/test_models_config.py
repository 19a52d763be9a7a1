"""A config.json that a person or a hub wrote: understood, or refused in one line with the field."""

import math
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tangram.catalog import InputError
from tangram.catalog.configs.families import FAMILIES
from tangram.catalog.configs.model_config import architecture_from_config
from tangram.catalog.models.architecture import NO_VISION, Architecture
from tangram.catalog.models.precision import precision
from tangram.catalog.models.tensors import TensorKind
from tests.support.model_figures import active_parameters

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 2048,
    "torch_dtype": "bfloat16",
}
MIXTRAL = LLAMA | {
    "architectures": ["MixtralForCausalLM"],
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "sliding_window": None,
}


def refusal(**changes: Any) -> str:
    with pytest.raises(InputError) as caught:
        architecture_from_config(LLAMA | changes, "m")
    return str(caught.value)


@pytest.mark.parametrize("key", [key for key in LLAMA if key not in {"torch_dtype", "num_key_value_heads"}])
def test_a_missing_key_is_named(key: str):
    config = {name: value for name, value in LLAMA.items() if name != key}

    with pytest.raises(InputError, match=f"^config.json: {key}: is missing"):
        architecture_from_config(config, "m")


@pytest.mark.parametrize(
    "key", [key for key in LLAMA if key not in {"torch_dtype", "architectures", "num_key_value_heads"}]
)
@pytest.mark.parametrize("value", [-1, 0, 1.5, math.nan, math.inf, "4096", True, [1], {}, 10**12, 10**400])
def test_an_absurd_size_is_refused_with_its_key(key: str, value: Any):
    assert refusal(**{key: value}).startswith(f"config.json: {key}: is ")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_key_value_heads": 3}, "num_key_value_heads: 3 does not divide the 8 attention heads"),
        (
            {"num_attention_heads": 7, "num_key_value_heads": 7},
            "num_attention_heads: 7 does not divide hidden",
        ),
        ({"num_hidden_layers": 10**8}, "num_hidden_layers: is 100000000, not a whole number from 1 to 4096"),
        (
            {"torch_dtype": "float8_e4m3fn"},
            "torch_dtype: 'float8_e4m3fn' is not bfloat16, float16 or float32",
        ),
        ({"torch_dtype": 16}, "torch_dtype: is 16, not a string"),
        ({"dtype": "int4"}, "dtype: 'int4' is not"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings: is 'yes', not true or false"),
        ({"attention_bias": 1}, "attention_bias: is 1, not true or false"),
        (
            {"architectures": "LlamaForCausalLM"},
            "architectures: is 'LlamaForCausalLM', not a list of strings",
        ),
        ({"architectures": []}, "architectures: is missing"),
        (
            {"architectures": ["GPT2LMHeadModel"]},
            "architectures: 'GPT2LMHeadModel' is not supported; of ",
        ),
        ({"layer_types": ["full_attention"]}, "layer_types: has 1 entries for 4 layers"),
        ({"layer_types": ["linear_attention"] * 4}, "layer_types: 'linear_attention' is not one of"),
        ({"quantization_config": "fp8"}, "quantization_config: is 'fp8', not an object"),
        ({"quantization_config": {}}, "quantization_config: quant_method: is missing"),
        ({"quantization_config": {"quant_method": "hqq"}}, "quant_method: 'hqq' is not supported"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 3}}, "bits: 3 is not supported with gptq"),
        (
            {"quantization_config": {"quant_method": "fp8", "weight_block_size": [64, 64]}},
            "weight_block_size: [64, 64] is not supported",
        ),
        (
            {"quantization_config": {"quant_method": "fp8", "ignored_layers": ["re:("]}},
            "ignored_layers: '(' is no expression",
        ),
        (
            {"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {}}},
            "config_groups: is missing",
        ),
        (
            {"quantization_config": {"quant_method": "modelopt", "quant_algo": "FP3"}},
            "quant_algo: 'FP3' is not",
        ),
    ],
)
def test_a_contradiction_is_one_line_with_the_field(changes: dict[str, Any], message: str):
    text = refusal(**changes)

    assert text.startswith("config.json: ")
    assert message in text
    assert "\n" not in text


GEMMA4 = {
    "architectures": ["Gemma4ForConditionalGeneration"],
    "text_config": LLAMA | {"hidden_size_per_layer_input": 0},
    "vision_config": {},
}
NEMOTRON = LLAMA | {"architectures": ["NemotronHForCausalLM"], "hybrid_override_pattern": "M*-M"}
QWEN_NEXT = LLAMA | {
    "architectures": ["Qwen3NextForCausalLM"],
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (GEMMA4 | {"text_config": []}, "text_config: is [], not an object"),
        (GEMMA4 | {"text_config": {"text_config": LLAMA}}, "text_config: num_hidden_layers: is missing"),
        (GEMMA4 | {"vision_config": "siglip"}, "vision_config: is 'siglip', not an object"),
        (GEMMA4 | {"vision_config": {"hidden_size": -1}}, "vision_config: hidden_size: is -1, not a whole"),
        (GEMMA4 | {"vision_config": {"num_hidden_layers": 10**9}}, "num_hidden_layers: is 1000000000, not"),
        (NEMOTRON | {"hybrid_override_pattern": "M*"}, "hybrid_override_pattern: says of layer 2 none of"),
        (NEMOTRON | {"hybrid_override_pattern": ["M"]}, "hybrid_override_pattern: is ['M'], not a string"),
        (NEMOTRON | {"layers_block_type": ["mamba", "rnn"] * 2}, "layers_block_type: says of layer 1 none"),
        (NEMOTRON | {"mamba_ssm_cache_dtype": "int4"}, "mamba_ssm_cache_dtype: 'int4' is not one of"),
        (NEMOTRON | {"mamba_proj_bias": True}, "mamba_proj_bias: is true; only mixers without"),
        (QWEN_NEXT | {"linear_num_value_heads": "32"}, "linear_num_value_heads: is '32', not a whole number"),
        (QWEN_NEXT | {"layer_types": ["sliding_attention"] * 4}, "layer_types: 'sliding_attention' is not"),
        (LLAMA | {"rope_scaling": {"type": "yarn", "factor": "4"}}, "rope_scaling: factor: is '4', not a"),
        (LLAMA | {"rope_scaling": "yarn"}, "rope_scaling: is 'yarn', not an object"),
        (LLAMA | {"rope_scaling": {"type": ["yarn"]}}, "rope_scaling: type: is ['yarn'], not a string"),
        (LLAMA | {"architectures": ["x" * 10_000]}, "architectures: 'xxxxx"),
    ],
)
def test_a_part_that_is_not_understood_is_one_line_with_its_key(config: dict[str, Any], message: str):
    with pytest.raises(InputError) as caught:
        architecture_from_config(config, "m")

    text = str(caught.value)
    assert message in text
    assert len(text) < 300
    assert "\n" not in text


def test_the_longest_configs_are_read_in_seconds():
    noise = {f"key_{n}": n for n in range(10_000)}
    layers = 4096
    types = ["linear_attention", "full_attention"] * (layers // 2)
    config = QWEN_NEXT | noise | {"num_hidden_layers": layers, "layer_types": types}

    begin = time.process_time()
    model = architecture_from_config(config, "m")

    assert model.layers == layers
    assert time.process_time() - begin < 20


def test_more_experts_cannot_be_chosen_than_there_are():
    with pytest.raises(InputError, match="num_experts_per_tok: 5 of 4 experts"):
        architecture_from_config(MIXTRAL | {"num_experts_per_tok": 5}, "m")


def test_a_multimodal_config_without_its_text_is_refused():
    with pytest.raises(InputError, match=r"config.json: text_config: is missing"):
        architecture_from_config({"architectures": ["Gemma3ForConditionalGeneration"]}, "m")


def test_a_tower_that_is_not_counted_is_said():
    text = {key: value for key, value in LLAMA.items() if key != "architectures"}
    config = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "text_config": text,
        "audio_config": {"hidden_size": 8},
    }

    assert architecture_from_config(config, "m").unverified == (NO_VISION,)


def test_transformers_5_spellings_are_read():
    config = {key: value for key, value in LLAMA.items() if key != "torch_dtype"} | {"dtype": "float16"}

    assert architecture_from_config(config, "m").dtype == "fp16"


def test_whole_floats_are_whole_numbers():
    assert architecture_from_config(LLAMA | {"hidden_size": 512.0}, "m").hidden_size == 512


def group(**weights: Any) -> dict[str, Any]:
    return {"config_groups": {"group_0": {"weights": weights, "targets": ["Linear"]}}}


@pytest.mark.parametrize(
    ("config", "form"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}, "int4"),
        ({"quant_method": "awq", "bits": 4, "group_size": 64}, "int4_g64"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True}, "int4_gptq"),
        ({"quant_method": "gptq", "bits": 4, "group_size": -1}, "int4_gptq_channel"),
        ({"quant_method": "gptq", "bits": 8, "group_size": 32}, "int8_gptq_g32"),
        ({"quant_method": "fp8", "activation_scheme": "static"}, "fp8"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8_block"),
        ({"quant_method": "fbgemm_fp8", "modules_to_not_convert": ["lm_head"]}, "fp8"),
        ({"quant_method": "mxfp4"}, "mxfp4"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}, "nvfp4"),
        (
            {"quant_method": "compressed-tensors", **group(num_bits=8, type="float", strategy="channel")},
            "fp8",
        ),
        (
            {"quant_method": "compressed-tensors", **group(num_bits=8, type="float", strategy="block")},
            "fp8_block",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                **group(num_bits=4, type="int", strategy="group", group_size=128, symmetric=True),
            },
            "int4_packed",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                **group(num_bits=4, type="float", strategy="tensor_group", group_size=16),
            },
            "nvfp4",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "group_0": {
                        "weights": {"num_bits": 8, "type": "int", "strategy": "channel"},
                        "input_activations": {"num_bits": 8, "type": "int"},
                    }
                },
            },
            "int8",
        ),
        (
            {"quant_method": "compressed-tensors", **group(num_bits=8, type="int", strategy="channel")},
            "int8_packed_channel",
        ),
    ],
)
def test_published_quantisation_configs_are_understood(config: dict[str, Any], form: str):
    model = architecture_from_config(LLAMA | {"quantization_config": config}, "m")

    assert model.quantization == form
    assert precision(model.precision).quantised


@pytest.mark.parametrize(
    ("exclusions", "kinds"),
    [
        ({"ignore": ["lm_head"]}, ()),
        ({"ignore": ["re:.*self_attn.*", "lm_head"]}, (TensorKind.ATTENTION,)),
        ({"modules_to_not_convert": ["self_attn", "lm_head"]}, (TensorKind.ATTENTION,)),
        ({"modules_to_not_convert": ["gate"]}, ()),  # the router, not gate_proj
        ({"exclude_modules": ["*self_attn*"]}, (TensorKind.ATTENTION,)),
        ({"exclude_modules": [f"model.layers.{n}.self_attn" for n in range(4)]}, (TensorKind.ATTENTION,)),
    ],
)
def test_modules_that_a_checkpoint_leaves_in_16_bits_are_known(
    exclusions: dict[str, Any], kinds: tuple[TensorKind, ...]
):
    config = MIXTRAL | {"quantization_config": {"quant_method": "fp8", **exclusions}}

    model = architecture_from_config(config, "m")

    assert model.unquantised == kinds
    assert model.unverified == ()


def test_exclusions_in_some_layers_only_are_counted_layer_by_layer():
    exclusions = {"modules_to_not_convert": ["model.layers.0.self_attn"]}

    model = architecture_from_config(
        LLAMA | {"quantization_config": {"quant_method": "fp8", **exclusions}}, "m"
    )

    forms = {(each.name, each.precision): each.count for each in model.module_formats}
    assert model.unquantised == ()
    assert forms["model.layers.*.self_attn.q_proj.weight", "bf16"] == 1
    assert forms["model.layers.*.self_attn.q_proj.weight", "fp8"] == 3
    assert forms["model.layers.*.mlp.up_proj.weight", "fp8"] == 4


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(1, 4096)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["bfloat16", "sliding_attention", "full_attention", "fp8", "awq", "re:("]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from(
    sorted(
        {
            *LLAMA,
            *MIXTRAL,
            *("head_dim", "tie_word_embeddings", "attention_bias", "sliding_window", "layer_types"),
            *("kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"),
            *("n_routed_experts", "n_shared_experts", "first_k_dense_replace", "moe_intermediate_size"),
            *("num_experts", "mlp_only_layers", "decoder_sparse_step", "sliding_window_pattern"),
            *("quantization_config", "text_config", "dtype", "use_sliding_window", "max_window_layers"),
        }
    )
)


@settings(max_examples=400, deadline=None)
@given(family=st.sampled_from(sorted(FAMILIES)), changes=st.dictionaries(KEYS, JSON, max_size=4))
def test_whatever_the_config_there_is_an_architecture_or_an_input_error(family: str, changes: dict[str, Any]):
    config = MIXTRAL | {
        "architectures": [family],
        "num_experts": 4,
        "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 64,
        "n_routed_experts": 4,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 16,
        "v_head_dim": 16,
    }
    if FAMILIES[family].under:
        config = {"architectures": [family], "text_config": config | changes}
    else:
        config = config | changes
    try:
        found = architecture_from_config(config, "m")
    except InputError as error:
        assert error.field.startswith("config.json")  # noqa: PT017 - either outcome is right
        return
    assert isinstance(found, Architecture)
    assert found.parameters >= active_parameters(found) > 0
    assert sum(group.count for group in found.groups) == found.layers
    assert precision(found.precision)


@settings(max_examples=200, deadline=None)
@given(
    config=JSON.flatmap(
        lambda value: st.fixed_dictionaries({"quant_method": st.just("x"), "v": st.just(value)})
    )
)
def test_a_config_of_nothing_but_noise_is_refused(config: dict[str, Any]):
    with pytest.raises(InputError):
        architecture_from_config(config, "m")


QUANTISATION = st.dictionaries(
    st.sampled_from(
        [
            "bits",
            "group_size",
            "weight_block_size",
            "ignore",
            "config_groups",
            "quant_algo",
            "exclude_modules",
        ]
    ),
    JSON | st.dictionaries(st.text(max_size=3), st.fixed_dictionaries({"weights": JSON}), max_size=2),
    max_size=4,
)


@settings(max_examples=300, deadline=None)
@given(
    method=st.sampled_from(["awq", "gptq", "fp8", "compressed-tensors", "modelopt", "mxfp4"]),
    config=QUANTISATION,
)
def test_whatever_the_quantisation_there_is_a_format_or_an_input_error(method: str, config: dict[str, Any]):
    try:
        found = architecture_from_config(
            LLAMA | {"quantization_config": {**config, "quant_method": method}}, "m"
        )
    except InputError as error:
        assert error.field.startswith("config.json: quantization_config")  # noqa: PT017 - either is right
        return
    assert precision(found.precision).quantised
