"""Buffers that the bundled engine allocates beside weights and KV cache.

The engine has the same in tangram_engine/run/memory.py (`BufferSizes`) and tangram_engine/run/ladder.py, and
measures the rest at start. Both are held to tests/contracts/memory_golden.json.
"""

from dataclasses import dataclass, replace

from tangram.capacity.memory.footprint import Footprint
from tangram.catalog import InputError
from tangram.fleet import DEFAULT_RUNNING_REQUESTS

MIB = 1024 * 1024

# What the engine takes of the memory unless `--gpu-memory-utilization` is set, as vLLM does.
UTILISATION = 0.90
# Tokens per step on a GPU (`--max-num-batched-tokens`), never fewer than running requests: the power of two
# nearest to 62 an SM, so that a step takes as long on a slice as on its board.
TOKENS_PER_SM = 62
SMALLEST_STEP, LARGEST_STEP = 512, 8192
BLOCK_TOKENS = 16  # of one KV block (`--block-size`)
LARGEST_BLOCK = 1024

# Per row and entry of the vocabulary: float32 logits and, for log-probabilities, two copies; plain torch also
# sorts, adjusts and draws in copies, with 64-bit counters that it keeps.
SAMPLING_BYTES, TORCH_SAMPLING_BYTES, COUNTER_BYTES = 12, 40, 8
INPUT_BYTES = 48  # per token of a step: ids, positions and rows, with the upload that brought them
# In plain torch a chunk that attends to what precedes it brings a mask, bounded in (query, key, head)
# triples; contexts of single tokens are collected side by side, bounded in bytes but for the longest request.
SCORES = 1 << 25
COLLECTED_BYTES = 256 * MIB
# What the device keeps of each running request, and of one more row that fills batches up: eleven 4-byte and
# 8-byte fields, its blocks, and how often each token occurred.
ROW_BYTES = 44
COUNT_BYTES = 4
# Partial results of decode attention in float32, for each part of a context: at least 256 tokens, at most 32.
SPLIT_TOKENS = 256
LARGEST_SPLITS = 32


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How an engine is started. Raises `InputError` for what no engine would accept."""

    max_model_len: int  # tokens of prompt and output together
    max_running: int = DEFAULT_RUNNING_REQUESTS  # requests in one step
    utilisation: float = UTILISATION
    max_batched_tokens: int | None = None  # tokens in one step; None: the engine's default
    block_size: int = BLOCK_TOKENS

    def __post_init__(self) -> None:
        """Refuse what means nothing."""
        for field in ("max_model_len", "max_running", "max_batched_tokens", "block_size"):
            value = getattr(self, field)
            if value is not None and value < 1:
                raise InputError(field, f"must be at least 1, not {value}")
        if self.block_size > LARGEST_BLOCK:
            raise InputError("block_size", f"must be at most {LARGEST_BLOCK}, not {self.block_size}")
        if not 0 < self.utilisation <= 1:
            raise InputError("utilisation", f"must be above 0 and at most 1, not {self.utilisation}")

    @property
    def step_tokens(self) -> int:
        """Tokens of the largest step; without a limit, on a GPU of unknown SMs."""
        return self.max_batched_tokens or max(LARGEST_STEP, self.max_running)

    def on(self, sms: int | None) -> "EngineSettings":
        """Return the limits with the step that the engine chooses on so many SMs. Unknown: the largest."""
        chosen = LARGEST_STEP if sms is None else step_tokens(sms)
        return replace(self, max_batched_tokens=self.max_batched_tokens or max(chosen, self.max_running))

    def stored(self, tokens: int) -> int:
        """Tokens that a request of `tokens` takes up in the cache: whole blocks."""
        return -(-tokens // self.block_size) * self.block_size


def rows_bytes(vocab_size: int, limits: EngineSettings) -> int:
    """Bytes of the rows of running requests and of the padding row."""
    row = ROW_BYTES + 4 * _blocks(limits) + COUNT_BYTES * vocab_size
    return (limits.max_running + 1) * row


def kernel_buffers(footprint: Footprint, limits: EngineSettings) -> tuple[int, int]:
    """Bytes that attention keeps from step to step, and peak of the largest step, with the engine's kernels.

    Kept: partial results, rotary table, keys and values of the longest prompt, the padding row's block. The
    peak is in the MLP, in attention of a chunk with a past, or in sampling.
    """
    element, layer = _element(footprint), _layer_kv_bytes(footprint)
    rope, block = 4 * limits.max_model_len * footprint.rope_dim, int(footprint.kv_bytes(limits.block_size))
    persistent = scratch_bytes(footprint, limits) + rope + layer * limits.stored(limits.max_model_len) + block
    hidden, inner, queries, packed = _widths(footprint)
    widest = element * (hidden + max(3 * inner, packed + 3 * queries))
    tokens = _tokens(limits)
    kinds = layer / (footprint.rope_dim * element)  # keys and values of all heads
    blocks = _blocks(limits) + 2 * tokens // limits.block_size  # of a long past; of many short requests
    fed = INPUT_BYTES * tokens + 8 * (kinds + 1) * blocks
    return persistent, int(
        max(widest * tokens + fed, SAMPLING_BYTES * footprint.vocab_size * limits.max_running)
    )


def graph_tensor_bytes(footprint: Footprint, limits: EngineSettings) -> int:
    """Bytes of the tensors that captured decode steps share: logits as computed and in float32."""
    most = captured_sizes(limits.max_running)[-1]
    return (_element(footprint) + 4) * footprint.vocab_size * most


def torch_buffers(footprint: Footprint, limits: EngineSettings) -> tuple[int, int]:
    """As `kernel_buffers`, in plain torch."""
    element, layer = _element(footprint), _layer_kv_bytes(footprint)
    longest = limits.stored(limits.max_model_len)
    collected = max(longest, min(limits.max_running * longest, COLLECTED_BYTES // layer))
    rope = 2 * limits.max_model_len * footprint.rope_dim * element
    persistent = rope + layer * collected + COUNTER_BYTES * footprint.vocab_size
    hidden, inner, queries, packed = _widths(footprint)
    tokens = _tokens(limits)
    heads, kinds = queries / footprint.rope_dim, layer / (footprint.rope_dim * element)
    scores = min(min(tokens, limits.max_model_len) * limits.max_model_len * heads, SCORES)
    mlp = element * (hidden + 4 * inner) * tokens
    attending = element * 2 * (hidden + packed + queries) * tokens + scores / kinds * 2 * (1 + element)
    return persistent, int(
        max(mlp, attending, TORCH_SAMPLING_BYTES * footprint.vocab_size * limits.max_running)
    )


def scratch_bytes(footprint: Footprint, limits: EngineSettings) -> int:
    """Bytes of decode attention's partial results: a vector and a sum for each part of each query head."""
    splits = min(LARGEST_SPLITS, -(-limits.stored(limits.max_model_len) // SPLIT_TOKENS))
    queries = _widths(footprint)[2]
    return int(limits.max_running * splits * queries / footprint.rope_dim * (footprint.rope_dim + 1) * 4)


def step_tokens(sms: int) -> int:
    """Token budget of a step on so many SMs."""
    target = TOKENS_PER_SM * sms
    below = 1 << (target.bit_length() - 1)
    nearest = below if target * target < 2 * below * below else 2 * below
    return min(max(nearest, SMALLEST_STEP), LARGEST_STEP)


def captured_sizes(max_running: int) -> tuple[int, ...]:
    """Batch sizes for which a decode step is captured: fine where padding would cost most."""
    ladder = (1, 2, 4, *range(8, 64, 8), *range(64, 256, 16), *range(256, 513, 32))
    most = min(max_running, ladder[-1])
    return (*(size for size in ladder if size < most), most)


def _element(footprint: Footprint) -> int:
    """Bytes of a hidden state's element: 16-bit unless all is computed in fp32."""
    return 4 if footprint.compute == "fp32" else 2


def _widths(footprint: Footprint) -> tuple[int, float, float, float]:
    """Features of a mean layer's activations: hidden state, MLP, queries; queries with keys and values."""
    head, layers = footprint.rope_dim, footprint.layers
    queries = sum(flops for flops, _ in footprint.attention_flops) / (4 * layers * head) * head
    packed = queries + _layer_kv_bytes(footprint) / _element(footprint)
    outputs = footprint.linear_flops_per_token / 2 / layers / footprint.hidden_size
    return footprint.hidden_size, (outputs - packed - queries) / 3, queries, packed


def _tokens(limits: EngineSettings) -> int:
    """Tokens of the largest step: no more than the running requests have."""
    return min(limits.step_tokens, limits.max_running * limits.max_model_len)


def _blocks(limits: EngineSettings) -> int:
    """Blocks of the longest request."""
    return limits.stored(limits.max_model_len) // limits.block_size


def _layer_kv_bytes(footprint: Footprint) -> int:
    """Bytes of keys and values per token of the widest kind of layer; of a mean layer where kinds differ."""
    return max(1, sum(per_token for per_token, _ in footprint.kv) // footprint.layers)
