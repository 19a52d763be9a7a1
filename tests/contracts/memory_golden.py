"""Makes `memory_golden.json`: what a model's tensors and KV cache take up, said by a third party.

The oracle is `transformers` on its meta device (shapes without data): every parameter of the real class, and
the cache that one forward pass leaves behind. Neither the engine's formula nor the operator's has a part in
it.

    TRITON_INTERPRET=1 python -m tests.contracts.memory_golden

Beside it stand GPU accounts (what is left for the cache), computed here from the rule in words: of the total,
the engine may use the stated part; less what is in use, less the peak of a step, less a margin of 256 MiB or
1 % of the total, whichever is more; in whole blocks. So are the steps and the buffers of a GPU, and what
weights take up that are quantised while they are read: fp8 has a byte a weight and a 4-byte scale for each
output; int4 half a byte, and for each output and each begun group of 128 inputs 2 bytes of scale and half a
byte of zero. Embedding, head, norms and biases stay.

What the engine keeps beside weights and pool on a GPU, and the peak of its largest steps, is measured: its
own code runs with shapes of real models, in two layers, on tensors without data (`tests.support.fake_gpu`).
"""

import json
import math
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("memory_golden.json")
MIB = 1 << 20

LLAMA: dict[str, Any] = {"architectures": ["LlamaForCausalLM"], "tie_word_embeddings": False}
QWEN2: dict[str, Any] = {"architectures": ["Qwen2ForCausalLM"], "tie_word_embeddings": False}
QWEN3: dict[str, Any] = {"architectures": ["Qwen3ForCausalLM"], "tie_word_embeddings": False, "head_dim": 128}
WIDE_HEADS, NARROW_HEADS = QWEN3 | {"head_dim": 80}, QWEN3 | {"head_dim": 8}
TIED = {"tie_word_embeddings": True}


def sizes(
    layers: int, hidden: int, inner: int, heads: int, kv: int, vocab: int, positions: int
) -> dict[str, int]:
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "vocab_size": vocab,
        "max_position_embeddings": positions,
    }


