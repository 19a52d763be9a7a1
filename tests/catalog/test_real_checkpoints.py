"""Checkpoints as publishers configured them: bytes of the files, bytes of a token in the cache."""

from pathlib import Path

import pytest
import yaml

from tangram.capacity.memory.footprint import footprint
from tangram.capacity.memory.weights import stored_bytes
from tangram.catalog.configs.model_config import architecture_from_config
from tangram.catalog.models.architecture import Architecture
from tests.catalog.real_checkpoints import real_checkpoints

MODELS = yaml.safe_load(
    (Path(__file__).parents[2] / "operator" / "tangram" / "catalog" / "models.yaml").read_text("utf-8")
)["models"]
# The publisher counts the parameters of these: the hub's metadata, two bytes each.
COUNTED = {
    name: 2 * entry["parameters"]
    for name, entry in MODELS.items()
    if entry["check"] == "stored" and "quantization_config" not in entry["config"]
}


def checkpoint(repo: str) -> Architecture:
    return architecture_from_config(real_checkpoints()[repo].config, repo)


@pytest.mark.parametrize("repo", real_checkpoints())
def test_parameters_are_those_of_the_class_in_transformers(repo: str):
    assert checkpoint(repo).parameters == real_checkpoints()[repo].parameters


def test_files_of_sixty_checkpoints_have_the_published_bytes_within_one_permille():
    errors = {
        repo: stored_bytes(checkpoint(repo)) / real.stored_bytes - 1
        for repo, real in real_checkpoints().items()
        if real.stored_bytes is not None
    }
    errors |= {
        name: stored_bytes(architecture_from_config(MODELS[name]["config"], name)) / total - 1
        # A tower is in the sum of the well-known models, not in the config that the catalog keeps of them.
        for name, total in COUNTED.items()
        if not MODELS[name].get("other_parameters")
    }

    assert len(errors) >= 60
    assert {name: error for name, error in errors.items() if abs(error) > 0.001} == {}


