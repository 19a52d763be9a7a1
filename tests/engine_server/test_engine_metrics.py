"""Metrics have vLLM's names and their counts can be predicted from the requests that were made."""

import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tangram_engine.serve.http.errors import unavailable
from tangram_engine.serve.metrics import (
    ITL_BUCKETS,
    LATENCY_BUCKETS,
    REFUSALS,
    REFUSED_BY_REPLICA,
    TTFT_BUCKETS,
    CountedRequest,
    EngineMetrics,
    length_buckets,
)
from tests.support.engine_process import EngineProcess, eventually

VLLM_NAMES = {
    "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:num_requests_waiting_by_reason",
    "vllm:kv_cache_usage_perc", "vllm:cache_config_info", "vllm:prefix_cache_queries",
    "vllm:prefix_cache_hits", "vllm:num_preemptions", "vllm:prompt_tokens", "vllm:generation_tokens",
    "vllm:prompt_tokens_by_source", "vllm:prompt_tokens_cached", "vllm:request_success",
    "vllm:admission_rejections", "vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds",
    "vllm:request_time_per_output_token_seconds", "vllm:e2e_request_latency_seconds",
    "vllm:request_queue_time_seconds", "vllm:request_prefill_time_seconds",
    "vllm:request_decode_time_seconds", "vllm:request_inference_time_seconds",
    "vllm:request_num_preemptions", "vllm:request_prompt_tokens", "vllm:request_generation_tokens",
    "vllm:request_max_num_generation_tokens", "vllm:request_params_max_tokens", "vllm:request_params_n",
    "vllm:request_prefill_kv_computed_tokens", "vllm:iteration_tokens_total",
}  # fmt: skip
OWN_NAMES = {
    "tangram_engine_load_seconds", "tangram_engine_warmup_seconds",
    "tangram:requests_received", "tangram:requests_rejected",
}  # fmt: skip


@pytest.fixture
def fresh(start: Any) -> EngineProcess:
    """A server whose counters stand at zero."""
    running = start()
    assert isinstance(running, EngineProcess)
    return running


def test_every_promised_series_is_there_from_the_start_with_the_two_labels(fresh: EngineProcess) -> None:
    families = {f.name: f for f in text_string_to_metric_families(fresh.get("/metrics").text)}
    assert families.keys() >= VLLM_NAMES | OWN_NAMES
    for name, family in families.items():
        if name.startswith(("vllm:", "tangram:")) and family.samples:
            assert all(s.labels["model_name"] == "tiny" and s.labels["engine"] == "0" for s in family.samples)
    reasons = {sample.labels["finished_reason"] for sample in families["vllm:request_success"].samples}
    assert reasons == {"stop", "length", "abort", "error"}
    refusals = {s.labels["reason"]: s.value for s in families["tangram:requests_rejected"].samples}
    assert refusals == dict.fromkeys(REFUSALS, 0)
    assert fresh.metric("tangram_engine_load_seconds") == 0.25
    config = {
        "block_size": "16",
        "num_gpu_blocks": "1024",
        "max_num_seqs": "64",
        "max_num_batched_tokens": "512",
    }
    assert fresh.metric("vllm:cache_config_info", **config) == 1


def test_a_page_is_restricted_to_the_series_of_the_names_that_are_asked_for(fresh: EngineProcess) -> None:
    names = {
        "vllm:num_requests_running",
        "vllm:time_to_first_token_seconds_bucket",
        "vllm:request_prompt_tokens_sum",
    }
    page = fresh.get("/metrics").text.splitlines()
    asked = "&".join(f"name[]={name}" for name in sorted(names | {"vllm:no_such_series"}))

    restricted = fresh.get(f"/metrics?{asked}").text.splitlines()

    expected = [line for line in page if line.partition("{")[0] in names]
    assert {line.partition("{")[0] for line in expected} == names
    assert sorted(line for line in restricted if not line.startswith("#")) == sorted(expected)