# name -> (config.json, dtype, block size): published models, then small odd ones.
MODELS: dict[str, tuple[dict[str, Any], str, int]] = {
    "Llama-2-7B": (LLAMA | sizes(32, 4096, 11008, 32, 32, 32000, 4096), "fp16", 16),
    "Llama-2-70B": (LLAMA | sizes(80, 8192, 28672, 64, 8, 32000, 4096), "bf16", 16),
    "Llama-3-8B": (LLAMA | sizes(32, 4096, 14336, 32, 8, 128256, 8192), "bf16", 16),
    "Llama-3-8B in fp16, blocks of 32": (LLAMA | sizes(32, 4096, 14336, 32, 8, 128256, 8192), "fp16", 32),
    "Llama-3-8B in fp32": (LLAMA | sizes(32, 4096, 14336, 32, 8, 128256, 8192), "fp32", 16),
    "Llama-3.1-70B": (LLAMA | sizes(80, 8192, 28672, 64, 8, 128256, 131072), "bf16", 16),
    "Llama-3.1-405B": (LLAMA | sizes(126, 16384, 53248, 128, 8, 128256, 131072), "bf16", 16),
    "Llama-3.2-1B": (LLAMA | TIED | sizes(16, 2048, 8192, 32, 8, 128256, 131072), "bf16", 16),
    "Llama-3.2-3B": (LLAMA | TIED | sizes(28, 3072, 8192, 24, 8, 128256, 131072), "bf16", 64),
    "Qwen2.5-0.5B": (QWEN2 | TIED | sizes(24, 896, 4864, 14, 2, 151936, 32768), "bf16", 16),
    "Qwen2.5-1.5B": (QWEN2 | TIED | sizes(28, 1536, 8960, 12, 2, 151936, 32768), "fp16", 16),
    "Qwen2.5-7B": (QWEN2 | sizes(28, 3584, 18944, 28, 4, 152064, 32768), "bf16", 16),
    "Qwen2.5-72B": (QWEN2 | sizes(80, 8192, 29568, 64, 8, 152064, 32768), "bf16", 128),
    "Qwen3-0.6B": (QWEN3 | TIED | sizes(28, 1024, 3072, 16, 8, 151936, 40960), "bf16", 16),
    "Qwen3-4B": (QWEN3 | TIED | sizes(36, 2560, 9728, 32, 8, 151936, 40960), "bf16", 1),
    "Qwen3-8B": (QWEN3 | sizes(36, 4096, 12288, 32, 8, 151936, 40960), "bf16", 16),
    "Qwen3-32B": (QWEN3 | sizes(64, 5120, 25600, 64, 8, 151936, 40960), "bf16", 16),
    "Qwen3-32B in fp32, blocks of 8": (QWEN3 | sizes(64, 5120, 25600, 64, 8, 151936, 40960), "fp32", 8),
    "tiny, tied, fp32": (LLAMA | TIED | sizes(2, 64, 112, 4, 2, 199, 256), "fp32", 4),
    "tiny, one KV head, bias": (QWEN2 | sizes(3, 64, 112, 4, 1, 199, 256), "fp32", 16),
    "tiny, all heads are KV heads": (LLAMA | sizes(1, 96, 100, 6, 6, 1001, 64), "fp16", 5),
    "tiny, wide heads, qk-norm": (WIDE_HEADS | sizes(2, 64, 112, 4, 2, 199, 256), "bf16", 16),
    "tiny, narrow heads, tied, qk-norm": (NARROW_HEADS | TIED | sizes(5, 128, 96, 8, 4, 333, 99), "fp32", 3),
    "tiny, narrow MLP, tied, bias": (QWEN2 | TIED | sizes(4, 256, 32, 8, 2, 640, 512), "bf16", 7),
}

# total, in use, peak of a step in MiB; part that may be used; bytes and tokens per block; longest request
ACCOUNTS = {
    "H100 80 GB, 8B": (81559, 16500, 700, 0.9, 16 * 131072, 16, 8192),
    "H200, 70B in fp8 bytes": (143771, 70500, 1300, 0.9, 16 * 327680, 16, 131072),
    "1g.10gb, 1B": (9984, 2900, 640, 0.9, 16 * 32768, 16, 4096),
    "1g.5gb, nothing is left": (4864, 4500, 100, 0.9, 16 * 32768, 16, 16),
    "one block short": (10000, 8000, 720, 0.9, 4 * MIB, 16, 97),
    "just enough": (10000, 8000, 720, 0.9, 4 * MIB, 16, 96),
    "all may be used": (40000, 15000, 0, 1.0, 3 * MIB + 1, 32, 32768),
    "a third may be used": (24564, 2000, 333, 0.33, 1234567, 16, 4096),
}  # fmt: skip