# Bytes of one token in a bf16 cache by window, then bytes of the state of one request. Layers x elements x 2
# bytes, counted by hand from the cache classes of vLLM:
# - FullAttentionSpec, SlidingWindowSpec: keys and values of each KV head
# - MLAAttentionSpec: latent and rotary key
# - DeepseekV32IndexerCache: 128 + 4 bytes
# - MambaSpec: inputs of the convolution in the model's type, the state in the type that the config names
CACHES = {
    "meta-llama/Meta-Llama-3.1-8B": ({None: 32 * 2 * 8 * 128 * 2}, 0),
    "Qwen/Qwen3-235B-A22B": ({None: 94 * 2 * 4 * 128 * 2}, 0),
    "Qwen/Qwen2.5-VL-7B-Instruct": ({None: 28 * 2 * 4 * 128 * 2}, 0),
    "zai-org/GLM-4.5": ({None: 92 * 2 * 8 * 128 * 2}, 0),
    "MiniMaxAI/MiniMax-M2.5": ({None: 62 * 2 * 8 * 128 * 2}, 0),
    "mistralai/Mistral-Small-3.1-24B-Instruct-2503": ({None: 40 * 2 * 8 * 128 * 2}, 0),
    "CohereLabs/c4ai-command-r-plus": ({None: 64 * 2 * 8 * 128 * 2}, 0),
    # 49 of 80 layers attend.
    "nvidia/Llama-3_3-Nemotron-Super-49B-v1": ({None: 49 * 2 * 8 * 128 * 2}, 0),
    "deepseek-ai/DeepSeek-V3": ({None: 61 * (512 + 64) * 2}, 0),
    "moonshotai/Kimi-K2.5": ({None: 61 * (512 + 64) * 2}, 0),
    "deepseek-ai/DeepSeek-V3.2": ({None: 61 * ((512 + 64) * 2 + 132)}, 0),
    "zai-org/GLM-5": ({None: 78 * ((512 + 64) * 2 + 132)}, 0),
    # indexer_types: 21 layers select keys, the others use their selection
    "zai-org/GLM-5.2": ({None: 78 * (512 + 64) * 2 + 21 * 132}, 0),
    "openai/gpt-oss-120b": ({128: 18 * 2 * 8 * 64 * 2, None: 18 * 2 * 8 * 64 * 2}, 0),
    "google/gemma-3-27b-it": ({1024: 52 * 2 * 16 * 128 * 2, None: 10 * 2 * 16 * 128 * 2}, 0),
    # Layers without a window: 2 and 4 KV heads of 512; keys serve as values, and both are cached.
    "google/gemma-4-26B-A4B": ({1024: 25 * 2 * 8 * 256 * 2, None: 5 * 2 * 2 * 512 * 2}, 0),
    "nvidia/Gemma-4-31B-IT-NVFP4": ({1024: 50 * 2 * 16 * 256 * 2, None: 10 * 2 * 4 * 512 * 2}, 0),
    # iRoPE: three of four layers attend to chunks of 8,192 tokens.
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": (
        {8192: 36 * 2 * 8 * 128 * 2, None: 12 * 2 * 8 * 128 * 2},
        0,
    ),
    "CohereLabs/c4ai-command-a-03-2025": ({4096: 48 * 2 * 8 * 128 * 2, None: 16 * 2 * 8 * 128 * 2}, 0),
    # Keys of 192, values of 128; windowed layers have 8 KV heads, the others 4.
    "XiaomiMiMo/MiMo-V2-Flash": ({128: 39 * 8 * (192 + 128) * 2, None: 9 * 4 * (192 + 128) * 2}, 0),
    # 36 of 48 layers: three inputs of 8,192 channels, 32 heads with a state of 128 x 128 in the model's type.
    "Qwen/Qwen3-Next-80B-A3B-Instruct": (
        {None: 12 * 2 * 2 * 256 * 2},
        36 * (3 * 8192 * 2 + 32 * 128 * 128 * 2),
    ),
    # mamba_ssm_dtype: float32
    "Qwen/Qwen3.5-35B-A3B": ({None: 10 * 2 * 2 * 256 * 2}, 30 * (3 * 8192 * 2 + 32 * 128 * 128 * 4)),
    "Qwen/Qwen3.5-27B": ({None: 16 * 2 * 4 * 256 * 2}, 48 * (3 * 10_240 * 2 + 48 * 128 * 128 * 4)),
    # 6 of 52 layers attend, 23 keep 64 heads of 64 x 128 in float32; mamba_ssm_cache_dtype: float32
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": (
        {None: 6 * 2 * 2 * 128 * 2},
        23 * (3 * (4096 + 2 * 8 * 128) * 2 + 64 * 64 * 128 * 4),
    ),
    "ibm-granite/granite-4.0-h-small": (
        {None: 4 * 2 * 8 * 128 * 2},
        36 * (3 * (8192 + 2 * 128) * 2 + 128 * 64 * 128 * 2),
    ),
    # Every layer has both branches.
    "tiiuae/Falcon-H1-34B-Instruct": (
        {None: 72 * 2 * 4 * 128 * 2},
        72 * (3 * (4096 + 2 * 2 * 256) * 2 + 32 * 128 * 256 * 2),
    ),
}


@pytest.mark.parametrize("repo", CACHES)
def test_a_token_takes_the_bytes_of_the_cache_of_vllm(repo: str):
    by_window, state = CACHES[repo]
    found = checkpoint(repo)

    held = footprint(found, found.served_precision)

    assert {window: per_token for per_token, window in held.kv} == by_window
    assert held.state_bytes == state
    assert held.kv_bytes(100) == state + 100 * sum(by_window.values())


def test_ranks_share_states_and_repeat_indexed_latents():
    hybrid, indexed = checkpoint("Qwen/Qwen3.5-35B-A3B"), checkpoint("zai-org/GLM-5")

    one, two = (footprint(hybrid, "bf16", tensor_parallel=tp) for tp in (1, 2))

    assert two.state_bytes * 2 == one.state_bytes
    assert footprint(indexed, "fp8_block", tensor_parallel=8).kv == footprint(indexed, "fp8_block").kv


def test_drafts_are_stored_and_not_loaded():
    found = checkpoint("Qwen/Qwen3.5-35B-A3B")

    held = footprint(found, "bf16").weight_bytes

    assert held == 2 * found.parameters
    assert stored_bytes(found) == held + 2 * sum(tensor.elements for tensor in found.draft_tensors)
