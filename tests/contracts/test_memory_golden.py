"""Engine and operator never import each other; what both say a model takes up is in one file."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tangram.capacity.memory.budget import MemoryBudget, reserve_bytes
from tangram.capacity.memory.engine_buffers import (
    EngineSettings,
    captured_sizes,
    kernel_buffers,
    rows_bytes,
    scratch_bytes,
    step_tokens,
)
from tangram.capacity.memory.footprint import footprint
from tangram.capacity.memory.weights import rank_tensors
from tangram.capacity.memory.weights import weight_bytes as operators_weight_bytes
from tangram.catalog.configs.model_config import architecture_from_config
from tangram.catalog.models.precision import precision
from tangram.fleet import CheckpointFacts
from tangram_engine.checkpoint.config import parse_config
from tangram_engine.run.ladder import captured_sizes as engines_captured_sizes
from tangram_engine.run.ladder import step_tokens as engines_step_tokens
from tangram_engine.run.memory import (
    BufferSizes,
    OutOfMemory,
    block_bytes,
    count_blocks,
    cuda_pool_bytes,
    dequantization_bytes,
    weight_bytes,
)
from tangram_engine.run.rows import device_rows_bytes
from tests.contracts.memory_golden import (
    ACCOUNTS,
    BUFFERS,
    CAPTURED,
    MEASURED_AGAIN,
    MODELS,
    SMS,
    STARTS,
    account,
    buffers,
    captured,
    start,
    step,
)
from tests.support.model_figures import footprint_from_facts

GOLDEN = json.loads(Path(__file__).with_name("memory_golden.json").read_text(encoding="utf-8"))
TORCH = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
models = pytest.mark.parametrize("wanted", GOLDEN["models"].values(), ids=list(GOLDEN["models"]))
quantised_models = pytest.mark.parametrize(
    "wanted", [wanted for wanted in GOLDEN["models"].values() if wanted["dtype"] != "fp32"]
)
steps = pytest.mark.parametrize(("sms", "tokens"), GOLDEN["steps"].items())
buffers_ = pytest.mark.parametrize("wanted", GOLDEN["buffers"].values(), ids=list(GOLDEN["buffers"]))
starts = pytest.mark.parametrize("wanted", GOLDEN["starts"].values(), ids=list(GOLDEN["starts"]))
KINDS_BYTES = 1024  # a column of numbers of the pool's rows, which neither side counts
accounts = pytest.mark.parametrize("wanted", GOLDEN["accounts"].values(), ids=list(GOLDEN["accounts"]))


def spec_of(wanted):
    return parse_config(wanted["config"], {}, wanted["dtype"])


def facts_of(wanted):
    """What `tangram-engine inspect` would report of such a checkpoint."""
    spec = spec_of(wanted)
    weights = wanted["weight_bytes"]
    return CheckpointFacts(
        architecture=spec.architecture,
        digest="",
        dtype=wanted["dtype"],
        layers=spec.layers,
        hidden_size=spec.hidden_size,
        heads=spec.heads,
        kv_heads=spec.kv_heads,
        head_dim=spec.head_dim,
        vocab_size=spec.vocab_size,
        max_position_embeddings=spec.max_position_embeddings,
        parameters=wanted["parameters"],
        weight_bytes=sum(weights.values()),
        embedding_bytes=weights["embedding"],
        tied_embeddings=spec.tied_embeddings,
        attention_bias=spec.attention_bias,
        qk_norm=spec.qk_norm,
    )


def architecture_of(wanted):
    return architecture_from_config(wanted["config"] | {"torch_dtype": long_name(wanted["dtype"])}, "x")


def long_name(dtype):
    return {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}[dtype]


def test_the_file_is_what_its_command_makes():
    """The models need transformers and half a minute: their names here, their numbers below."""
    assert GOLDEN["accounts"] == {name: account(*wanted) for name, wanted in ACCOUNTS.items()}
    assert GOLDEN["steps"] == {str(sms): step(sms) for sms in SMS}
    assert GOLDEN["buffers"] == {name: buffers(*wanted) for name, wanted in BUFFERS.items()}
    assert GOLDEN["captured"] == {str(most): captured(most) for most in CAPTURED}
    assert list(GOLDEN["starts"]) == list(STARTS)
    for name in MEASURED_AGAIN:
        assert GOLDEN["starts"][name] == start(*STARTS[name]), name
    assert {
        name: (wanted["config"], wanted["dtype"], wanted["block_size"])
        for name, wanted in GOLDEN["models"].items()
    } == MODELS


@models
def test_the_engine_knows_the_bytes_of_its_weights(wanted):
    assert weight_bytes(spec_of(wanted), TORCH[wanted["dtype"]]) == wanted["weight_bytes"]


@models
def test_the_engine_knows_the_bytes_of_a_block(wanted):
    found = block_bytes(spec_of(wanted), wanted["block_size"], TORCH[wanted["dtype"]])
    assert found == wanted["block_bytes"]


@models
def test_the_operator_knows_the_bytes_of_the_weights_from_a_config(wanted):
    architecture, form = architecture_of(wanted), precision(wanted["dtype"])
    found = operators_weight_bytes(architecture, form, rank_tensors(architecture, form, 1), 1)
    assert found == {kind: size for kind, size in wanted["weight_bytes"].items() if size}
    assert architecture.parameters == wanted["parameters"]


@quantised_models
def test_the_operator_knows_the_bytes_of_weights_that_are_quantised_while_they_are_read(wanted):
    architecture = architecture_of(wanted)
    for name, size in wanted["quantised_bytes"].items():
        form = precision(name)
        found = operators_weight_bytes(architecture, form, rank_tensors(architecture, form, 1), 1)
        assert sum(found.values()) == size


@quantised_models
def test_the_engine_knows_the_same_and_both_the_largest_matrix_that_it_dequantises(wanted):
    spec, dtype = spec_of(wanted), TORCH[wanted["dtype"]]
    for name, size in wanted["quantised_bytes"].items():
        assert sum(weight_bytes(spec, dtype, name).values()) == size
        sized = footprint(architecture_of(wanted), name, kv="bf16")
        assert sized.dequantised_bytes == dequantization_bytes(spec, dtype)


@steps
def test_engine_and_operator_take_steps_of_one_size(sms, tokens):
    assert engines_step_tokens(int(sms)) == step_tokens(int(sms)) == tokens


@buffers_
def test_the_engine_knows_the_bytes_of_its_rows(wanted):
    sizes = (wanted[key] for key in ("max_num_seqs", "max_model_len", "block_size", "vocab_size"))
    assert device_rows_bytes(*sizes) == wanted["rows"]


@buffers_
def test_the_operator_knows_the_bytes_of_rows_and_partial_results(wanted):
    limits = EngineSettings(wanted["max_model_len"], wanted["max_num_seqs"], block_size=wanted["block_size"])
    heads, head = wanted["heads"], wanted["head_dim"]
    made = replace(
        footprint_from_facts(facts_of(GOLDEN["models"]["Llama-3-8B"])),
        rope_dim=head,
        layers=3,
        attention_flops=((3 * 4.0 * heads * head, None),),
    )
    assert rows_bytes(wanted["vocab_size"], limits) == wanted["rows"]
    assert scratch_bytes(made, limits) == wanted["scratch"]


@pytest.mark.parametrize(("most", "sizes"), GOLDEN["captured"].items())
def test_engine_and_operator_capture_the_same_batch_sizes(most, sizes):
    assert list(engines_captured_sizes(int(most))) == list(captured_sizes(int(most))) == sizes


@starts
def test_the_engine_predicts_what_its_start_takes(wanted):
    spec, dtype = parse_config(wanted["config"], {}, wanted["dtype"]), TORCH[wanted["dtype"]]
    tokens = max(engines_step_tokens(wanted["sms"]), wanted["max_num_seqs"])
    buffers = BufferSizes(
        spec, dtype, wanted["block_size"], wanted["max_num_seqs"], tokens, True, wanted["form"] or None
    )
    length = wanted["max_model_len"]
    assert buffers.kept(length) == pytest.approx(wanted["kept"], abs=KINDS_BYTES)
    assert_covered(buffers.step(length), wanted)


@starts
def test_the_operator_predicts_what_the_engines_start_takes(wanted):
    architecture = architecture_of(wanted)
    held = footprint(architecture, wanted["form"] or wanted["dtype"], "bf16")
    if wanted["dtype"] == "fp32":  # the engine keeps the cache in the dtype of the model
        held = replace(held, kv=tuple((2 * size, window) for size, window in held.kv))
    running, length = wanted["max_num_seqs"], wanted["max_model_len"]
    limits = EngineSettings(length, running, block_size=wanted["block_size"]).on(wanted["sms"])
    kept, step = kernel_buffers(held, limits)
    found = kept + rows_bytes(held.vocab_size, limits) + held.dequantised_bytes
    assert found == pytest.approx(wanted["kept"], abs=KINDS_BYTES)
    assert_covered(step, wanted)


def assert_covered(predicted, wanted):
    """Never less than the largest step takes, and hardly more: within 1 % of the 8B models' steps."""
    few = 0 if wanted["max_num_seqs"] > 1 else 4 << 20  # no other request decodes beside the chunk
    assert wanted["step"] <= predicted <= 1.011 * wanted["step"] + few