# model, format ("": as stored), dtype, SMs, sequences, longest request, block size
STARTS = {
    "Llama-3-8B on a whole H200": ("Llama-3-8B", "", "bf16", 132, 64, 8192, 16),
    "256 sequences": ("Llama-3-8B", "", "bf16", 132, 256, 8192, 16),
    "fp8": ("Llama-3-8B", "fp8", "bf16", 132, 64, 8192, 16),
    "int4": ("Llama-3-8B", "int4", "bf16", 132, 64, 8192, 16),
    "fp32": ("Llama-3-8B in fp32", "", "fp32", 132, 64, 8192, 16),
    "fp8 on 1g.10gb": ("Llama-3-8B", "fp8", "bf16", 16, 64, 4096, 16),
    "int4 on 1g.10gb, one sequence": ("Llama-3-8B", "int4", "bf16", 16, 1, 8192, 16),
    "3g.40gb, blocks of 64": ("Llama-3.2-3B", "", "bf16", 60, 64, 32768, 64),
    "a context of 131,072": ("Llama-3.1-70B", "int4", "bf16", 132, 8, 131072, 16),
    "requests shorter than a step": ("Llama-3-8B", "", "bf16", 132, 64, 1000, 16),
    "few short requests": ("Llama-3-8B", "", "bf16", 132, 4, 500, 16),
    "Qwen3-0.6B, whose attention is wider than its MLP": ("Qwen3-0.6B", "", "bf16", 132, 64, 8192, 16),
    "Qwen3-0.6B, whose sampling is larger than its layers": ("Qwen3-0.6B", "", "bf16", 14, 256, 4096, 16),
    "Qwen2.5-7B, with biases": ("Qwen2.5-7B", "fp8", "bf16", 98, 128, 16384, 16),
    "Qwen3-32B": ("Qwen3-32B", "", "bf16", 114, 64, 40960, 16),
}  # fmt: skip
MEASURED_AGAIN = ("fp8 on 1g.10gb", "few short requests")  # by the tests

# Requests that run at most, whose captured batch sizes both sides list.
CAPTURED = (1, 3, 8, 20, 64, 100, 256, 300, 512, 2000)

# SMs -> tokens of a step: the nearest of 512, 1024, ... 8192 on a scale of ratios, for 62 an SM
SMS = (
    1,
    8,
    9,
    11,
    12,
    14,
    16,
    18,
    23,
    24,
    26,
    32,
    46,
    47,
    56,
    58,
    60,
    64,
    72,
    92,
    94,
    98,
    108,
    114,
    132,
    148,
    188,
)

# sequences, longest request, block size, vocabulary, query heads, head size
BUFFERS = {
    "Llama-3-8B": (64, 8192, 16, 128256, 32, 128),
    "Llama-3-8B, many and long": (256, 131072, 16, 128256, 32, 128),
    "Qwen3-0.6B, short": (256, 250, 16, 151936, 16, 128),
    "Qwen2.5-0.5B, one": (1, 32768, 64, 151936, 14, 64),
    "one token more than a part": (8, 257, 1, 199, 4, 16),
}  # fmt: skip


def step(sms: int) -> int:
    """Follow the rule in words."""
    return min((512 << power for power in range(5)), key=lambda size: max(size / (62 * sms), 62 * sms / size))


def captured(most: int) -> list[int]:
    """Sizes 1, 2, 4, then in steps of 8 up to 64, of 16 up to 256, of 32 up to 512; the last is `most`."""
    found = {1, 2, 4, *range(8, 65, 8), *range(64, 257, 16), *range(256, 513, 32)}
    return sorted({size for size in found if size < most} | {min(most, 512)})


