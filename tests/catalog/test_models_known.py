"""Well-known models: counted to the last parameter, and tensor by tensor against transformers."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml

from tangram.catalog import InputError, known_model, known_models
from tangram.catalog.configs.families import FAMILIES
from tangram.catalog.configs.known_models import NAMED_FORMAT
from tangram.catalog.configs.model_config import architecture_from_config
from tangram.catalog.models.architecture import Architecture
from tests.catalog.real_checkpoints import real_checkpoints
from tests.support.model_figures import active_parameters

MODELS = yaml.safe_load(
    (Path(__file__).parents[2] / "operator" / "tangram" / "catalog" / "models.yaml").read_text("utf-8")
)


@pytest.mark.parametrize("name", known_models())
def test_the_tensors_add_up_to_the_published_number_of_parameters(name: str):
    model = known_model(name)

    assert model is not None
    assert model.parameters == MODELS["models"][name]["parameters"]


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("gpt-oss-120b", 5.13),  # model card
        ("gpt-oss-20b", 3.61),  # model card
        ("Mixtral-8x7B", 12.9),  # Mistral AI, with the input embedding
        ("DeepSeek-V3", 37),
        ("Qwen3-30B-A3B", 3.3),  # with the input embedding
        ("Qwen3-235B-A22B", 22),
    ],
)
def test_active_parameters_are_those_of_the_model_card(name: str, billions: float):
    model = known_model(name)

    assert model is not None
    assert active_parameters(model) / 1e9 == pytest.approx(billions, rel=0.1)


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("Llama-3.1-8B", "Llama-3.1-8B"),  # the names in the shared measurements
        ("Llama-3.1-70B", "Llama-3.1-70B"),
        ("Qwen3-32B", "Qwen3-32B"),
        ("gpt-oss-120b", "gpt-oss-120b"),
        ("llama2-70b", "Llama-2-70B"),
        ("meta-llama/Llama-3.1-8B-Instruct", "Llama-3.1-8B"),
        ("  QWEN/qwen2.5-72b-instruct ", "Qwen2.5-72B"),
        ("llama3_70b", "Llama-3-70B"),
        ("QWEN3_32B", "Qwen3-32B"),
        ("Mixtral8x7B", "Mixtral-8x7B"),
        ("openai/gpt-oss-20b", "gpt-oss-20b"),
    ],
)
def test_a_model_is_found_by_name_hub_id_or_alias_in_any_case(written: str, name: str):
    found = known_model(written)

    assert found is not None
    assert found.name == name


@pytest.mark.parametrize(
    ("written", "name", "precision"),
    [
        ("Qwen3-32B-FP8", "Qwen3-32B", "fp8"),
        ("Qwen/Qwen3-32B-AWQ", "Qwen3-32B", "int4"),
        ("Qwen3-32B-GPTQ-Int4", "Qwen3-32B", "int4_gptq"),
        ("Qwen/Qwen2.5-72B-Instruct-GPTQ-Int8", "Qwen2.5-72B", "int8_gptq"),
        ("neuralmagic/Meta-Llama-3.1-70B-Instruct-FP8-dynamic", "Llama-3.1-70B", "fp8"),
        ("nvidia/Llama-3.3-70B-Instruct-NVFP4", "Llama-3.3-70B", "nvfp4"),
        ("RedHatAI/Llama-3.3-70B-Instruct-quantized.w4a16", "Llama-3.3-70B", "int4"),
        ("TheBloke/Mistral-7B-Instruct-v0.2-GPTQ", "Mistral-7B-v0.2", "int4_gptq"),
        ("unsloth/gpt-oss-20b-BF16", "gpt-oss-20b", "bf16"),
        ("unsloth/Llama-3.1-8B-Instruct", "Llama-3.1-8B", "bf16"),
        ("Llama-2-7b-chat-hf", "Llama-2-7B", "fp16"),
        ("deepseek-ai/DeepSeek-V3.1", "DeepSeek-V3", "fp8_block"),
    ],
)
def test_who_uploaded_it_and_how_it_was_quantised_may_be_part_of_a_name(
    written: str, name: str, precision: str
):
    found, base = known_model(written), known_model(name)

    assert found is not None
    assert base is not None
    assert (found.name, found.precision) == (name, precision)
    assert found.groups == base.groups
    told = precision not in (base.precision, "bf16")
    assert (NAMED_FORMAT in found.unverified) is told


@pytest.mark.parametrize(
    "name", ["checkpoints/Qwen3-32B", "Qwen2.5-Math-7B-Instruct", "-FP8", "unsloth/", "a/unsloth/Qwen3-32B"]
)
def test_other_names_are_not_cut_until_they_fit(name: str):
    assert known_model(name) is None


def test_nobody_elses_name_is_found():
    assert known_model("") is None
    assert known_model("llama") is None


def test_no_alias_means_two_models():
    meanings: dict[str, set[str]] = {}
    for name, entry in MODELS["models"].items():
        for alias in (name, entry["repo"], entry["repo"].split("/")[-1], *entry.get("aliases", ())):
            meanings.setdefault(re.sub(r"[^a-z0-9.]", "", alias.lower()), set()).add(name)

    assert {alias: names for alias, names in meanings.items() if len(names) > 1} == {}


def test_every_entry_cites_a_source_that_is_there_or_is_marked_as_unverified():
    for name, entry in MODELS["models"].items():
        model = known_model(name)
        assert model is not None
        assert model.source.startswith(entry["repo"])
        if entry["check"] == "stored":
            assert entry["source"]
            assert set(entry["source"]) <= set(MODELS["meta"]["sources"])
            assert not model.unverified
        else:
            assert entry["check"] == "recalled"
            assert model.unverified


def test_the_shared_calibration_models_are_verified():
    for name in ("Llama-3.1-8B", "Llama-3.1-70B", "Qwen3-32B", "gpt-oss-120b", "Llama-2-70B"):
        model = known_model(name)
        assert model is not None
        assert not model.unverified


# transformers as the oracle: its classes, built on the meta device, know every tensor of every family.

FUSED = {
    "self_attn.qkv_proj.weight": [f"self_attn.{part}_proj.weight" for part in "qkv"],
    "mlp.gate_up_proj.weight": ["mlp.gate_proj.weight", "mlp.up_proj.weight"],
    "mlp.experts.gate_up_proj": ["mlp.experts.*.gate_proj.weight", "mlp.experts.*.up_proj.weight"],
    "mlp.experts.gate_up_proj_bias": ["mlp.experts.*.gate_proj.bias", "mlp.experts.*.up_proj.bias"],
    "mlp.experts.down_proj": ["mlp.experts.*.down_proj.weight"],
    "mlp.experts.down_proj_bias": ["mlp.experts.*.down_proj.bias"],
}
# What we call by one name in every family.
RENAMED = {
    "mlp.router.": "mlp.gate.",
    "mlp.gate.e_score_correction_bias": "mlp.gate.bias",
    "mlp.shared_expert.": "mlp.shared_experts.",
}


def in_transformers(config: dict[str, Any]) -> tuple[dict[str, Counter[tuple[int, ...]]], int]:
    """Shapes by name pattern, and all parameters, of the class that the config names."""
    import torch
    import transformers

    no_tensors = {"architectures", "quantization_config", "rope_scaling", "partial_rotary_factor"}
    given = {key: value for key, value in config.items() if key not in no_tensors}
    architecture = config["architectures"][0]
    # Only shapes are compared: no layer draws weights, for which the meta device has no memory.
    with torch.device("meta"), mock.patch.object(torch.nn.Linear, "reset_parameters"):
        if hasattr(transformers, architecture):
            model_class = getattr(transformers, architecture)
            model = model_class(model_class.config_class(**given))
        else:  # the class of another family
            named = getattr(transformers, architecture.replace("ForCausalLM", "Config"))
            model = transformers.AutoModelForCausalLM.from_config(named(**given))
    tensors = dict(model.named_parameters())
    tensors |= {name: each for name, each in model.named_buffers() if "e_score_correction_bias" in name}
    found: dict[str, Counter[tuple[int, ...]]] = {}
    for name, tensor in tensors.items():
        if "vision" in name or "projector" in name:
            continue
        pattern = re.sub(r"layers\.\d+\.", "layers.*.", name).replace("model.language_model.", "model.")
        for theirs, ours in RENAMED.items():
            pattern = pattern.replace(theirs, ours)
        found.setdefault(pattern, Counter())[tuple(tensor.shape)] += 1
    return found, sum(each.numel() for each in tensors.values())


def assert_same_tensors(model: Architecture, config: dict[str, Any]) -> None:
    """Every tensor of transformers is one of ours, of that shape and number; and the other way round."""
    theirs, parameters = in_transformers(config)
    ours: dict[str, Counter[tuple[int, ...]]] = {}
    for tensor in model.tensors:
        ours.setdefault(tensor.name, Counter())[tensor.shape] += tensor.count
    for pattern, shapes in theirs.items():
        prefix, _, tail = pattern.partition("layers.*.")
        if tail in FUSED:
            parts = [ours.pop(f"{prefix}layers.*.{part}") for part in FUSED[tail]]
            assert elements(shapes) == sum(elements(part) for part in parts), pattern
        else:
            assert ours.pop(pattern) == shapes, pattern
    assert not ours
    assert model.parameters - model.other_parameters == parameters or "vision_config" in config


def elements(shapes: Counter[tuple[int, ...]]) -> int:
    total = 0
    for shape, times in shapes.items():
        size = times
        for each in shape:
            size *= each
        total += size
    return total


@pytest.mark.parametrize("name", known_models())
def test_a_known_model_has_the_tensors_of_the_class_in_transformers(name: str):
    model = known_model(name)
    assert model is not None

    assert_same_tensors(model, MODELS["models"][name]["config"])


_MULTIMODAL = "ForConditionalGeneration"
SMALL: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 96,
    "intermediate_size": 200,
    "num_hidden_layers": 5,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": None,
    "eos_token_id": 1,
}
MLA = {"kv_lora_rank": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 20}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
VARIANTS = {
    "llama with biases": ("LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True}),
    "llama tied, head_dim of its own": ("LlamaForCausalLM", {"tie_word_embeddings": True, "head_dim": 48}),
    "qwen2 with late windows": (
        "Qwen2ForCausalLM",
        {"use_sliding_window": True, "sliding_window": 32, "max_window_layers": 2},
    ),
    "qwen2-moe": (
        "Qwen2MoeForCausalLM",
        {**EXPERTS, "shared_expert_intermediate_size": 72, "decoder_sparse_step": 2},
    ),
    "seed-oss": ("SeedOssForCausalLM", {}),
    "seed-oss without biases": ("SeedOssForCausalLM", {"attention_bias": False}),
    "seed-oss with all biases": (
        "SeedOssForCausalLM",
        {"attention_out_bias": True, "mlp_bias": True, "head_dim": 24},
    ),
    "qwen3 with biases": ("Qwen3ForCausalLM", {"attention_bias": True}),
    "qwen3-moe with dense layers": (
        "Qwen3MoeForCausalLM",
        {**EXPERTS, "mlp_only_layers": [0, 3], "head_dim": 24},
    ),
    "olmo3": ("Olmo3ForCausalLM", {"sliding_window": 32}),
    "ministral3": ("Ministral3ForCausalLM", {"head_dim": 16}),
    "exaone4": ("Exaone4ForCausalLM", {"head_dim": 16, "sliding_window": 32, "sliding_window_pattern": 4}),
    "dots1": (
        "Dots1ForCausalLM",
        {
            "head_dim": 16,
            "n_routed_experts": 8,
            "n_shared_experts": 1,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 40,
            "first_k_dense_replace": 1,
        },
    ),
    "ernie 4.5": ("Ernie4_5ForCausalLM", {"head_dim": 16}),
    "ernie 4.5 with biases": ("Ernie4_5ForCausalLM", {"head_dim": 16, "use_bias": True}),
    "internlm3": ("InternLM3ForCausalLM", {"head_dim": 16, "qkv_bias": True, "bias": True}),
    "iquestcoder": ("IQuestCoderForCausalLM", {"head_dim": 16}),
    "smollm3": ("SmolLM3ForCausalLM", {"pad_token_id": 0}),
    "glm4-moe-lite": (
        "Glm4MoeLiteForCausalLM",
        {
            **MLA,
            "q_lora_rank": 32,
            "n_routed_experts": 8,
            "n_shared_experts": 1,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 40,
            "first_k_dense_replace": 1,
        },
    ),
    "glm": ("GlmForCausalLM", {"attention_bias": True, "head_dim": 16}),
    "mixtral": ("MixtralForCausalLM", {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16}),
    "gpt-oss": ("GptOssForCausalLM", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "gemma": ("GemmaForCausalLM", {}),
    "gemma2": ("Gemma2ForCausalLM", {}),
    "gemma3": ("Gemma3ForCausalLM", {"sliding_window": 32}),
    "gemma3 with a vision tower": (
        "Gemma3ForConditionalGeneration",
        {
            "text_config": {"hidden_size": 96, "intermediate_size": 200, "num_hidden_layers": 7},
            "vision_config": {"hidden_size": 48, "num_hidden_layers": 1, "intermediate_size": 64},
        },
    ),
    "mistral3": (
        "Mistral3ForConditionalGeneration",
        {
            "text_config": {**SMALL, "model_type": "mistral", "head_dim": 16},
            "vision_config": {"model_type": "pixtral", "hidden_size": 64, "num_hidden_layers": 1},
            "tie_word_embeddings": False,
        },
    ),
    "phi3": ("Phi3ForCausalLM", {}),
    "deepseek-v2 without q_lora": (
        "DeepseekV2ForCausalLM",
        {
            **MLA,
            "q_lora_rank": None,
            "n_routed_experts": 6,
            "n_shared_experts": 2,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 40,
            "first_k_dense_replace": 2,
        },
    ),
    "deepseek-v3 with biases": (
        "DeepseekV3ForCausalLM",
        {
            **MLA,
            "q_lora_rank": 32,
            "n_routed_experts": 8,
            "n_shared_experts": 1,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 40,
            "n_group": 2,
            "topk_group": 1,
            "attention_bias": True,
        },
    ),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_branch_of_a_family_has_the_tensors_of_transformers(variant: str):
    family, changes = VARIANTS[variant]
    base = {} if "text_config" in changes else SMALL
    config = {"architectures": [family], **base, **changes}
    if family.startswith("Deepseek"):
        config["num_key_value_heads"] = config["num_attention_heads"]
    if family == "DeepseekV3ForCausalLM":
        config["first_k_dense_replace"] = 1

    assert_same_tensors(architecture_from_config(config, variant), config)


def test_every_family_is_held_against_transformers():
    covered = {family for family, _ in VARIANTS.values()}
    covered |= {entry["config"]["architectures"][0] for entry in MODELS["models"].values()}
    covered |= {real.config["architectures"][0] for real in real_checkpoints().values()}
    # The decoders of multimodal classes that are covered, under their own name.
    covered |= {name for name in FAMILIES if name.replace("ForCausalLM", _MULTIMODAL) in covered}

    assert covered == set(FAMILIES)


@pytest.mark.parametrize(
    ("name", "windows"),
    [
        ("Llama-3.1-8B", {None: 32}),
        ("Mistral-7B-v0.1", {4096: 32}),
        ("Mistral-7B-v0.3", {None: 32}),
        ("Gemma-2-9B", {4096: 21, None: 21}),
        ("Gemma-3-27B", {1024: 52, None: 10}),
        ("gpt-oss-120b", {128: 18, None: 18}),
        ("Phi-3-mini-128k", {None: 32}),  # a window longer than the context is none
    ],
)
def test_layers_are_windowed_as_published(name: str, windows: dict[int | None, int]):
    model = known_model(name)
    assert model is not None
    found: Counter[int | None] = Counter()
    for group in model.groups:
        found[group.attention.window] += group.count

    assert found == windows


def test_layer_types_win_over_the_familys_pattern():
    config = {
        "architectures": ["Gemma3ForCausalLM"],
        **SMALL,
        "sliding_window": 64,
        "layer_types": ["full_attention"] * 4 + ["sliding_attention"],
    }

    model = architecture_from_config(config, "m")

    assert [(group.count, group.attention.window) for group in model.groups] == [(4, None), (1, 64)]


def test_the_config_text_of_the_catalog_is_itself_json():
    for entry in MODELS["models"].values():
        assert architecture_from_config(json.loads(json.dumps(entry["config"])), "m")


def test_an_unknown_architecture_is_refused_by_name():
    with pytest.raises(InputError, match=r"config.json: architectures: 'MambaForCausalLM' is not supported"):
        architecture_from_config({"architectures": ["MambaForCausalLM"]}, "m")
