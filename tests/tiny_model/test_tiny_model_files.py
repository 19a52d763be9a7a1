"""What lies in models/tangram-tiny is complete, small and what it says it is."""

import json
import math

import pytest
from safetensors import safe_open

FILES = (
    "README.md",
    "NOTICE",
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
)


def tensors(folder) -> dict[str, tuple[str, tuple[int, ...]]]:
    with safe_open(folder / "model.safetensors", "np") as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
        return {name: (part.get_dtype(), tuple(part.get_shape())) for name, part in slices.items()}


def test_the_folder_holds_these_files_and_no_others(folder):
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)


def test_the_weights_stay_below_twelve_megabytes(folder):
    assert (folder / "model.safetensors").stat().st_size <= 12_000_000


def test_all_weights_are_bfloat16_under_llama_names_with_a_tied_embedding(folder):
    config = json.loads((folder / "config.json").read_text())
    hidden, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    expected = {"model.embed_tokens.weight": (config["vocab_size"], hidden), "model.norm.weight": (hidden,)}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        expected |= {
            f"{prefix}.input_layernorm.weight": (hidden,),
            f"{prefix}.post_attention_layernorm.weight": (hidden,),
            f"{prefix}.self_attn.q_proj.weight": (queries, hidden),
            f"{prefix}.self_attn.k_proj.weight": (keys, hidden),
            f"{prefix}.self_attn.v_proj.weight": (keys, hidden),
            f"{prefix}.self_attn.o_proj.weight": (hidden, queries),
            f"{prefix}.mlp.gate_proj.weight": (inner, hidden),
            f"{prefix}.mlp.up_proj.weight": (inner, hidden),
            f"{prefix}.mlp.down_proj.weight": (hidden, inner),
        }

    assert config["tie_word_embeddings"] is True
    assert tensors(folder) == {name: ("BF16", shape) for name, shape in expected.items()}


def test_the_model_shares_keys_among_heads_as_the_large_ones_do(folder):
    config = json.loads((folder / "config.json").read_text())

    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["num_attention_heads"] == 2 * config["num_key_value_heads"]


def test_the_model_card_states_the_parameters_that_the_file_holds(folder):
    parameters = sum(math.prod(shape) for _, shape in tensors(folder).values())

    assert f"{parameters:,} parameters" in (folder / "README.md").read_text()


def test_the_notice_carries_the_licence_of_the_text(folder):
    assert "PYTHON SOFTWARE FOUNDATION LICENSE VERSION 2" in (folder / "NOTICE").read_text()


@pytest.mark.parametrize("key", ["bos_token_id", "eos_token_id", "pad_token_id"])
def test_config_generation_and_tokenizer_agree_on_the_special_ids(folder, tokenizer, key):
    config, generation = (
        json.loads((folder / name).read_text())[key] for name in ("config.json", "generation_config.json")
    )

    assert config == generation == getattr(tokenizer, key)
