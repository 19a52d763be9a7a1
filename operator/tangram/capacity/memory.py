"""What a GPU's or slice's memory is spent on, and what is left for the KV cache.

    KV cache = total - reserve - context - graphs - collectives - workspace - activations - weights

Terms are those of one rank of the bundled engine, which measures at start what is predicted here. Sizes of
tensors are exact; those that only a CUDA runtime could tell (`UNMEASURED`) are defaults scaled to the slice.
"""

from dataclasses import dataclass, replace

from tangram.capacity.footprint import Footprint
from tangram.capacity.hardware import Hardware
from tangram.catalog import InputError, share
from tangram.fleet import CheckpointFacts

MIB = 1024 * 1024
GIB = 1024 * MIB

# What the engine takes of the memory unless told otherwise (`--gpu-memory-utilization`), as vLLM does.
UTILISATION = 0.90
# The engine's own margin inside that, at least 1 % of the total: libraries allocate on their own as well.
MARGIN_BYTES = 256 * MIB
# Tokens per step on a GPU (`--max-num-batched-tokens`), never fewer than running requests: the power of two
# nearest to 62 an SM, so that a step takes as long on a slice as on its board.
TOKENS_PER_SM = 62
SMALLEST_STEP, LARGEST_STEP = 512, 8192
BLOCK_TOKENS = 16  # of one KV block (`--block-size`)
LARGEST_BLOCK = 1024

# Driver context, kernel code and library workspaces: a part that every process pays, and one that grows with
# the SMs (local memory), of which a slice has its share. Recalled from A100 and H100 boards, not measured.
CONTEXT_BYTES = 256 * MIB
CONTEXT_BYTES_PER_BOARD = 256 * MIB
# A captured decode step keeps its launch records and a private pool: about 0.5 GiB for 35 batch sizes of a
# 32-layer model in vLLM's start-up log (recalled). Divided by both it is this much.
GRAPH_BYTES_PER_LAYER = MIB // 2
# Communicator buffers of one rank; NVIDIA's aiconfigurator reserves as much.
COLLECTIVES_BYTES = 350 * MIB
UNMEASURED = ("context", "graphs", "collectives")

# The widest moment of a layer is the MLP's: the residual beside gate, up, silu(gate) and its product, which
# is 4/3 of what gate, up and down put out.
OUTPUTS_HELD = 4 / 3
# Drawing a token in the most expensive way (penalties, top-p, log-probabilities): float32 logits, two
# adjusted copies, sorting, and 64-bit random numbers, per row and entry of the vocabulary.
SAMPLING_BYTES = 40
NOISE_BYTES = 8  # 64-bit counters, one per entry of the vocabulary, kept
# A prompt's chunk that attends to what precedes it brings a mask, bounded in (query, key, head) triples. Half
# as much as in the MLP is held beside it.
SCORES = 1 << 25
# What the device keeps of each running request, and of one more row that fills batches up: eleven 4-byte and
# 8-byte fields, its blocks, and how often each token occurred.
ROW_BYTES = 44
COUNT_BYTES = 4
# Partial results of decode attention in float32, for each part of a context: at least 256 tokens, at most 32.
SPLIT_TOKENS = 256
LARGEST_SPLITS = 32
# Keys and values collected for one attention call, kept between calls; a single request may need more.
COLLECTED_BYTES = 256 * MIB


