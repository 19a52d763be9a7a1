"""Settings with which the engine starts."""

from dataclasses import dataclass
from pathlib import Path

DUMMY = "dummy"


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """The flags of `tangram-engine serve` that matter below the HTTP server."""

    model: Path
    max_model_len: int | None = None  # tokens of prompt and output together; None: all the model was made for
    max_num_seqs: int = 64  # sequences in one step
    max_num_batched_tokens: int | None = None  # tokens in one step; None: 512 on a CPU, by SMs on a GPU
    block_size: int = 16  # tokens
    dtype: str = "auto"  # auto | float32 | bfloat16 | float16; auto is float32 on a CPU, else as stored
    device: str = "auto"  # auto | cpu | cuda
    gpu_memory_utilization: float = 0.9  # share of the GPU (or slice) that weights, KV cache and buffers fill
    kv_cache_bytes: int | None = None  # None: what is left of the GPU, or a quarter of the CPU memory limit
    seed: int = 0  # of requests that bring none, and of random weights
    load_format: str = "auto"  # auto: the safetensors; dummy: random weights, from config.json alone
    quantize: str | None = None  # fp8 | int4: the weights of the layers, while they are read

    def __post_init__(self) -> None:
        positive = (self.max_model_len, self.max_num_seqs, self.max_num_batched_tokens, self.block_size)
        if any(value is not None and value < 1 for value in positive):
            raise ValueError(
                "max_model_len, max_num_seqs, max_num_batched_tokens and block_size are at least 1"
            )
        if not 0.0 < self.gpu_memory_utilization <= 1.0:
            raise ValueError("gpu_memory_utilization is a share: above 0, at most 1")
        if self.dtype not in ("auto", "float32", "bfloat16", "float16"):
            raise ValueError(f"dtype {self.dtype!r} is not one of auto, float32, bfloat16, float16")
        if self.load_format not in ("auto", DUMMY):
            raise ValueError(f"load_format {self.load_format!r} is not one of auto, dummy")
        if self.quantize not in (None, "fp8", "int4"):
            raise ValueError(f"quantize {self.quantize!r} is not one of fp8, int4")
        if self.device not in ("auto", "cpu", "cuda"):
            raise ValueError(f"device {self.device!r} is not one of auto, cpu, cuda")