def test_counts_follow_from_the_requests(fresh: EngineProcess) -> None:
    requests, n, tokens = 3, 2, 7
    for _ in range(requests):
        assert fresh.complete("the quick brown fox", n=n, max_tokens=tokens).status_code == 200
    assert fresh.complete("the</s>", max_tokens=50).status_code == 200  # one that stops: two tokens
    sequences = requests * n + 1
    expected = {
        "vllm:time_to_first_token_seconds_count": sequences,
        "vllm:inter_token_latency_seconds_count": requests * n * (tokens - 1) + 1,
        "vllm:request_time_per_output_token_seconds_count": sequences,
        "vllm:e2e_request_latency_seconds_count": sequences,
        "vllm:request_queue_time_seconds_count": sequences,
        "vllm:request_prefill_time_seconds_count": sequences,
        "vllm:request_decode_time_seconds_count": sequences,
        "vllm:request_inference_time_seconds_count": sequences,
        "vllm:request_num_preemptions_count": sequences,
        "vllm:request_num_preemptions_sum": 0,
        "vllm:generation_tokens_total": requests * n * tokens + 2,
        "vllm:request_generation_tokens_sum": requests * n * tokens + 2,
        "vllm:prompt_tokens_total": requests * n * 4 + 2,
        "vllm:request_prompt_tokens_sum": requests * n * 4 + 2,
        "vllm:request_params_n_sum": requests * n + 1,
        "vllm:request_params_n_count": requests + 1,
        "vllm:request_max_num_generation_tokens_sum": requests * tokens + 2,
        "vllm:request_params_max_tokens_sum": requests * n * tokens + 50,
        "vllm:prefix_cache_queries_total": requests * n * 4 + 2,
        "vllm:num_requests_running": 0,
        "vllm:num_requests_waiting": 0,
        "vllm:kv_cache_usage_perc": 0,
    }
    assert {name: fresh.metric(name) for name in expected} == expected
    assert fresh.metric("vllm:request_success_total", finished_reason="length") == requests * n
    assert fresh.metric("vllm:request_success_total", finished_reason="stop") == 1
    assert fresh.metric("vllm:request_success_total", finished_reason="abort") == 0


def test_cached_and_computed_prompt_tokens_add_up(fresh: EngineProcess) -> None:
    prompt = "the quick brown fox jumps over the lazy dog " * 8
    used = [fresh.complete(prompt, max_tokens=1).json()["usage"] for _ in range(2)]
    total = sum(usage["prompt_tokens"] for usage in used)
    cached = used[1]["prompt_tokens_details"]["cached_tokens"]
    assert cached > 0
    assert fresh.metric("vllm:prompt_tokens_cached_total") == cached
    assert fresh.metric("vllm:prompt_tokens_by_source_total", source="local_cache_hit") == cached
    assert fresh.metric("vllm:prompt_tokens_by_source_total", source="local_compute") == total - cached
    assert fresh.metric("vllm:request_prefill_kv_computed_tokens_sum") == total - cached
    assert fresh.metric("vllm:prefix_cache_hits_total") == cached


def arrivals(server: EngineProcess) -> tuple[float, dict[str, float]]:
    """Requests that count as load, and those rejected by reason where there are any."""
    return arrivals_of(server.get("/metrics").text)


def arrivals_of(page: str) -> tuple[float, dict[str, float]]:
    families = {f.name: f for f in text_string_to_metric_families(page)}
    (received,) = families["tangram:requests_received"].samples
    rejected = {s.labels["reason"]: s.value for s in families["tangram:requests_rejected"].samples if s.value}
    return received.value, rejected


