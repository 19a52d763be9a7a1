import math
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from benchmarks.open_loop import open_loop
from tangram.capacity.sizing import Constraint, SizedShape, SizingRequest, size
from tangram.capacity.sizing.assess import MEMORY_CAPACITY
from tangram.capacity.sizing.candidate_shapes import (
    candidate_shapes,
    catalog_devices,
    precisions_on,
    slices_of,
)
from tangram.catalog import InputError, gpu, known_model, profile, skus
from tangram.catalog.prices import Prices
from tangram.fleet import WHOLE_GPU, Shape

SMALL, LARGE, EXPERTS = known_model("llama-3.1-8b"), known_model("llama-3-70b"), known_model("gpt-oss-120b")
CHAT = SizingRequest(1024, 256, 4.0, ttft_ms=500, tpot_ms=40)


@pytest.fixture(scope="module", params=[SMALL, LARGE, EXPERTS], ids=lambda model: model.name)
def model(request):
    return request.param


@pytest.fixture(scope="module")
def found(model):
    return size(model, CHAT)


def test_every_shape_serves_or_has_its_reason_and_none_does_both(model, found):
    answered = [row.shape for row in found.rows] + [each.shape for each in found.rejected]

    assert sorted(answered) == sorted(candidate_shapes(model, catalog_devices(skus())))
    assert len(set(answered)) == len(answered)


def test_rows_come_from_the_cheapest_then_by_gpus_then_by_name(found):
    order = [(round(row.usd_per_hour, 9), round(row.gpus, 9), str(row.shape)) for row in found.rows]

    assert order == sorted(order)


def test_a_row_fits_and_meets_its_objectives_at_its_load(found):
    assert found.rows
    for row in found.rows:
        assert row.budget.fits
        assert row.ttft_s <= 0.5
        assert row.tpot_s <= 0.040
        assert row.latency.utilisation < 1
        assert 0 <= row.kv_used <= row.budget.kv


def test_replicas_are_just_enough(found):
    for row in found.rows:
        assert row.replicas * row.max_rate >= CHAT.rps * (1 - 1e-6)
        assert row.replicas == 1 or (row.replicas - 1) * row.max_rate < CHAT.rps


def test_a_row_costs_its_gpus_and_a_slice_its_dominant_share(found):
    for row in found.rows:
        board, shape = gpu(row.shape.sku), row.shape
        part = 1.0 if shape.profile == WHOLE_GPU else profile(shape.sku, shape.profile).dominant_share
        assert row.usd_per_hour == pytest.approx(
            row.replicas * shape.tensor_parallel * part * board.price_per_hour
        )
        assert row.usd_per_million_tokens == pytest.approx(row.usd_per_hour / (4 * 256 * 3600 / 1e6))


def test_slices_have_no_peers_and_no_slice_is_a_whole_board(model):
    for shape in candidate_shapes(model, catalog_devices(skus())):
        if shape.profile != WHOLE_GPU:
            assert shape.tensor_parallel == 1
            assert profile(shape.sku, shape.profile).dominant_share < 1


def test_speed_of_slices_is_marked_as_never_measured(found):
    of_slices = [row for row in found.rows if row.shape.profile != WHOLE_GPU]

    assert all("speed of slices" in row.unverified for row in of_slices)
    assert not any("speed of slices" in row.unverified for row in found.rows if row not in of_slices)


def test_slices_that_differ_in_media_engines_alone_are_looked_at_once():
    names = [each.name for each in slices_of(gpu("H100-80GB-SXM"))]

    assert names == ["1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb"]


@pytest.mark.parametrize(
    ("sku", "formats"),
    [
        ("T4", ("bf16", "int8", "int4")),
        ("A100-80GB-SXM", ("bf16", "int8", "int4")),
        ("L40S", ("bf16", "fp8", "int4")),
        ("H100-80GB-SXM", ("bf16", "fp8", "int4")),
        ("B200-180GB-SXM", ("bf16", "fp8", "nvfp4")),
    ],
)
def test_formats_are_the_checkpoints_own_first_then_what_the_gpu_is_good_at(sku, formats):
    assert precisions_on(SMALL, gpu(sku)) == formats