def buffers(
    sequences: int, longest: int, block_size: int, vocabulary: int, heads: int, head: int
) -> dict[str, int]:
    """Rows: for each request and one more its blocks, nine 4-byte numbers and an 8-byte seed, and a count
    for each entry of the vocabulary. Scratch: for each
    request, part of its context (of 256 tokens or more, at most 32) and query head, a vector and a sum.
    """
    row = 4 * -(-longest // block_size) + 9 * 4 + 8 + 4 * vocabulary
    parts = min(32, -(-longest // 256))
    return {
        "max_num_seqs": sequences, "max_model_len": longest, "block_size": block_size,
        "vocab_size": vocabulary, "heads": heads, "head_dim": head,
        "rows": (sequences + 1) * row, "scratch": sequences * parts * heads * (head + 1) * 4,
    }  # fmt: skip


def start(
    model: str, form: str, dtype: str, sms: int, sequences: int, longest: int, block_size: int
) -> dict[str, Any]:
    """Run the engine's own start on tensors without data."""
    import torch

    from tangram_engine.checkpoint.config import parse_config
    from tangram_engine.schedule import SchedulerLimits
    from tests.support.fake_gpu import step_memory

    config = MODELS[model][0] | {"num_hidden_layers": 2}
    kind = {"bf16": torch.bfloat16, "fp32": torch.float32}[dtype]
    tokens = max(step(sms), sequences)
    limits = SchedulerLimits(sequences, tokens, longest)
    measured = step_memory(parse_config(config, {}, dtype), kind, block_size, limits, form or None)
    return {
        "config": config, "dtype": dtype, "form": form, "sms": sms, "max_num_seqs": sequences,
        "max_model_len": longest, "block_size": block_size, **measured,
    }  # fmt: skip


def quantised(parameters: list[tuple[str, tuple[int, ...]]], element: int) -> dict[str, int]:
    """Bytes of all weights by format, from names and shapes of the parameters."""
    found = dict.fromkeys(("fp8", "int4"), 0)
    for path, shape in parameters:
        if not path.endswith("_proj.weight"):
            for form in found:
                found[form] += element * math.prod(shape)
            continue
        outputs, inputs = shape
        found["fp8"] += outputs * inputs + 4 * outputs
        groups = -(-inputs // 128)
        found["int4"] += outputs * inputs // 2 + groups * 2 * outputs + groups * (outputs // 2)
    return found


def vector(config: dict[str, Any], dtype: str, block_size: int) -> dict[str, Any]:
    """Ask transformers, on the meta device."""
    import torch
    import transformers

    kind = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[dtype]
    settings = {key: value for key, value in config.items() if key != "architectures"}
    name = config["architectures"][0]
    with torch.device("meta"):
        built = getattr(transformers, name.replace("ForCausalLM", "Config"))(**settings)
        model = getattr(transformers, name)(built).to(kind).eval()
        cache = model(torch.zeros(1, block_size, dtype=torch.int64), use_cache=True).past_key_values
    weights = dict.fromkeys(("embedding", "attention", "mlp", "norm", "head"), 0)
    for path, parameter in model.named_parameters():
        weights[_kind(path)] += parameter.nbytes
    block = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    return {
        "config": config, "dtype": dtype, "block_size": block_size,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "weight_bytes": weights, "block_bytes": block,
        "quantised_bytes": quantised(
            [(path, tuple(parameter.shape)) for path, parameter in model.named_parameters()], kind.itemsize
        ),
    }  # fmt: skip


def account(
    total: int, used: int, peak: int, part: float, block_bytes: int, block_size: int, longest: int
) -> dict[str, Any]:
    """Follow the rule in words."""
    pool = int(total * MIB * part) - used * MIB - peak * MIB - max(256 * MIB, total * MIB // 100)
    blocks = max(0, pool // block_bytes)
    return {
        "total": total * MIB, "used": used * MIB, "peak": peak * MIB, "utilisation": part,
        "block_bytes": block_bytes, "block_size": block_size, "max_model_len": longest,
        "pool_bytes": pool, "blocks": blocks, "fits": blocks * block_size >= longest,
    }  # fmt: skip


def _kind(path: str) -> str:
    parts = path.split(".")
    if parts[-2].endswith(("norm", "layernorm")):
        return "norm"
    known = {"embed_tokens": "embedding", "lm_head": "head", "self_attn": "attention", "mlp": "mlp"}
    return next(known[part] for part in parts if part in known)


def main() -> None:
    document = {
        "made_by": "TRITON_INTERPRET=1 python -m tests.contracts.memory_golden",
        "models": {name: vector(*wanted) for name, wanted in MODELS.items()},
        "accounts": {name: account(*wanted) for name, wanted in ACCOUNTS.items()},
        "steps": {str(sms): step(sms) for sms in SMS},
        "buffers": {name: buffers(*wanted) for name, wanted in BUFFERS.items()},
        "captured": {str(most): captured(most) for most in CAPTURED},
        "starts": {name: start(*wanted) for name, wanted in STARTS.items()},
    }
    FILE.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