def test_requests_that_no_replica_would_serve_are_rejected_with_a_reason_and_are_no_load(
    fresh: EngineProcess,
) -> None:
    assert fresh.complete("the quick", n=3, max_tokens=2).status_code == 200
    assert fresh.chat("the quick", max_tokens=2).status_code == 200
    assert fresh.complete("the", max_tokens=10**6).status_code == 400
    assert fresh.complete("the", temperature=-1).status_code == 400
    assert fresh.post("/v1/completions", {"model": "other", "prompt": "the"}).status_code == 404
    assert fresh.post("/v1/completions", content=b"{").status_code == 415
    assert fresh.complete("x" * (5 << 20)).status_code == 413

    assert fresh.complete("the", n=[1]).status_code == 400
    assert fresh.post("/v1/completions", {"prompt": [10**6]}).status_code == 400
    assert arrivals(fresh) == (
        2, {"context_length_exceeded": 1, "invalid_request": 5, "body_too_large": 1}
    )  # fmt: skip


def test_a_request_whose_body_never_comes_or_ends_is_no_load(fresh: EngineProcess) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    for sent in (b"", head, head + b"Content-Length: 100\r\n\r\n{", head + b"Content-Length: 2\r\n\r\n{}"):
        with socket.create_connection(("127.0.0.1", fresh.port), 5) as connection:
            connection.sendall(sent)
            if sent.endswith(b"{}"):
                assert connection.recv(100).startswith(b"HTTP/1.1 400 ")

    eventually(lambda: fresh.metric("tangram_engine_connections") <= 1, "the others have left")
    assert arrivals(fresh) == (0, {"invalid_request": 1})


def test_more_sequences_than_an_idle_replica_holds_are_no_load(start: Any) -> None:
    server = start("--max-num-seqs", "1", "--max-queued-requests", "1")

    refusal = server.complete("the", n=3, max_tokens=1)

    assert (refusal.status_code, refusal.json()["error"]["code"]) == (429, "too_many_sequences")
    assert refusal.headers["x-should-retry"] == "false"
    assert "Retry-After" not in refusal.headers
    assert arrivals(server) == (0, {"too_many_sequences": 1})


@pytest.mark.parametrize("code", REFUSED_BY_REPLICA)
def test_what_a_replica_refused_for_want_of_capacity_is_load_once(code: str) -> None:
    metrics = EngineMetrics("tiny")
    refused, ended = CountedRequest(metrics), CountedRequest(metrics)

    refused.refused(unavailable("full", code))
    ended.accepted()
    ended.refused(unavailable("it ended what was accepted", code))

    counted = arrivals_of(generate_latest(metrics.registry).decode())
    assert counted == (2, {code: 1})


def test_a_request_is_received_before_its_first_token(start: Any) -> None:
    server = start(step_seconds=0.5)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(server.complete, "the quick", max_tokens=4)
        eventually(lambda: arrivals(server) == (1, {}), "received")
        assert server.metric("vllm:time_to_first_token_seconds_count") == 0
        assert answer.result().status_code == 200


def test_what_is_not_a_request_for_tokens_is_not_received(fresh: EngineProcess) -> None:
    assert fresh.post("/tokenize", {"prompt": "the"}).status_code == 200
    assert fresh.get("/v1/models").status_code == 200
    assert fresh.get("/v1/completions").status_code == 405
    assert fresh.post("/v1/nothing", {}).status_code == 404

    assert arrivals(fresh) == (0, {})


def test_a_stop_string_counts_as_stop_and_its_request_leaves_the_engine(fresh: EngineProcess) -> None:
    assert fresh.complete("the quick", max_tokens=400, stop="ick").status_code == 200
    eventually(fresh.quiet, "engine idle", seconds=1)
    assert fresh.metric("vllm:request_success_total", finished_reason="stop") == 1
    assert fresh.metric("vllm:generation_tokens_total") == 2


def test_while_requests_run_the_gauges_show_them(start: Any) -> None:
    server = start("--max-num-seqs", "2", step_seconds=0.05)
    with server.stream("the quick brown fox", n=5, max_tokens=200) as lines:
        next(lines)
        eventually(lambda: server.metric("vllm:num_requests_running") == 2, "two run")
        assert server.metric("vllm:num_requests_waiting") == 3
        assert server.metric("vllm:num_requests_waiting_by_reason", reason="capacity") == 3
        assert 0 < server.metric("vllm:kv_cache_usage_perc") <= 1