def test_a_checkpoint_in_fp32_is_served_in_bf16_as_engines_cast_it():
    wide = replace(SMALL, dtype="fp32")
    found = size(
        wide,
        SizingRequest(1024, 256, 1.0),
        among=candidate_shapes(wide, catalog_devices(("H100-80GB-SXM", "T4"), slices=False)),
    )

    assert precisions_on(wide, gpu("H100-80GB-SXM")) == ("bf16", "fp8", "int4")
    assert {row.shape.precision for row in found.rows} >= {"bf16", "fp8", "int8", "int4"}
    assert "fp32" not in {each.shape.precision for each in (*found.rows, *found.rejected)}


def test_a_four_bit_checkpoint_is_served_as_it_is():
    assert precisions_on(EXPERTS, gpu("H100-80GB-SXM")) == (EXPERTS.precision,)


@pytest.mark.parametrize(
    ("shape", "constraint"),
    [
        (Shape("T4", WHOLE_GPU, 1, "fp8"), Constraint.PRECISION),
        (Shape("A100-80GB-SXM", WHOLE_GPU, 1, "fp8"), Constraint.PRECISION),
        (Shape("H100-80GB-SXM", WHOLE_GPU, 1, "bf16"), Constraint.MEMORY),
        (Shape("H100-80GB-SXM", "1g.10gb", 1, "int4"), Constraint.MEMORY),
        (Shape("B200-180GB-SXM", "3g.90gb", 1, "fp8"), Constraint.MEMORY_UNKNOWN),
        (Shape("L40S", WHOLE_GPU, 4, "bf16"), Constraint.TPOT),
        (Shape("GB200-186GB", WHOLE_GPU, 1, "bf16"), Constraint.PRICE),
    ],
    ids=str,
)
def test_a_70b_model_dies_of(shape, constraint):
    (rejection,) = size(LARGE, CHAT, among=[shape]).rejected

    assert rejection.constraint is constraint


def test_a_model_that_cannot_be_split_dies_of_tensor_parallelism_and_lives_with_less():
    odd = known_model("Gemma-2B")  # 8 query heads
    three = replace(odd.groups[0], attention=replace(odd.groups[0].attention, heads=6, kv_heads=6))
    odd = replace(odd, groups=(three,))

    found = size(odd, SizingRequest(100, 100, 1.0), among=[Shape("L40S", WHOLE_GPU, 4, "bf16")])

    assert found.rejected[0].constraint is Constraint.TENSOR_PARALLEL
    assert found.rejected[0].relaxation.changes == (("tensor-parallel", "2"),)


def test_the_8b_model_in_16_bits_is_too_slow_on_an_l4():
    """Sixteen gigabytes at 300 GB/s: no objective below 53 ms can be met whatever the engine does."""
    (rejection,) = size(SMALL, replace(CHAT, ttft_ms=None), among=[Shape("L4", WHOLE_GPU)]).rejected

    assert rejection.constraint is Constraint.TPOT
    assert float(dict(rejection.relaxation.changes)["tpot-ms"]) >= 50


def revived(model, rejection, request, prices=Prices()):  # noqa: B008 - frozen
    """Apply a relaxation by the names of the flags, as a person would, and assess from scratch."""
    shape, overrides = rejection.shape, dict(prices.overrides)
    for field, value in rejection.relaxation.changes:
        match field:
            case "precision":
                shape = replace(shape, precision=value)
            case "tensor-parallel":
                shape = replace(shape, tensor_parallel=int(value))
            case "price":
                overrides[value] = 1.0
            case "kv-precision":
                request = replace(request, kv_precision=value)
            case "max-model-len" | "max-running":
                request = replace(request, **{field.replace("-", "_"): int(value)})
            case "ttft-ms" | "tpot-ms":
                request = replace(request, **{field.replace("-", "_"): float(value)})
            case _:
                pytest.fail(field)
    found = size(model, request, Prices(overrides), [shape])
    return (*found.rows, *found.rejected)[0]