@dataclass(frozen=True, slots=True)
class Limits:
    """How an engine is started. Raises `InputError` for what no engine would accept."""

    max_model_len: int  # tokens of prompt and output together
    max_running: int = 64  # requests in one step
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

    def on(self, sms: int | None) -> "Limits":
        """Return the limits with the step that the engine chooses on so many SMs. Unknown: the largest."""
        chosen = LARGEST_STEP if sms is None else step_tokens(sms)
        return replace(self, max_batched_tokens=self.max_batched_tokens or max(chosen, self.max_running))

    def stored(self, tokens: int) -> int:
        """Tokens that a request of `tokens` takes up in the cache: whole blocks."""
        return -(-tokens // self.block_size) * self.block_size


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """The memory account of one rank, in bytes. The terms add up to `total` unless `kv` is negative."""

    footprint: Footprint
    limits: Limits
    total: int
    reserve: int  # what the utilisation leaves alone, and the engine's margin
    context: int
    graphs: int
    collectives: int
    workspace: (
        int  # kept between steps: rotary table, rows of requests, partial and collected keys and values
    )
    activations: int  # peak of the largest step
    weights: int
    unverified: tuple[str, ...]  # terms nobody has measured on silicon, and facts of the GPU without a source

    @property
    def kv(self) -> int:
        """Bytes left for the KV cache; negative where not even the rest fits."""
        return self.total - self.overhead - self.weights

    @property
    def overhead(self) -> int:
        """Bytes of everything but weights and KV cache."""
        fixed = self.reserve + self.context + self.graphs + self.collectives
        return fixed + self.workspace + self.activations

    @property
    def kv_needed(self) -> int:
        """Bytes that one request of the full length takes: the engine refuses to start with less."""
        return self.request_bytes(self.limits.max_model_len)

    @property
    def missing(self) -> int:
        """By how many bytes it does not fit; 0 if it fits."""
        return max(0, self.kv_needed - self.kv)

    @property
    def fits(self) -> bool:
        """Whether the engine would start: room for one request of the full length."""
        return not self.missing

    @property
    def kv_tokens(self) -> int:
        """Tokens that the cache holds in requests of the full length."""
        longest = self.limits.max_model_len
        return max(0, int(self.kv / (self.footprint.kv_bytes(longest) / longest)))

    def request_bytes(self, tokens: int) -> int:
        """Bytes of cache that one request of `tokens` takes up, in whole blocks."""
        return int(self.footprint.kv_bytes(self.limits.stored(tokens)))

    def concurrent(self, tokens: int) -> int:
        """Requests of `tokens` (prompt and output) that run at once, as far as memory and limits allow."""
        return min(self.limits.max_running, max(0, self.kv) // self.request_bytes(tokens))

    def __str__(self) -> str:
        """Return the account as a person reads it."""
        parts = (
            f"weights {_gib(self.weights)} + KV of one request {_gib(self.kv_needed)}"
            f" + engine {_gib(self.overhead - self.reserve)}, partly estimated + reserve {_gib(self.reserve)}"
        )
        needs = self.weights + self.kv_needed + self.overhead
        return f"needs {_gib(needs)} GiB ({parts}), has {_gib(self.total)} GiB"


def memory_budget(footprint: Footprint, hardware: Hardware, limits: Limits) -> MemoryBudget:
    """Return what the memory of one rank on `hardware` is spent on.

    A slice whose memory nobody has published has none: it fits nothing, and `unverified` says so.
    """
    total = hardware.memory_mib * MIB
    limits = limits.on(hardware.sms)
    return MemoryBudget(
        footprint=footprint,
        limits=limits,
        total=total,
        reserve=reserve_bytes(total, limits.utilisation),
        context=CONTEXT_BYTES + int(CONTEXT_BYTES_PER_BOARD * share(hardware.sku, hardware.profile)),
        graphs=GRAPH_BYTES_PER_LAYER * footprint.layers * len(captured_sizes(limits.max_running)),
        collectives=COLLECTIVES_BYTES if footprint.tensor_parallel > 1 else 0,
        workspace=workspace_bytes(footprint, limits) + device_bytes(footprint, limits),
        activations=activation_bytes(footprint, limits),
        weights=footprint.weight_bytes,
        unverified=(*UNMEASURED[: 3 if footprint.tensor_parallel > 1 else 2], *hardware.unverified),
    )


def reserve_bytes(total: int, utilisation: float) -> int:
    """Bytes that the engine leaves alone: what it may not use, and its margin inside the rest."""
    return total - int(total * utilisation) + max(MARGIN_BYTES, total // 100)


def workspace_bytes(footprint: Footprint, limits: Limits) -> int:
    """Bytes kept from step to step beside weights and cache."""
    rope = 2 * limits.max_model_len * footprint.rope_dim * _element(footprint)
    collected = _layer_kv_bytes(footprint) * _collected_tokens(footprint, limits)
    return rope + collected + NOISE_BYTES * footprint.vocab_size


def device_bytes(footprint: Footprint, limits: Limits) -> int:
    """Bytes that are on a GPU beside these: rows, partial results, padding, dequantised weights."""
    rows = (limits.max_running + 1) * row_bytes(footprint.vocab_size, limits)
    padding = int(footprint.kv_bytes(limits.block_size))
    return rows + scratch_bytes(footprint, limits) + padding + footprint.dequantised_bytes


def row_bytes(vocab_size: int, limits: Limits) -> int:
    """Bytes of one request's row on the device."""
    blocks = limits.stored(limits.max_model_len) // limits.block_size
    return ROW_BYTES + 4 * blocks + COUNT_BYTES * vocab_size


def scratch_bytes(footprint: Footprint, limits: Limits) -> int:
    """Bytes of decode attention's partial results: a vector and a sum for each part of each query head."""
    splits = min(LARGEST_SPLITS, -(-limits.max_model_len // SPLIT_TOKENS))
    return int(limits.max_running * splits * _heads(footprint) * (footprint.rope_dim + 1) * 4)


def activation_bytes(footprint: Footprint, limits: Limits) -> int:
    """Peak of the largest step: in the MLP, in attention with a long past, or when tokens are drawn."""
    hidden, element = footprint.hidden_size, _element(footprint)
    outputs = footprint.linear_flops_per_token / 2 / footprint.layers / hidden
    of_attention = 2 * _heads(footprint) * footprint.rope_dim + _layer_kv_bytes(footprint) / element
    widest = element * (hidden + OUTPUTS_HELD * (outputs - of_attention)) * limits.step_tokens
    attending = element * 2 * (hidden + of_attention) * limits.step_tokens
    sampling = SAMPLING_BYTES * footprint.vocab_size * limits.max_running
    return int(max(widest, attending + _mask_bytes(footprint, limits), sampling))


def step_tokens(sms: int) -> int:
    """Token budget of a step on so many SMs."""
    wanted = TOKENS_PER_SM * sms
    below = 1 << (wanted.bit_length() - 1)
    nearest = below if wanted * wanted < 2 * below * below else 2 * below
    return min(max(nearest, SMALLEST_STEP), LARGEST_STEP)


def captured_sizes(max_running: int) -> tuple[int, ...]:
    """Batch sizes for which a decode step is captured: fine where padding would cost most."""
    ladder = (1, 2, 4, *range(8, 64, 8), *range(64, 256, 16), *range(256, 513, 32))
    most = min(max_running, ladder[-1])
    return (*(size for size in ladder if size < most), most)


def _element(footprint: Footprint) -> int:
    """Bytes of a hidden state's element: 16-bit unless all is computed in fp32."""
    return 4 if footprint.compute == "fp32" else 2


def _heads(footprint: Footprint) -> float:
    """Query heads of a mean layer."""
    return sum(flops for flops, _ in footprint.attention_flops) / (4 * footprint.layers * footprint.rope_dim)


def _mask_bytes(footprint: Footprint, limits: Limits) -> float:
    """Bytes of the largest mask, as booleans and as numbers; query heads that share a KV head share none."""
    element, head = _element(footprint), footprint.rope_dim
    heads = _heads(footprint)
    kv_heads = _layer_kv_bytes(footprint) / (2 * head * element)
    rows = min(limits.step_tokens, limits.max_model_len)
    return min(rows * limits.max_model_len * heads, SCORES) / kv_heads * (1 + element)


def _layer_kv_bytes(footprint: Footprint) -> int:
    """Bytes of keys and values per token of the widest kind of layer; of a mean layer where kinds differ."""
    return max(1, sum(per_token for per_token, _ in footprint.kv) // footprint.layers)


def _collected_tokens(footprint: Footprint, limits: Limits) -> int:
    """Tokens whose keys and values lie side by side for one call: bounded, but never below one request."""
    longest = limits.stored(limits.max_model_len)
    return max(longest, min(limits.max_running * longest, COLLECTED_BYTES // _layer_kv_bytes(footprint)))


def _gib(size: float) -> str:
    return f"{size / GIB:.1f}"


def model_length(facts: CheckpointFacts, wanted: int | None) -> int:
    """Return the length in tokens that is served: what is wanted, as far as the checkpoint goes."""
    limit = facts.max_position_embeddings
    return limit if wanted is None else min(wanted, limit)
