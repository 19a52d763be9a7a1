"""What a process remembers of models: the same answers as asking anew, and no more of them with time."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tangram.capacity.sizing import Rejection, ServingShape, SizingRequest, size
from tangram.capacity.sizing.assess import Assessor
from tangram.capacity.sizing.assessment_cache import KINDS, assessment_cache
from tangram.capacity.sizing.candidate_shapes import candidate_shapes, catalog_devices
from tangram.catalog import known_model, known_models, skus
from tangram.catalog.prices import Prices
from tangram.fleet import WHOLE_GPU, Shape

PRICED = Prices(dict.fromkeys(skus(), 2.0))
BOARDS = ("A100-80GB-SXM", "H100-80GB-SXM", "L40S", "A30")
CHAT = SizingRequest(1024, 256, 1e-3, ttft_ms=500, tpot_ms=40)
SMALL = known_model("llama-3.1-8b")

requests = st.builds(
    SizingRequest,
    input_tokens=st.integers(1, 6000),
    output_tokens=st.integers(1, 2000),
    rps=st.just(1e-3),
    ttft_ms=st.sampled_from([None, 20, 100, 500, 3000]),
    tpot_ms=st.sampled_from([None, 5, 10, 25, 60]),
    percentile=st.sampled_from([50, 90, 99]),
    kv_precision=st.sampled_from(["bf16", "fp8"]),
    max_running=st.sampled_from([1, 64, 256]),
)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(known_models()), requests, st.data())
def test_it_answers_as_the_assessment_that_tangram_size_prints(
    name: str, request: SizingRequest, data: st.DataObject
) -> None:
    model = known_model(name)
    shape = data.draw(st.sampled_from(list(candidate_shapes(model, catalog_devices(BOARDS)))))

    kept = [assessment_cache(model, request).assessment(shape) for _ in range(2)]
    anew = size(model, request, PRICED, [shape])

    assert kept[0] is kept[1]
    for row in anew.rows:
        assert kept[0] == ServingShape(shape, row.max_rate, 0.0, row.unverified)
    for rejection in anew.rejected:
        assert kept[0] == replace(rejection, relaxation=None)
        assert assessment_cache(model, request).relaxation(kept[0], PRICED) == rejection.relaxation


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(known_models()), requests, st.floats(1e-6, 1e6))
def test_what_a_replica_carries_does_not_depend_on_how_much_is_asked_for(
    name: str, request: SizingRequest, rps: float
) -> None:
    assessor, shape = Assessor(known_model(name), PRICED), Shape("H100-80GB-SXM", WHOLE_GPU, 1, "bf16")
    more, less = (assessor.fit(shape, each) for each in (replace(request, rps=rps), request))

    if isinstance(less, Rejection):
        assert more == less
    else:
        assert assessor.serving(more) == assessor.serving(less)


def test_a_price_is_among_what_would_help_only_where_there_is_none() -> None:
    known, shape = (
        assessment_cache(SMALL, replace(CHAT, tpot_ms=1.0)),
        Shape("GB200-186GB", WHOLE_GPU, 1, "bf16"),
    )
    rejection = known.assessment(shape)
    assert isinstance(rejection, Rejection)

    with_price = known.relaxation(rejection, Prices({"GB200-186GB": 9.0}))
    without = known.relaxation(rejection, Prices())

    assert with_price is not None
    assert without is not None
    assert "price" not in with_price.text
    assert "price" in without.text


def test_idle_latency_is_none_where_the_model_does_not_fit() -> None:
    known = assessment_cache(known_model("llama-3.1-70b"), CHAT)

    assert known.idle(Shape("L4", WHOLE_GPU, 1, "bf16")) is None
    assert known.idle(Shape("H200-141GB-SXM", WHOLE_GPU, 2, "bf16")) is not None


def test_traffic_that_changes_for_days_leaves_a_bounded_memory() -> None:
    for tokens in range(1, KINDS + 50):
        assessment_cache(SMALL, replace(CHAT, input_tokens=tokens))

    assert assessment_cache.cache_info().currsize == KINDS


@pytest.fixture(autouse=True)
def nothing_remembered() -> None:
    assessment_cache.cache_clear()