def test_every_relaxation_revives_its_shape(model, found):
    relaxed = [each for each in found.rejected if each.relaxation is not None]

    assert relaxed
    for rejection in relaxed:
        assert isinstance(revived(model, rejection, CHAT), SizedShape), rejection


CATALOG = sorted(candidate_shapes(SMALL, catalog_devices(skus())), key=str)
REQUESTS = st.builds(
    SizingRequest,
    input_tokens=st.integers(1, 20_000),
    output_tokens=st.integers(1, 4_000),
    rps=st.floats(0.01, 1000),
    ttft_ms=st.none() | st.floats(1, 10_000),
    tpot_ms=st.none() | st.floats(0.1, 200),
    percentile=st.sampled_from([50, 90, 95, 99]),
    cv=st.floats(0, 5),
    kv_precision=st.sampled_from(["bf16", "fp8"]),
    max_running=st.sampled_from([1, 16, 256, 1024]),
)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([SMALL, LARGE, EXPERTS, known_model("DeepSeek-V3"), known_model("Gemma-3-27B")]),
    st.sampled_from(CATALOG),
    REQUESTS,
)
def test_whatever_is_asked_a_shape_serves_or_says_why_and_what_would_revive_it_does(model, shape, request):
    assume(request.input_tokens + request.output_tokens <= model.max_position_embeddings)

    found = size(model, request, among=[shape])

    for row in found.rows:
        assert row.budget.fits
        assert row.replicas * row.max_rate >= request.rps * (1 - 1e-6)
        assert request.tpot_ms is None or row.tpot_s * 1e3 <= request.tpot_ms
        assert request.ttft_ms is None or row.ttft_s * 1e3 <= request.ttft_ms
        assert math.isfinite(row.usd_per_hour)
        assert row.usd_per_hour > 0
    for rejection in found.rejected:
        if rejection.relaxation is not None:
            assert isinstance(revived(model, rejection, request), SizedShape)


@settings(max_examples=30, deadline=None)
@given(REQUESTS, st.floats(1, 10))
def test_more_load_is_never_cheaper_and_looser_objectives_never_dearer(request, factor):
    among = [Shape("L40S", WHOLE_GPU, 1, "fp8"), Shape("H100-80GB-SXM", "3g.40gb", 1, "fp8")]

    def costs(asked):
        return {row.shape: row.usd_per_hour for row in size(SMALL, asked, among=among).rows}

    now, loaded = costs(request), costs(replace(request, rps=request.rps * factor))
    looser = replace(
        request,
        ttft_ms=request.ttft_ms and request.ttft_ms * factor,
        tpot_ms=request.tpot_ms and request.tpot_ms * factor,
    )
    relaxed = costs(looser)

    assert now.keys() == loaded.keys()
    for shape, cost in now.items():
        assert loaded[shape] >= cost
        assert relaxed[shape] <= cost


def test_memory_is_the_wall_where_more_of_it_alone_carries_more(found):
    for row in found.rows:
        if row.wall != MEMORY_CAPACITY:
            continue
        endless = replace(row.limits, kv_tokens=None)
        latency = open_loop(row.model, endless, 1024, 256, row.max_rate * 1.1)
        assert latency.ttft_s.p90 <= 0.5
        assert latency.tpot_s.p90 <= 0.040


@pytest.mark.parametrize(
    ("name", "shape", "wall"),
    [
        ("llama-3.1-8b", Shape("H100-80GB-SXM", "1g.10gb", 1, "int4"), MEMORY_CAPACITY),
        ("llama-3-70b", Shape("RTX-PRO-6000-SERVER", WHOLE_GPU, 8, "fp8"), "interconnect"),
        ("llama-3-70b", Shape("H100-80GB-SXM", WHOLE_GPU, 4, "bf16"), "memory bandwidth"),
        ("Qwen2.5-0.5B", Shape("B200-180GB-SXM", WHOLE_GPU, 1, "bf16"), "launch overhead"),
    ],
    ids=str,
)
def test_the_wall_is_the_one_that_people_expect(name, shape, wall):
    (row,) = size(known_model(name), replace(CHAT, ttft_ms=1000, max_model_len=4096), among=[shape]).rows

    assert row.wall == wall