@models
def test_the_operator_knows_the_bytes_of_the_cache(wanted):
    block = wanted["block_size"]
    assert footprint_from_facts(facts_of(wanted)).kv_bytes(block) == wanted["block_bytes"]
    halves = footprint(architecture_of(wanted), wanted["dtype"], kv="bf16").kv_bytes(block)
    assert halves == wanted["block_bytes"] // (2 if wanted["dtype"] == "fp32" else 1)


@pytest.mark.parametrize(
    "name", [name for name, wanted in GOLDEN["models"].items() if wanted["dtype"] != "fp32"]
)
def test_a_config_and_an_inspection_give_one_footprint(name):
    """Sizing from a config and planning from an inspection must not tell two stories (in 16 bits: a cache in
    fp32 exists in the bundled engine only).
    """
    wanted = GOLDEN["models"][name]
    seen = footprint_from_facts(facts_of(wanted))
    sized = footprint(architecture_of(wanted), wanted["dtype"], kv="bf16")
    norms_and_biases = 0.03 if name.startswith("tiny") else 0.001
    assert seen.linear_flops_per_token == pytest.approx(sized.linear_flops_per_token, rel=norms_and_biases)
    for field in (
        "layers", "hidden_size", "vocab_size", "weight_bytes", "dense_read_bytes", "kv", "compute",
        "head_flops_per_token", "attention_flops", "all_reduce_bytes_per_token", "rope_dim",
    ):  # fmt: skip
        assert getattr(seen, field) == getattr(sized, field), field


