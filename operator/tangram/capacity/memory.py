"""Whether a model fits in a GPU's or slice's memory, and by how much it misses.

    usable   = total x 0.90
    required = weights + KV of one full-length request + activations + engine overhead

Every replica must be able to serve one request of the longest length that it accepts; the engine refuses to
start otherwise.
"""

from dataclasses import dataclass

from tangram.fleet import CheckpointFacts

MIB = 1024 * 1024
GIB = 1024 * MIB

# `--gpu-memory-utilization` of the engine, the default that vLLM made usual.
UTILISATION = 0.90
# CUDA context, kernels, captured graphs and allocator slack of one process without collectives. Published
# planners take 1.5 to 3.5 GB (NVIDIA aiconfigurator: 3.5 GB with NCCL); the low end, as there is no NCCL with
# one GPU.
OVERHEAD_BYTES = int(1.5 * GIB)
# Tokens of one step (`--max-num-batched-tokens`) whose activations live at the same time: about four rows of
# the hidden size per token (residual, normed, attention or half of the MLP, output).
STEP_TOKENS = 2048
ROWS_PER_TOKEN = 4
LOGIT_BYTES = 4  # logits are computed in fp32, one row per running request

BYTES_PER_ELEMENT = {"bf16": 2, "fp16": 2, "fp32": 4}


@dataclass(frozen=True, slots=True)
class MemoryFit:
    """The memory account of one replica, in bytes."""

    usable: int
    weights: int
    kv: int  # one request of the full length
    activations: int
    overhead: int

    @property
    def required(self) -> int:
        """What one replica needs at least."""
        return self.weights + self.kv + self.activations + self.overhead

    @property
    def missing(self) -> int:
        """By how much it does not fit; 0 if it fits."""
        return max(0, self.required - self.usable)

    def __str__(self) -> str:
        """Return the account as a person reads it."""
        engine = self.activations + self.overhead
        parts = f"weights {_gib(self.weights)} + KV {_gib(self.kv)} + engine {_gib(engine)}"
        return f"needs {_gib(self.required)} GiB ({parts}), has {_gib(self.usable)} GiB"


def memory_fit(
    facts: CheckpointFacts, max_model_len: int, max_running_requests: int, memory_mib: int
) -> MemoryFit:
    """Return the account of one replica on `memory_mib` of memory (the slice's real size, not its name's)."""
    element = BYTES_PER_ELEMENT[facts.dtype]
    kv_per_token = 2 * facts.layers * facts.kv_heads * facts.head_dim * element
    activations = STEP_TOKENS * ROWS_PER_TOKEN * facts.hidden_size * element
    return MemoryFit(
        usable=int(memory_mib * MIB * UTILISATION),
        weights=facts.weight_bytes,
        kv=kv_per_token * max_model_len,
        activations=activations + max_running_requests * facts.vocab_size * LOGIT_BYTES,
        overhead=OVERHEAD_BYTES,
    )


def model_length(facts: CheckpointFacts, wanted: int | None) -> int:
    """Return the length in tokens that is served: what is wanted, as far as the checkpoint goes."""
    limit = facts.max_position_embeddings
    return limit if wanted is None else min(wanted, limit)


def _gib(size: int) -> str:
    return f"{size / GIB:.1f}"