def seconds(server: EngineProcess, phase: str) -> float:
    return server.metric(f"vllm:{phase}_seconds_sum")


def test_the_phases_of_a_request_add_up_and_each_takes_what_it_must(start: Any) -> None:
    step, tokens = 0.05, 4
    server = start("--max-num-seqs", "1", step_seconds=step)

    assert server.complete("the quick brown fox", n=3, max_tokens=tokens).status_code == 200

    queue, prefill, decode, inference = (
        seconds(server, f"request_{phase}_time") for phase in ("queue", "prefill", "decode", "inference")
    )
    # One place: the second waits for the whole run of the first, the third for two.
    assert queue >= (1 + 2) * tokens * step
    assert prefill >= 3 * step
    assert decode >= 3 * (tokens - 1) * step * 0.9  # seen from the API process, whose own delays vary
    assert inference == pytest.approx(prefill + decode)
    assert queue + prefill == pytest.approx(seconds(server, "time_to_first_token"))
    assert queue + inference == pytest.approx(seconds(server, "e2e_request_latency"))


def test_who_need_not_wait_spends_the_time_in_inference(start: Any) -> None:
    server = start(step_seconds=0.05)

    assert server.complete("the quick brown fox", n=4, max_tokens=20).status_code == 200

    assert seconds(server, "request_queue_time") < seconds(server, "request_decode_time") / 2
    assert seconds(server, "request_prefill_time") < seconds(server, "request_decode_time") / 2


def test_no_request_waits_for_the_end_of_an_audit(start: Any) -> None:
    server = start(audit_seconds=60)
    time.sleep(0.3)  # the audit begins after 0.2 s of silence

    for _ in range(3):
        assert server.complete("the quick brown fox", max_tokens=2).status_code == 200

    assert seconds(server, "request_queue_time") < 4


def test_requests_that_were_cut_off_have_no_phases(start: Any) -> None:
    server = start("--max-num-seqs", "1", step_seconds=0.05)
    with server.stream("the quick brown fox", n=2, max_tokens=400) as lines:
        next(lines)
    eventually(server.quiet, "nothing left")

    assert server.metric("vllm:request_success_total", finished_reason="abort") == 2
    assert server.metric("vllm:request_queue_time_seconds_count") == 0
    assert server.metric("vllm:request_num_preemptions_count") == 0


PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)


@pytest.mark.parametrize("accept", ["", "text/plain", PROMETHEUS_2])
def test_names_keep_their_colon_whatever_the_scraper_prefers(server: EngineProcess, accept: str) -> None:
    import httpx

    with httpx.Client(trust_env=False, verify=False) as client:  # noqa: S501
        answer = client.get(f"{server.url}/metrics", headers={"Accept": accept} if accept else {})

    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    names = {family.name for family in text_string_to_metric_families(answer.text)}
    assert {"vllm:num_requests_running", "vllm:time_to_first_token_seconds"} <= names


def test_buckets_are_those_that_dashboards_and_the_operator_query() -> None:
    golden = json.loads((Path(__file__).parents[1] / "contracts" / "metric_buckets.json").read_text())
    assert list(TTFT_BUCKETS) == golden["vllm:time_to_first_token_seconds"]
    assert list(ITL_BUCKETS) == golden["vllm:inter_token_latency_seconds"]
    assert list(LATENCY_BUCKETS) == golden["vllm:e2e_request_latency_seconds"]


@pytest.mark.parametrize(
    ("largest", "bounds"), [(1, [1]), (2, [1, 2]), (7, [1, 2, 5, 10]), (100, [1, 2, 5, 10, 20, 50, 100])]
)
def test_length_buckets_reach_just_far_enough(largest: int, bounds: list[int]) -> None:
    assert length_buckets(largest) == bounds
