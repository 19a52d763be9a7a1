"""Good checkpoints are understood, in the spelling of either major version of transformers."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import transformers
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from tangram_engine.checkpoint import RopeScaling, expected_shapes, read_checkpoint
from tests.support.served_model import write_model

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 128,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model")


def change(directory: Path, drop: tuple[str, ...] = (), **changes: Any) -> None:
    path = directory / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in config.items() if key not in drop}))


@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Qwen3"])
def test_what_transformers_saves_is_read_in_full(family: str, tmp_path: Path) -> None:
    extra = {"head_dim": 16} if family == "Qwen3" else {}
    config = getattr(transformers, f"{family}Config")(**SIZES, **extra)
    reference = getattr(transformers, f"{family}ForCausalLM")(config)
    reference.save_pretrained(tmp_path, max_shard_size="20KB")
    checkpoint = read_checkpoint(tmp_path)
    assert len(checkpoint.files) > 1
    state = {name: tuple(tensor.shape) for name, tensor in reference.state_dict().items()}
    assert {name: entry.shape for name, entry in checkpoint.tensors.items()} == state
    assert checkpoint.spec.architecture == f"{family}ForCausalLM"
    assert checkpoint.spec.head_dim == (16 if family == "Qwen3" else 8)


def test_offsets_point_at_the_bytes_that_safetensors_reads(model: Path) -> None:
    checkpoint = read_checkpoint(model)
    with safe_open(model / "model.safetensors", framework="numpy") as file:
        for name, entry in checkpoint.tensors.items():
            raw = entry.file.read_bytes()[entry.offset : entry.offset + entry.nbytes]
            assert raw == file.get_tensor(name).tobytes()


@pytest.mark.parametrize(
    ("changes", "theta", "scaling"),
    [
        ({"rope_theta": 5e5}, 5e5, None),
        ({"rope_theta": 5e5, "rope_scaling": None}, 5e5, None),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, 1e6, None),
        ({}, 1e4, None),
        (
            {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2}},
            5e5,
            RopeScaling("linear", 2.0),
        ),
        (
            {"rope_theta": 5e5, "rope_scaling": LLAMA3},
            5e5,
            RopeScaling("llama3", 8.0, 1.0, 4.0, 8192),
        ),
        ({"rope_parameters": {**LLAMA3, "rope_theta": 5e5}}, 5e5, RopeScaling("llama3", 8.0, 1.0, 4.0, 8192)),
    ],
)
def test_rotary_settings_are_found_where_either_version_writes_them(
    changes: dict[str, Any], theta: float, scaling: RopeScaling | None, model: Path
) -> None:
    path = model / "config.json"
    config = json.loads(path.read_text())
    del config["rope_parameters"]
    path.write_text(json.dumps(config | changes))
    spec = read_checkpoint(model).spec
    assert (spec.rope_theta, spec.rope_scaling) == (theta, scaling)


def test_end_tokens_of_both_configs_count(model: Path) -> None:
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 1]}))
    assert read_checkpoint(model).spec.eos_token_ids == (1, 7)


@pytest.mark.parametrize("spelling", ["dtype", "torch_dtype"])
def test_the_stored_dtype_wins_over_the_claimed_one(spelling: str, model: Path) -> None:
    change(model, drop=("dtype",), **{spelling: "bfloat16"})
    assert read_checkpoint(model).spec.dtype == "fp32"


def test_a_stored_head_of_a_tied_model_is_not_loaded(model: Path) -> None:
    tensors = load_file(model / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
    save_file(tensors, model / "model.safetensors")
    checkpoint = read_checkpoint(model)
    assert list(checkpoint.tensors) == [name for name, _ in expected_shapes(checkpoint.spec)]


def test_the_digest_changes_with_config_and_headers_and_with_nothing_else(
    model: Path, tmp_path: Path
) -> None:
    before = read_checkpoint(model).digest
    copy = Path(shutil.copytree(model, tmp_path / "copy"))
    assert read_checkpoint(copy).digest == before
    change(copy, rms_norm_eps=1e-5)
    assert read_checkpoint(copy).digest != before


def test_a_link_inside_the_directory_is_followed(model: Path) -> None:
    (model / "model.safetensors").rename(model / "blob")
    (model / "model.safetensors").symlink_to("blob")
    assert read_checkpoint(model).weight_bytes > 0
