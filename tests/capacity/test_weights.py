"""Bytes of weights, KV cache and work of one rank."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tangram.capacity.hardware import hardware
from tangram.capacity.memory.footprint import Footprint, footprint
from tangram.capacity.memory.from_facts import MLP_SIZE, architecture_from_facts
from tangram.capacity.memory.weights import kind_of, rank_tensors, weight_bytes
from tangram.capacity.steps.step_model import Coefficients, StepModel
from tangram.catalog import Architecture, InputError, known_model, known_models
from tangram.catalog.models.precision import PRECISIONS, precision
from tangram.catalog.models.tensors import TensorKind
from tangram.fleet import CheckpointFacts
from tests.support.model_figures import active_parameters


def model(name: str) -> Architecture:
    found = known_model(name)
    assert found is not None
    return found


def of(name: str, weights: str, kv: str = "bf16", tp: int = 1, sku: str | None = None) -> Footprint:
    return footprint(model(name), weights, kv, tp, hardware(sku) if sku else None)


# Bytes that others have published or stored.


@pytest.mark.parametrize(
    ("name", "weights", "stored"),
    [
        ("gpt-oss-20b", "mxfp4", 13_761_264_768),  # total_size of the checkpoint's safetensors index
        ("gpt-oss-120b", "mxfp4", 65_248_815_744),  # likewise
        ("Llama-3.1-8B", "bf16", 16_060_522_496),  # likewise
        ("Llama-3-70B", "bf16", 141_107_412_992),  # likewise
    ],
)
def test_weights_are_the_bytes_of_the_published_checkpoint(name: str, weights: str, stored: int):
    assert of(name, weights).weight_bytes == stored


def test_a_dense_model_is_its_parameters_times_two_bytes_everywhere():
    for name in known_models():
        found = model(name)
        assert footprint(found, "bf16").weight_bytes == 2 * found.parameters


@pytest.mark.parametrize(
    ("form", "rows", "columns", "nbytes"),
    [
        ("bf16", 4096, 4096, 33_554_432),
        ("fp8", 4096, 4096, 16_777_216 + 4 * 4096),  # one fp32 scale per output channel
        ("fp8_block", 4096, 4096, 16_777_216 + 4 * 32 * 32),
        ("fp8_block", 200, 300, 60_000 + 4 * 2 * 3),  # blocks at the edges are whole
        ("int8", 64, 128, 8192 + 4 * 64),
        ("int4", 4096, 4096, 8_388_608 + 32 * 4096 * 2 + 32 * 2048),  # qweight, scales, qzeros
        ("int4_gptq", 4096, 4096, 8_388_608 + 32 * 4096 * 2 + 32 * 2048 + 4 * 4096),  # and g_idx
        ("int4_g32", 4096, 4096, 8_388_608 + 128 * 4096 * 2 + 128 * 2048),
        ("int4_channel", 4096, 4096, 8_388_608 + 4096 * 2 + 2048),
        ("nvfp4", 4096, 4096, 8_388_608 + 256 * 4096 + 8),
        ("mxfp4", 2880, 2880, 4_147_200 + 90 * 2880),
    ],
)
def test_scales_and_zeros_are_counted(form: str, rows: int, columns: int, nbytes: int):
    assert precision(form).bytes_of(rows, columns) == nbytes


def test_only_linear_layers_of_the_body_are_quantised():
    found = model("Llama-3.1-8B")
    held = {each.tensor.name: each for each in rank_tensors(found, precision("int4"), 1)}

    assert {name for name, each in held.items() if each.precision == "int4"} == {
        f"model.layers.*.{name}.weight"
        for name in (
            *(f"self_attn.{part}_proj" for part in "qkvo"),
            *(f"mlp.{part}_proj" for part in ("gate", "up", "down")),
        )
    }
    assert {each.precision for each in held.values()} == {"int4", "bf16"}


def test_attention_of_gpt_oss_stays_16_bit_in_every_format():
    found = model("gpt-oss-120b")
    for form in ("mxfp4", "nvfp4", "fp8"):
        held = rank_tensors(found, precision(form), 1)
        assert {each.precision for each in held if each.tensor.kind is TensorKind.ATTENTION} == {"bf16"}
        assert form in {each.precision for each in held if each.tensor.kind is TensorKind.EXPERT}


# Tensor parallelism.


def test_ranks_share_matrices_and_repeat_norms_and_routers():
    found = model("Mixtral-8x7B")
    whole = {each.tensor.name: each for each in rank_tensors(found, precision("bf16"), 1)}
    for each in rank_tensors(found, precision("bf16"), 4):
        share = 1 if each.tensor.kind in {TensorKind.NORM, TensorKind.ROUTER} else 4
        assert each.nbytes * share == whole[each.tensor.name].nbytes, each.tensor.name


def test_kv_heads_are_repeated_where_there_are_more_ranks():
    eight, sixteen = of("Llama-3.1-70B", "bf16", tp=8), of("Llama-3.1-70B", "bf16", tp=16)

    # 80 layers, K and V, one head of 128 in two bytes: on each rank, be it 8 or 16.
    assert eight.kv == sixteen.kv == ((80 * 2 * 128 * 2, None),)
    found = model("Llama-3.1-70B")
    held = {each.tensor.name: each.shape for each in rank_tensors(found, precision("bf16"), 16)}
    assert held["model.layers.*.self_attn.k_proj.weight"] == (128, 8192)
    assert held["model.layers.*.self_attn.q_proj.weight"] == (512, 8192)
    assert held["model.layers.*.self_attn.o_proj.weight"] == (8192, 512)


def test_every_rank_keeps_the_whole_latent_of_mla():
    one, eight = of("DeepSeek-V3", "fp8_block"), of("DeepSeek-V3", "fp8_block", tp=8)

    assert one.kv == eight.kv == ((61 * 576 * 2, None),)


def test_a_vocabulary_is_padded_before_it_is_shared():
    found = model("Llama-3.1-8B")
    uneven = Architecture(
        name="m",
        hidden_size=found.hidden_size,
        vocab_size=32_003,
        groups=found.groups,
        tied_embeddings=False,
        max_position_embeddings=4096,
    )
    held = {each.tensor.name: each.shape for each in rank_tensors(uneven, precision("bf16"), 4)}

    assert held["lm_head.weight"] == (32_064 // 4, 4096)


@pytest.mark.parametrize(
    ("name", "weights", "tp", "problem"),
    [
        ("Llama-3.1-8B", "bf16", 3, "3 does not divide the 32 heads"),
        ("Llama-3.1-8B", "bf16", 64, "64 does not divide the 32 heads"),
        ("Phi-4", "bf16", 4, "4 and 10 KV heads of Phi-4"),
        ("Qwen2.5-7B", "bf16", 8, "8 does not divide the 28 heads"),
        ("Qwen2.5-72B", "int4", 8, "8 cuts the MLP size 29568 of Qwen2.5-72B within a block of 128"),
        ("Qwen3-30B-A3B", "fp8_block", 4, "4 cuts the MLP size 768"),
        ("Llama-3.1-8B", "bf16", 0, "0 is not a number of GPUs"),
        ("Llama-3.1-8B", "bf16", -2, "-2 is not a number of GPUs"),
    ],
)
def test_a_group_that_cannot_share_the_model_is_refused(name: str, weights: str, tp: int, problem: str):
    with pytest.raises(InputError, match=problem) as caught:
        of(name, weights, tp=tp)

    assert caught.value.field == "tensor parallel"


def test_unknown_formats_are_refused():
    with pytest.raises(InputError, match="precision: 'fp3' is not a precision of weights"):
        of("Llama-3.1-8B", "fp3")
    with pytest.raises(InputError, match="kv precision: 'int4' is not one of"):
        of("Llama-3.1-8B", "bf16", kv="int4")


# What a step reads and computes.


def test_the_input_embedding_is_read_only_where_it_is_the_head_too():
    untied, tied = of("Llama-3.1-8B", "bf16"), of("Llama-3.2-1B", "bf16")

    assert untied.dense_read_bytes == untied.weight_bytes - 128_256 * 4096 * 2
    assert tied.dense_read_bytes == tied.weight_bytes


def test_experts_are_read_when_a_token_chose_them():
    found = of("gpt-oss-120b", "mxfp4")

    assert found.dense_read_bytes + found.expert_read_bytes == found.weight_bytes - 201_088 * 2880 * 2
    assert found.weight_read_bytes(1) == pytest.approx(
        found.dense_read_bytes + found.expert_read_bytes * 4 / 128
    )
    assert found.weight_read_bytes(10_000) == pytest.approx(found.dense_read_bytes + found.expert_read_bytes)


def test_a_vision_tower_is_held_but_not_read():
    found = of("Gemma-3-4B", "bf16")

    assert found.weight_bytes - found.dense_read_bytes == 2 * 419_816_304


def test_a_token_costs_two_flops_per_active_parameter():
    for name in ("Llama-3.1-8B", "gpt-oss-120b", "DeepSeek-V3", "Qwen3-235B-A22B"):
        found = of(name, "bf16")
        flops = found.linear_flops_per_token + found.head_flops_per_token
        assert flops == pytest.approx(2 * active_parameters(model(name)), rel=1e-3)


def test_ranks_share_the_work():
    one, four = of("Qwen3-32B", "bf16"), of("Qwen3-32B", "bf16", tp=4)

    assert four.linear_flops_per_token == one.linear_flops_per_token / 4
    assert four.head_flops_per_token == one.head_flops_per_token / 4
    assert four.attention_flops_of(3, 100) == one.attention_flops_of(3, 100) / 4
    assert one.attention_flops_of(1, 1) == 4 * 64 * 64 * 128  # layers x heads x head_dim x 4


def test_an_fp8_kv_cache_has_half_the_bytes():
    assert of("Llama-3.1-8B", "bf16", "fp8").kv == ((65_536, None),)
    assert of("Llama-3.1-8B", "bf16", "bf16").kv == ((131_072, None),)


def test_windowed_layers_keep_their_window_only():
    found = of("gpt-oss-120b", "mxfp4")
    per_layer = 2 * 8 * 64 * 2

    assert found.kv_bytes(1000) == 18 * per_layer * 128 + 18 * per_layer * 1000
    assert found.kv_bytes(100) == 36 * per_layer * 100


@pytest.mark.parametrize(
    ("weights", "sku", "kind"),
    [
        ("bf16", "H100-80GB-SXM", "bf16"),
        ("bf16", "T4", "fp16"),
        ("int4", "T4", "fp16"),
        ("fp8", "L40S", "fp8"),
        ("nvfp4", "H100-80GB-SXM", "bf16"),
        ("nvfp4", "B200-180GB-SXM", "fp4"),
        ("int4", "H100-80GB-SXM", "bf16"),
        ("int8", "A100-80GB-SXM", "int8"),
        ("mxfp4", "B200-180GB-SXM", "bf16"),
    ],
)
def test_weights_are_multiplied_in_a_type_that_the_gpu_has(weights: str, sku: str, kind: str):
    assert of("Llama-3.1-8B", weights, sku=sku).compute == kind


@pytest.mark.parametrize(("weights", "sku"), [("fp8", "A100-80GB-SXM"), ("fp8_block", "T4"), ("nvfp4", "T4")])
def test_a_gpu_without_the_type_is_refused(weights: str, sku: str):
    with pytest.raises(InputError, match=f"{sku} cannot compute {weights}"):
        of("Llama-3.1-8B", weights, sku=sku)


@settings(deadline=None)
@given(
    name=st.sampled_from(known_models()),
    weights=st.sampled_from(sorted(PRECISIONS)),
    tp=st.sampled_from([1, 2, 4, 8]),
)
def test_a_rank_holds_at_least_its_part_and_never_more_than_the_whole(name: str, weights: str, tp: int):
    try:
        part = of(name, weights, tp=tp)
    except InputError:
        return
    whole = of(name, weights)

    assert whole.weight_bytes <= part.weight_bytes * tp * (1 + 1e-9) + 1
    assert part.weight_bytes <= whole.weight_bytes
    assert part.dense_read_bytes + part.expert_read_bytes <= part.weight_bytes
    assert part.kv_bytes(1000) <= whole.kv_bytes(1000)


# Checkpoints that the engine has inspected.

LLAMA_1B: dict[str, Any] = {
    "architecture": "LlamaForCausalLM",
    "digest": "sha256:0",
    "dtype": "bf16",
    "layers": 16,
    "hidden_size": 2048,
    "heads": 32,
    "kv_heads": 8,
    "head_dim": 64,
    "vocab_size": 128_256,
    "max_position_embeddings": 131_072,
    "parameters": 1_235_814_400,
    "weight_bytes": 2_471_628_800,
    "embedding_bytes": 525_336_576,
    "tied_embeddings": True,
    "attention_bias": False,
    "qk_norm": False,
}


@pytest.mark.parametrize("name", ["Llama-3.2-1B", "Llama-3.1-8B", "Qwen2.5-7B", "Qwen3-4B", "Qwen3-32B"])
def test_facts_of_an_inspected_checkpoint_give_the_same_footprint_as_its_config(name: str):
    known = model(name)
    attention = known.groups[0].attention
    facts = CheckpointFacts(
        architecture=name,
        digest="sha256:0",
        dtype="bf16",
        layers=known.layers,
        hidden_size=known.hidden_size,
        heads=attention.heads,
        kv_heads=attention.kv_heads,
        head_dim=attention.head_dim,
        vocab_size=known.vocab_size,
        max_position_embeddings=known.max_position_embeddings,
        parameters=known.parameters,
        weight_bytes=2 * known.parameters,
        embedding_bytes=2 * known.vocab_size * known.hidden_size,
        tied_embeddings=known.tied_embeddings,
        attention_bias=attention.bias,
        qk_norm=attention.qk_norm,
    )

    found = architecture_from_facts(facts)

    assert found.groups == known.groups
    assert found.unverified == ()
    for tp in (1, 2, 4):
        for weights in ("bf16", "fp8", "int4"):
            try:
                wanted = footprint(known, weights, tensor_parallel=tp)
            except InputError:
                continue
            assert footprint(found, weights, tensor_parallel=tp) == wanted


@given(
    excess=st.integers(-1_000_000, 5_000_000_000),
    parameters=st.integers(1, 3_000_000_000),
    layers=st.integers(1, 100),
)
def test_inspected_bytes_are_kept_to_the_last_one(excess: int, parameters: int, layers: int):
    weight_bytes_of = 2_471_628_800 + excess
    facts = CheckpointFacts(
        **LLAMA_1B | {"weight_bytes": weight_bytes_of, "parameters": parameters, "layers": layers}
    )

    found = architecture_from_facts(facts)

    assert footprint(found, "bf16").weight_bytes == weight_bytes_of
    assert (found.unverified == ()) == (found.parameters == parameters)
    assert found.unverified in {(), (MLP_SIZE,)}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("model.embed_tokens.weight", TensorKind.EMBEDDING),
        ("lm_head.weight", TensorKind.HEAD),
        ("model.layers.*.self_attn.q_proj.qweight", TensorKind.ATTENTION),
        ("model.layers.*.self_attn.q_norm.weight", TensorKind.NORM),
        ("model.layers.*.self_attn.kv_a_layernorm.weight", TensorKind.NORM),
        ("model.layers.*.input_layernorm.weight", TensorKind.NORM),
        ("model.norm.weight", TensorKind.NORM),
        ("model.layers.*.mlp.gate.weight", TensorKind.ROUTER),
        ("model.layers.*.mlp.router.bias", TensorKind.ROUTER),
        ("model.layers.*.block_sparse_moe.gate.weight", TensorKind.ROUTER),
        ("model.layers.*.block_sparse_moe.experts.*.w1.weight", TensorKind.EXPERT),
        ("model.layers.*.mlp.experts.*.gate_proj.weight_scale_inv", TensorKind.EXPERT),
        ("model.layers.*.mlp.experts.gate_up_proj_blocks", TensorKind.EXPERT),
        ("model.layers.*.mlp.shared_experts.up_proj.weight", TensorKind.SHARED_EXPERT),
        ("model.layers.*.mlp.shared_expert_gate.weight", TensorKind.ROUTER),
        ("model.layers.*.mlp.gate_proj.weight", TensorKind.MLP),
        ("vision_tower.encoder.layers.*.self_attn.q_proj.weight", TensorKind.OTHER),
        ("multi_modal_projector.norm.weight", TensorKind.OTHER),
    ],
)
def test_a_stored_tensors_kind_is_told_from_its_name(name: str, kind: TensorKind):
    assert kind_of(name) is kind


def test_our_own_names_are_of_the_kinds_that_we_gave_them():
    for name in known_models():
        for tensor in model(name).tensors:
            assert kind_of(tensor.name) is tensor.kind, tensor.name


def test_kinds_add_up_to_the_whole():
    found = model("DeepSeek-V3")
    form = precision("fp8_block")
    kinds = weight_bytes(found, form, rank_tensors(found, form, 8), 8)

    assert sum(kinds.values()) == of("DeepSeek-V3", "fp8_block", tp=8).weight_bytes
    assert set(kinds) == set(TensorKind) - {TensorKind.OTHER, TensorKind.RECURRENT}
    matrices, blocks = 58 * 256 * 3, (7168 // 128) * (2048 // 8 // 128)
    assert kinds[TensorKind.EXPERT] == matrices * (7168 * 2048 // 8 + 4 * blocks)
    assert kinds[TensorKind.SHARED_EXPERT] == 58 * 3 * (7168 * 2048 // 8 + 4 * blocks)


def test_fp32_takes_its_bytes_and_is_no_faster_than_sixteen_bits() -> None:
    where = hardware("H100-80GB-SXM")
    wide, half = (of("Llama-3.1-8B", form, form, sku=where.sku) for form in ("fp32", "bf16"))
    steps = [StepModel(each, where, Coefficients()) for each in (wide, half)]

    assert (wide.compute, wide.weight_bytes) == ("fp32", 2 * half.weight_bytes)
    assert steps[0].flops == steps[1].flops
    assert steps[0].decode_s(8, 512).total > steps[1].decode_s(8, 512).total
