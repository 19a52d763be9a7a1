"""Metrics pages and records of engines that others run: `tests/data/runtimes/README.md` says from where."""

import json
import re
from pathlib import Path

import pytest

from e2e.runtimes.stand_in import _NAMES
from tangram.fleet import MetricsDialect
from tangram.runtimes.flag_tables import flag_table
from tangram.scaling.queries import (
    ANSWER_LENGTH,
    ITL,
    KV_USAGE,
    OTHER_DIALECTS,
    PROMPT_LENGTH,
    RUNNING,
    TPOT,
    TTFT,
    WAITING,
    by_any_name,
)
from tangram.scaling.scrapes.page_layout import READ_BY_OPERATOR
from tangram.shell.measure.scraped_page import PageParser, PageProblem, PodPages, wanted_lines
from tests.runtimes.test_runtime_life import rendered
from tests.runtimes.test_runtime_pods import options

FOLDER = Path(__file__).parents[1] / "data" / "runtimes"
VLLM = json.loads((FOLDER / "vllm-0.32.0.json").read_text())
LLAMA = "meta-llama/Llama-3.1-8B-Instruct"


def engine(page, model):
    text = (FOLDER / f"{page}.metrics").read_bytes()
    (values,) = PageParser().parse(wanted_lines(text), model, PodPages()).values()
    return values


def value(values, name):
    return values.row[READ_BY_OPERATOR.columns[name]]


def within(values, histogram, edge):
    return values.row[READ_BY_OPERATOR.bucket_column(histogram, edge)]


def test_a_page_of_vllm_is_read_whole():
    values = engine("vllm-0.32.0", "tiny")

    assert values.lacking() == ()
    assert value(values, f"{TTFT}_count") == value(values, f"{TPOT}_count") == 3
    assert value(values, f"{PROMPT_LENGTH}_sum") / value(values, f"{PROMPT_LENGTH}_count") == 7
    assert value(values, f"{ANSWER_LENGTH}_sum") == 48
    assert value(values, f"{ITL}_count") == 45
    assert (value(values, RUNNING), value(values, WAITING), value(values, KV_USAGE)) == (0, 0, 0)


def test_a_page_of_sglang_adds_streamed_and_other_requests():
    values = engine("sglang-0.5.23", "m")

    assert values.lacking() == ()
    assert value(values, f"{TTFT}_count") == value(values, f"{TPOT}_count") == 50
    assert within(values, TTFT, 0.5) == 48
    assert within(values, TPOT, 0.025) == 50
    assert (value(values, RUNNING), value(values, WAITING), value(values, KV_USAGE)) == (3, 1, 0.31)
    assert value(values, f"{PROMPT_LENGTH}_sum") == 9000


def test_a_page_of_an_older_sglang_is_read_as_far_as_it_goes_and_what_it_lacks_is_told():
    values = engine("sglang-0.4", LLAMA)

    assert (value(values, RUNNING), value(values, WAITING), value(values, KV_USAGE)) == (162, 2826, 0.28)
    assert value(values, f"{TTFT}_count") == 11_008
    assert within(values, TTFT, 10.0) == 1330
    assert value(values, f"{ITL}_count") == 7_400_757
    assert within(values, ITL, 0.05) == 11_685
    assert values.lacking() == (TPOT, PROMPT_LENGTH, ANSWER_LENGTH)


def test_a_page_of_nim_1_has_the_names_without_a_prefix():
    values = engine("nim-1", "meta/llama-3.1-8b-instruct")

    assert (value(values, RUNNING), value(values, WAITING), value(values, KV_USAGE)) == (4, 2, 0.5)
    assert value(values, f"{TTFT}_count") == 20
    assert values.lacking() == (TPOT,)


@pytest.mark.parametrize("page", ["vllm-0.32.0", "sglang-0.5.23", "sglang-0.4", "nim-1"])
def test_a_page_of_another_model_is_a_problem_of_its_pod(page):
    with pytest.raises(PageProblem, match="its page has no metrics of the model 'other'"):
        engine(page, "other")


def test_prometheus_is_asked_for_the_names_of_a_dialect_alone():
    asked = by_any_name(RUNNING, lambda name: name)
    of_both = by_any_name(RUNNING, lambda name: name, frozenset(MetricsDialect))

    assert asked == RUNNING
    assert of_both == (
        f"{RUNNING} or sum without (is_streaming) (sglang:num_running_reqs)"
        " or sum without (is_streaming) (num_requests_running)"
    )


# --- what a real vLLM did


def test_vllm_takes_every_flag_that_is_rendered():
    flags = options(VLLM["words"])
    since_the_record = {"--pipeline-parallel-size"}  # flags that the chart sets, by the table of the wheel

    assert flags.keys() | since_the_record == options(rendered("vllm")["args"][1:]).keys()
    assert all(not flag_table("vLLM", "0.32.0").problem(flag) for flag in (*flags, *since_the_record))


def test_vllm_shows_the_edges_that_it_is_given():
    page = (FOLDER / "vllm-0.32.0.metrics").read_text()
    given = json.loads(options(VLLM["words"])["--custom-histogram-buckets"][0])

    for metric, family in (
        (TTFT, "time_to_first_token"),
        (ITL, "inter_token_latency"),
        (TPOT, "inter_token_latency"),
    ):
        shown = {float(edge) for edge in re.findall(rf'{metric}_bucket{{[^}}]*le="([^"]+)"', page)}
        assert shown == {*given[family], float("inf")}


def test_the_stand_in_shows_the_names_of_the_real_vllm_and_has_its_routes():
    page = (FOLDER / "vllm-0.32.0.metrics").read_text()

    for name in _NAMES["vllm"].values():
        assert f"\n# TYPE {name} " in page
    assert {"/health", "/metrics", "/version", "/v1/completions"} <= set(VLLM["routes"])
    # Development routes are closed.
    assert not {"/sleep", "/wake_up", "/collective_rpc", "/server_info"} & set(VLLM["routes"])


def test_the_real_vllm_finishes_its_streams_with_a_shutdown_timeout_and_cuts_them_without():
    drained, cut = VLLM["sigterm"]["with_shutdown_timeout"], VLLM["sigterm"]["without"]

    assert drained["streams_finished"] == drained["streams"]
    assert cut["streams_finished"] < cut["streams"]
    assert (drained["exit_status"], VLLM["health_while_it_starts"]) == (0, 0)


def test_every_dialect_has_what_the_scaling_law_cannot_do_without():
    for names in OTHER_DIALECTS.values():
        assert {RUNNING, WAITING, KV_USAGE, TTFT, ITL, PROMPT_LENGTH, ANSWER_LENGTH} <= names.keys()
