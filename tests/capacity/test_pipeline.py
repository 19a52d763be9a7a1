"""Stages of a pipeline: what one of them holds, and how long a batch takes through all of them."""

import pytest

from tangram.capacity.hardware import hardware
from tangram.capacity.memory.footprint import footprint
from tangram.capacity.sizing.assessment_cache import assessment_cache
from tangram.capacity.sizing.request import SizingRequest
from tangram.capacity.steps.step_model import Coefficients, StepModel
from tangram.catalog import InputError, known_model
from tangram.fleet import Shape
from tangram.fleet.lengths import around

SMALL, LARGE = known_model("Llama-3.1-8B"), known_model("Llama-3.1-405B")
ENGINE = Coefficients(reduce_s=8e-6, step_s=1e-3, layer_s=3e-5)


def replica(tensor=1, stages=1, sku="L4", model=SMALL):
    on = hardware(sku, ranks=tensor * stages)
    return StepModel(footprint(model, "bf16", "bf16", tensor, on, stages), on, ENGINE)


@pytest.mark.parametrize(("stages", "layers"), [(2, 63), (4, 32), (8, 16)])
def test_a_stage_holds_its_layers_and_one_of_embedding_and_head(stages, layers):
    """405B has 126 layers: of four stages the heaviest has 32."""
    whole, stage = (footprint(LARGE, "bf16", pipeline_parallel=count) for count in (1, stages))
    table = LARGE.vocab_size * LARGE.hidden_size * 2

    assert stage.layers == layers
    body = (whole.weight_bytes - 2 * table) * layers / 126
    assert stage.weight_bytes == pytest.approx(body + table, rel=1e-6)
    assert stage.kv_bytes(1000) == pytest.approx(whole.kv_bytes(1000) * layers / 126)
    assert stages * stage.weight_bytes >= whole.weight_bytes


def test_ranks_without_a_kv_head_of_their_own_keep_copies():
    """405B has 8 KV heads: 16 ranks hold two copies, 8 ranks one each."""
    eight, sixteen = (footprint(LARGE, "bf16", tensor_parallel=ranks) for ranks in (8, 16))

    assert sixteen.kv_bytes(1000) == eight.kv_bytes(1000)
    assert 8 * eight.kv_bytes(1000) == footprint(LARGE, "bf16").kv_bytes(1000)


def test_a_token_alone_takes_the_way_through_all_stages():
    """Every stage reads its part of the weights, one after the other; tensor parallelism reads at once."""
    one, pipeline, tensor = replica(), replica(stages=4), replica(tensor=4)

    alone = pipeline.decode_s(1, 1000)
    # Four heaviest stages read four heads, and four steps are begun.
    assert one.decode_s(1, 1000).total < alone.total < 1.35 * one.decode_s(1, 1000).total
    assert 0 < alone.communication_s < tensor.decode_s(1, 1000).communication_s
    assert tensor.decode_s(1, 1000).total < alone.total / 2


def test_a_full_pipeline_decodes_several_batches_at_once():
    """Reading the KV cache of 64 sequences takes a quarter of the time: each stage reads that of 16."""
    one, pipeline = replica().decode_s(64, 2000), replica(stages=4).decode_s(64, 2000)

    assert pipeline.kv_s == pytest.approx(one.kv_s / 4)


def test_a_prompt_passes_the_stages_whole():
    assert replica(stages=4).prefill_s(2000) > replica().prefill_s(2000)


def test_prompts_of_other_requests_delay_a_stage_alone():
    """So a pipeline carries more prompts than one GPU of the same speed."""
    request = SizingRequest(
        input_tokens=around(2000), output_tokens=around(20), rps=1e-3, engine="vllm", max_model_len=4096
    )
    cache = assessment_cache(SMALL, request)

    one, pipeline = (cache.assessment(Shape("L4", "gpu", pipeline_parallel=stages)).rate for stages in (1, 4))

    assert 2 * one < pipeline < 5 * one


@pytest.mark.parametrize("stages", [0, 127])
def test_stages_that_no_layer_is_left_for_are_refused(stages):
    with pytest.raises(InputError, match=f"{stages} stages cannot share the 126 layers of Llama-3.1-405B"):
        footprint(LARGE, "bf16", pipeline_parallel=stages)
