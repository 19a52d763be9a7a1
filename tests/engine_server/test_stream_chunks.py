"""What is written for every token is made from parts; it equals what the libraries would write as a whole."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.exposition import generate_latest

from tangram_engine.serve.generation import Delta
from tangram_engine.serve.http.jsonio import dumps
from tangram_engine.serve.local_metrics import LocalCounter, LocalHistogram
from tangram_engine.serve.replies import Chat, Completion
from tangram_engine.serve.text.tokenizer import TextTools

TOOLS = TextTools(None, longest_token=None)  # type: ignore[arg-type]  # only for logprobs
LABELS = {"model_name": 'a\n"b"', "engine": "0"}
BOUNDS = (0.001, 1, 2.5, 16384)


@pytest.mark.parametrize("dialect", [Chat, Completion])
@pytest.mark.parametrize("usage_in_chunks", [False, True])
@given(texts=st.lists(st.tuples(st.integers(0, 2), st.text()), max_size=6))
def test_a_chunk_of_text_is_the_json_of_its_object(
    dialect: type[Chat | Completion], usage_in_chunks: bool, texts: list[tuple[int, str]]
) -> None:
    one = dialect('the "model"', TOOLS, usage_in_chunks=usage_in_chunks)
    for index, text in [*texts, (0, "\0"), (1, "\ud800"), (0, "\u2028</script>")]:
        delta = Delta(index, text)
        assert one.chunk(delta) == (dumps(one._chunk(delta)) if text else b"")


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from(BOUNDS)))
def test_local_metrics_read_as_those_of_the_client_library(values: list[float]) -> None:
    disable_created_metrics()  # type: ignore[no-untyped-call]
    theirs, ours = CollectorRegistry(), CollectorRegistry()
    histogram = Histogram("vllm:x", "Text", tuple(LABELS), registry=theirs, buckets=BOUNDS)
    counter = Counter("vllm:y", "Text", tuple(LABELS), registry=theirs)
    local_histogram = LocalHistogram("vllm:x", "Text", LABELS, BOUNDS, ours)
    local_counter = LocalCounter("vllm:y", "Text", LABELS, ours)
    counter.labels(*LABELS.values())

    for value in values:
        histogram.labels(*LABELS.values()).observe(value)
        counter.labels(*LABELS.values()).inc()
        local_histogram.observe(value)
        local_counter.value += 1
    histogram.labels(*LABELS.values())

    assert generate_latest(ours) == generate_latest(theirs)