@accounts
def test_the_engine_gives_the_cache_what_the_rule_leaves(wanted):
    free = wanted["total"] - wanted["used"]
    pool = cuda_pool_bytes(free, wanted["total"], wanted["utilisation"], wanted["peak"])
    assert pool == wanted["pool_bytes"]
    if not wanted["fits"]:
        with pytest.raises(OutOfMemory):
            count_blocks(pool, wanted["block_bytes"], wanted["block_size"], wanted["max_model_len"])
        return
    blocks = count_blocks(pool, wanted["block_bytes"], wanted["block_size"], wanted["max_model_len"])
    assert blocks == wanted["blocks"]


@accounts
def test_the_operator_leaves_the_cache_the_same(wanted):
    total, per_token = wanted["total"], wanted["block_bytes"] / wanted["block_size"]
    cache = replace(footprint_from_facts(facts_of(GOLDEN["models"]["Llama-3-8B"])), kv=((per_token, None),))
    limits = EngineSettings(
        wanted["max_model_len"], 64, wanted["utilisation"], block_size=wanted["block_size"]
    )
    budget = MemoryBudget(
        cache,
        limits,
        total,
        reserve=reserve_bytes(total, wanted["utilisation"]),
        context=wanted["used"],
        graphs=0,
        collectives=0,
        workspace=0,
        activations=wanted["peak"],
        weights=0,
        unverified=(),
    )
    assert (budget.kv, budget.fits) == (wanted["pool_bytes"], wanted["fits"])
    assert max(0, budget.kv) // wanted["block_bytes"] == wanted["blocks"]
