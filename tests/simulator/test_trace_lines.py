"""Traces are read from lines; whatever is wrong is named with its line."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram.capacity.load.traffic import SimulatedRequest
from tangram.catalog import InputError
from tangram.simulator.traffic import trace_lines
from tangram.simulator.traffic.trace_lines import parse_trace
from tests.support.examples import examples

HEADER = "arrival_s,input_tokens,output_tokens"


def test_a_csv_trace_is_read_with_its_clients() -> None:
    trace = parse_trace([f"{HEADER},client_id\n", "0.5,100,7,a\n", "\n", "2,3,4,b\n"], "t.csv")

    assert trace.requests == (SimulatedRequest(0.5, 100, 7), SimulatedRequest(2.0, 3, 4))
    assert trace.clients == ("a", "b")
    assert trace.of_client("b").requests == (SimulatedRequest(2.0, 3, 4),)


def test_a_trace_of_json_lines_is_read_with_its_prefix_blocks() -> None:
    row = {"arrival_s": 0.0, "input_tokens": 1024, "output_tokens": 5, "prefix_block_ids_512": [0, 9]}

    trace = parse_trace([json.dumps(row)], "t.jsonl")

    assert trace.requests == (SimulatedRequest(0.0, 1024, 5, (0, 9)),)
    assert trace.clients == ()


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "t: has no requests"),
        ([HEADER], "t: has no requests"),
        (["arrival_s,output_tokens", "1,2"], "t: line 1: is no header of a trace: it lacks input_tokens"),
        ([f"{HEADER},arrival_s", "1,2,3,4"], "t: line 1: names a column twice"),
        ([HEADER, "1,2"], "t: line 2: has 2 cells under 3 columns"),
        ([HEADER, "0,1,1", "nan,1,1"], "t: line 3: arrival_s is 'nan', not a number"),
        ([HEADER, "-1,1,1"], "t: line 2: arrival_s is -1.0, not from 0 to 31622400"),
        ([HEADER, "1e300,1,1"], "t: line 2: arrival_s is 1e+300, not from 0 to 31622400"),
        ([HEADER, "1,0,1"], "t: line 2: input_tokens is 0, not from 1 to 10000000"),
        ([HEADER, "1,1,1.5"], "t: line 2: output_tokens is '1.5', not a whole number"),
        ([HEADER, "1,1,10000001"], "t: line 2: output_tokens is 10000001, not from 1 to 10000000"),
        ([HEADER, "2,1,1", "1,1,1"], "t: line 3: arrives at 1.0, before the request of an earlier line"),
        ([f"{HEADER},client_id", "1,1,1,"], "t: line 2: client_id is '', not a name"),
        (['{"arrival_s": 1'], "t: line 1: is not JSON"),
        (['{"arrival_s": 1, "input_tokens": true, "output_tokens": 1}'], "t: line 1: input_tokens is True"),
        (['{"arrival_s": 1, "input_tokens": 1e99, "output_tokens": 1}'], "t: line 1: input_tokens is 9999"),
        (['{"arrival_s": 1' + "0" * 400 + "}"], "t: line 1: arrival_s is 1000"),
        (['{"arrival_s": 1, "input_tokens": 1, "output_tokens": 1}', "[]"], "line 2: is [], not an object"),
        (
            ['{"arrival_s": 1, "input_tokens": 1, "output_tokens": 1, "prefix_block_ids_512": [-1]}'],
            "t: line 1: prefix_block_ids_512 is [-1], not a list of at most",
        ),
        (
            [
                '{"arrival_s": 1, "input_tokens": 1, "output_tokens": 1, "client_id": 7}',
                '{"arrival_s": 1, "input_tokens": 1, "output_tokens": 1}',
            ],
            "t: line 2: has no client_id",
        ),
        ([HEADER, "1,1,1", "9" * 1_000_001], "t: line 3: has more than 1,000,000 characters"),
    ],
)
def test_what_is_no_trace_is_refused_with_its_line(lines: list[str], message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_trace(lines, "t")

    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_more_rows_than_the_bound_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_lines, "MAX_ROWS", 3)

    with pytest.raises(InputError, match="has more than 3 lines"):
        parse_trace((line for line in [HEADER, "1,1,1", "1,1,1", "1,1,1"]), "t")


@examples(100)
@given(st.lists(st.text(max_size=40), max_size=5), st.booleans())
def test_any_text_is_a_trace_or_an_input_error(lines: list[str], with_header: bool) -> None:
    try:
        trace = parse_trace([HEADER, *lines] if with_header else lines, "t")
    except InputError:
        return

    assert trace.requests