def test_where_the_first_token_is_nearest_to_its_limit_the_wall_is_that_of_prompts():
    """On four A30 a prompt of 70B takes a second, and decoding, which waits for memory, has time to spare."""
    request = SizingRequest(1024, 256, 1.0, ttft_ms=1000, tpot_ms=40)
    (row,) = size(known_model("Llama-3-70B"), request, among=[Shape("A30", WHOLE_GPU, 4, "int4")]).rows

    assert row.model.decode_s(1, 1024).wall == "memory bandwidth"
    assert row.wall == "compute"


def test_a_gpu_without_a_price_asks_for_one_and_serves_with_it():
    among = [Shape("GB200-186GB", WHOLE_GPU, 1, "fp8")]

    (without,) = size(SMALL, CHAT, among=among).rejected
    (with_price,) = size(SMALL, CHAT, Prices({"GB200-186GB": 9.0}), among=among).rows

    assert without.relaxation.text == "price for GB200-186GB"
    assert with_price.usd_per_hour == pytest.approx(9.0)
    assert not with_price.default_price


def test_a_gpu_without_a_price_is_told_what_else_it_needs():
    among = [Shape("GB200-186GB", "1g.47gb", 1, "bf16")]

    (rejection,) = size(known_model("Qwen3-32B"), replace(CHAT, tpot_ms=80), among=among).rejected

    assert rejection.constraint is Constraint.MEMORY
    assert rejection.relaxation.text == "fp8 and price for GB200-186GB"


@pytest.mark.parametrize("sku", skus())
def test_every_gpu_of_the_catalog_can_be_sized(sku):
    found = size(known_model("Qwen3-0.6B"), SizingRequest(100, 100, 1.0), among=[Shape(sku, WHOLE_GPU)])

    assert len(found.rows) + len(found.rejected) == 1


def test_without_a_length_the_engine_is_to_accept_what_the_traffic_brings():
    """P99 of a lognormal whose P90 is twice its mean is 4.5 x the mean."""
    assert SizingRequest(1024, 256, 1.0).model_length(SMALL) == 8192
    assert SizingRequest(50_000, 2000, 1.0).model_length(SMALL) == SMALL.max_position_embeddings
    assert SizingRequest(10, 10, 1.0, max_model_len=100).model_length(SMALL) == 100


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("input", {"input_tokens": 0}),
        ("input", {"input_tokens": -5}),
        ("output", {"output_tokens": 0}),
        ("output", {"output_tokens": 10**12}),
        ("rps", {"rps": 0.0}),
        ("rps", {"rps": -1.0}),
        ("rps", {"rps": 1e-30}),
        ("rps", {"rps": math.nan}),
        ("rps", {"rps": math.inf}),
        ("ttft-ms", {"ttft_ms": 0.0}),
        ("ttft-ms", {"ttft_ms": math.nan}),
        ("tpot-ms", {"tpot_ms": -40.0}),
        ("tpot-ms", {"tpot_ms": math.inf}),
        ("cv", {"cv": -0.1}),
        ("cv", {"cv": math.nan}),
        ("percentile", {"percentile": 42}),
        ("engine-version", {"engine_version": "0.18.0"}),
        ("kv-precision", {"kv_precision": "fp4"}),
        ("max-running", {"max_running": 0}),
        ("max-model-len", {"max_model_len": 0}),
        ("max-model-len", {"max_model_len": 1279}),
    ],
    ids=str,
)
def test_absurd_requests_are_refused_by_name(field, wrong):
    with pytest.raises(InputError) as refused:
        replace(CHAT, **wrong)

    assert refused.value.field == field


@pytest.mark.parametrize(
    ("field", "request_"),
    [
        ("input", SizingRequest(200_000, 1, 1.0)),
        ("max-model-len", SizingRequest(100, 100, 1.0, max_model_len=200_000)),
    ],
)
def test_requests_beyond_the_model_are_refused(field, request_):
    with pytest.raises(InputError) as refused:
        size(SMALL, request_)

    assert refused.value.field == field
