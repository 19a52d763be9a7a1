"""Random checkpoints small enough for a test, as `transformers` writes them."""

import json
from pathlib import Path
from typing import Any

SHAPE: dict[str, Any] = {
    "vocab_size": 199,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "eos_token_id": 2,
    "bos_token_id": 1,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
MULTIPLIERS = {
    "embedding_multiplier": 12.0,
    "residual_multiplier": 0.22,
    "attention_multiplier": 0.4,
    "logits_scaling": 0.5,
}
DYNAMIC_ROPE = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 6.0}
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}

# name -> (family, what differs from SHAPE). Every branch of the decoder is in at least one.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"tie_word_embeddings": False}),
    "llama-tied-llama3-rope": ("Llama", {"tie_word_embeddings": True, "rope_parameters": LLAMA3_ROPE}),
    "llama-linear-rope-mha": ("Llama", {"num_key_value_heads": 4, "rope_parameters": LINEAR_ROPE}),
    "qwen2-tied": ("Qwen2", {"tie_word_embeddings": True, "num_key_value_heads": 1}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": False, "num_hidden_layers": 3}),
    "mistral": ("Mistral", {"sliding_window": None, "head_dim": 32}),
    "seed-oss": ("SeedOss", {"head_dim": 32, "tie_word_embeddings": False}),
    "smollm3": ("SmolLM3", {"num_hidden_layers": 5, "pad_token_id": 0, "rope_parameters": YARN_ROPE}),
    "granite-tied": ("Granite", MULTIPLIERS | {"tie_word_embeddings": True}),
    "phi3": ("Phi3", {"num_key_value_heads": 1, "pad_token_id": 0}),
    "ernie4.5": ("Ernie4_5", {"head_dim": 32}),
    "internlm3": ("InternLM3", {"head_dim": 32, "rope_parameters": DYNAMIC_ROPE}),
    "iquestcoder": ("IQuestCoder", {"head_dim": 32}),
    "qwen3": ("Qwen3", {"tie_word_embeddings": False, "head_dim": 32}),
    "qwen3-tied": ("Qwen3", {"tie_word_embeddings": True, "head_dim": 16}),
}


def write_tiny_checkpoint(directory: Path, variant: str, *, seed: int = 0, **changes: Any) -> Any:
    """Write a random checkpoint of that variant and return the model of `transformers` that it came from.

    Weights are larger than at a real initialisation: biases and norms are not at their neutral values,
    so that forgetting one would show.
    """
    import torch
    import transformers

    family, differences = VARIANTS[variant]
    config = getattr(transformers, f"{family}Config")(**(SHAPE | differences | changes))
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("norm.weight", "bias")):
                parameter.add_(torch.randn_like(parameter) * 0.3)
            else:
                parameter.normal_(std=0.08)
    model.save_pretrained(directory)
    name_architecture(directory / "config.json", f"{family}ForCausalLM")
    return model


def name_architecture(path: Path, name: str) -> None:
    """Name the class that publishers name: transformers computes some families with another one's."""
    path.write_text(json.dumps(json.loads(path.read_text()) | {"architectures": [name]}))
