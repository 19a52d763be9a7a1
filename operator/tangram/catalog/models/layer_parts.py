"""Parts of a decoder layer: attention, recurrent branches, MLPs and experts."""

from dataclasses import dataclass

from tangram.catalog.models.tensors import Tensor


@dataclass(frozen=True, slots=True)
class Attention:
    """Self-attention of one layer: multi-head, grouped-query, or multi-head latent (MLA, `latent` set)."""

    heads: int
    kv_heads: int
    head_dim: int  # of queries and keys; MLA: the part without rotary positions plus `rope_dim`
    v_head_dim: int
    window: int | None = None  # tokens that a query sees; None: all
    latent: int | None = None  # MLA: kv_lora_rank, what the KV cache holds of a token beside `rope_dim`
    rope_dim: int = 0  # MLA: qk_rope_head_dim, one shared key
    q_latent: int | None = None  # MLA: q_lora_rank; None: queries come from the hidden state
    bias: bool = False  # of q, k and v
    output_bias: bool = False
    qk_norm: bool = False  # one norm per head over queries and over keys
    norm_over_heads: bool = False  # MiniMax-M2, OLMo 2: that norm spans all heads of a token
    sinks: bool = False  # gpt-oss: one learned logit per head
    output_gate: bool = False  # Qwen3-Next: q_proj also computes a gate for the output
    keys_as_values: bool = False  # Gemma 4: no v_proj; the cache keeps both, since keys are rotated
    shares_cache: bool = False  # Gemma 4 E2B and E4B: keys and values are those of an earlier layer
    index_heads: int = 0  # sparse attention of DeepSeek-V3.2: heads that score keys
    index_dim: int = 0

    @property
    def kv_elements(self) -> int:
        """Elements that the KV cache holds per token, over all KV heads."""
        if self.shares_cache:
            return 0
        if self.latent is not None:
            return self.latent + self.rope_dim
        return self.kv_heads * (self.head_dim + self.v_head_dim)

    @property
    def index_bytes(self) -> int:
        """Bytes per token of the cached index keys, whatever the precision of the KV cache.

        One byte an element and a float32 scale per 128 (vLLM, `DeepseekV32IndexerCache`; SGLang likewise).
        """
        return self.index_dim + 4 * -(-self.index_dim // 128) if self.index_heads else 0


@dataclass(frozen=True, slots=True)
class Recurrent:
    """State-space or linear-attention branch of one layer. Its state has one size, whatever the context."""

    heads: int
    tensors: tuple[Tensor, ...]  # of one layer
    conv_elements: int  # last inputs of the short convolution, per request
    state_elements: int  # per request
    state_bytes: int = 2  # per element of the state: 4 where the config asks for float32

    def cache_bytes(self, element: int) -> int:
        """Bytes that one request keeps in one layer; `element` is that of the convolution's inputs."""
        return self.conv_elements * element + self.state_elements * self.state_bytes


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """`count` equal layers; they need not be neighbours."""

    count: int
    attention: Attention | None
    intermediate_size: int  # of the dense MLP; 0: none
    experts: int = 0  # routed
    experts_per_token: int = 0
    expert_intermediate_size: int = 0
    shared_intermediate_size: int = 0  # all shared experts together
    shared_gate: bool = False  # Qwen2-MoE: a learned gate on the shared expert
    router_bias: bool = False  # gpt-oss: a bias; DeepSeek-V3: e_score_correction_bias
    expert_bias: bool = False  # gpt-oss
    mlp_bias: bool = False
    gated: bool = True  # gate, up, down; else up, down
    norms: int = 2  # Gemma 2 and 3: four
    recurrent: Recurrent | None = None  # instead of attention; Falcon-H1: beside it
    expert_input_size: int = 0  # Nemotron 3: experts work on a projection of the hidden state; 0: on itself
    extra_tensors: tuple[Tensor, ...] = ()  # of one layer: small ones that one family alone has
