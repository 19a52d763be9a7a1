"""Requests through Envoy and the picker, both real, to replicas that speak OpenAI's API."""

import json
import threading
import time
from contextlib import contextmanager

import grpc
import openai
import pytest

from tests.support.front_door import endpoint_slice, wait_until


@pytest.fixture(scope="module")
def chat(door):
    return door.serve("team-a", "chat", "first", "second", served_name="org/chat")


def running(door):
    return door.gauge("tangram_gateway_running_requests")


def arrived(replicas):
    return sum(len(replica.seen) for replica in replicas)


@contextmanager
def held(*replicas):
    """Let these send nothing but first chunks of streams."""
    for replica in replicas:
        replica.holds = True
    try:
        yield
    finally:
        for replica in replicas:
            replica.holds = False


def assert_openai_error(response, status, code):
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["code"] == code
    assert error.keys() == {"message", "type", "param", "code"}
    assert response.headers["content-type"] == "application/json"
    assert ("retry-after" in response.headers) == (status in (429, 503))


def test_the_openai_client_streams_and_lists_models(door, chat):
    messages = [{"role": "user", "content": "hello"}]
    with openai.OpenAI(base_url=f"{door.url}/v1", api_key="key", max_retries=0) as client:
        for model in ("org/chat", "team-a/org/chat"):
            stream = client.chat.completions.create(model=model, messages=messages, stream=True, max_tokens=4)
            texts = [chunk.choices[0].delta.content for chunk in stream]
            assert len(texts) == 4
            assert {text.split("-")[0] for text in texts} <= {"first", "second"}
        assert "org/chat" in [model.id for model in client.models.list()]
        assert client.models.retrieve("org/chat").owned_by == "team-a"
    # The replica knows its served name alone, and gets the client's key.
    assert {body["model"] for replica in chat for body in replica.seen} == {"org/chat"}
    assert {headers["Authorization"] for replica in chat for headers in replica.headers} == {"Bearer key"}
    wait_until(lambda: running(door) == 0)


def test_concurrent_requests_are_spread_and_their_ends_are_seen(door, chat):
    before = [len(replica.seen) for replica in chat]
    threads = [threading.Thread(target=door.ask, args=("org/chat",)) for _ in range(6)]
    with held(*chat):
        for thread in threads:
            thread.start()
        # The page of metrics is a second old: it may have an earlier request in the place of the last one.
        wait_until(lambda: running(door) == 6 and arrived(chat) == sum(before) + 6)
    for thread in threads:
        thread.join()
    assert [len(replica.seen) - count for replica, count in zip(chat, before, strict=True)] == [3, 3]
    wait_until(lambda: running(door) == 0)  # by their ends: overdue they are much later


def test_a_request_id_goes_through(door, chat):
    response = door.ask("org/chat", headers={"x-request-id": "mine-1"})
    assert response.headers["x-request-id"] == "mine-1"
    assert "mine-1" in [replica.headers[-1]["X-Request-ID"] for replica in chat if replica.headers]


def test_headers_of_clients_choose_neither_replica_nor_priority(door, chat):
    (stranger,) = door.serve("other", "stranger", "stranger")
    forged = dict.fromkeys(
        (
            *("x-gateway-destination-endpoint", "X-Tangram-Destination-2", "x-tangram-destination-3"),
            *("x-gateway-destination-endpoint-subset", "x-envoy-original-dst-host"),
            *("x-llm-d-inference-objective", "x-envoy-retry-on"),
        ),
        stranger.address,
    )
    assert door.ask("org/chat", headers=forged).status_code == 200
    for path in ("/v1/chat/completions", "/metrics", "/v1/models/x", "/"):
        assert door.http.get(path, headers=forged).status_code == 404
    assert door.http.post("/v1/load_lora_adapter", json={"model": "stranger"}).status_code == 404
    assert stranger.seen == []
    seen = {name.lower(): value for replica in chat for name, value in (replica.headers or [{}])[-1].items()}
    assert not seen.keys() & {"x-llm-d-inference-objective", "x-gateway-destination-endpoint-subset"}


def test_grpc_health_is_that_of_the_picker(door):
    with grpc.insecure_channel(f"unix:{door.folder}/picker.sock") as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        watch = channel.unary_stream("/grpc.health.v1.Health/Watch")
        service = b"envoy.service.ext_proc.v3.ExternalProcessor"
        assert check(b"\x0a" + bytes([len(service)]) + service, timeout=5) == b"\x08\x01"  # SERVING
        assert next(iter(watch(b"", timeout=5))) == b"\x08\x01"


def test_a_name_of_two_namespaces_needs_the_namespace(door):
    (one,), (two,) = (door.serve(space, "shared", f"{space}-shared") for space in ("team-a", "team-b"))
    response = door.ask("shared")
    assert_openai_error(response, 409, "model_ambiguous")
    assert "team-a/shared or team-b/shared" in response.json()["error"]["message"]
    assert door.ask("team-b/shared").json()["choices"][0]["message"]["content"] == "team-b-shared"
    assert (len(one.seen), len(two.seen)) == (0, 1)


def test_what_cannot_be_routed_is_answered_in_the_form_of_openai(door):
    door.serve("team-a", "asleep")
    assert_openai_error(door.ask("unknown"), 404, "model_not_found")
    assert_openai_error(door.ask("../../etc/passwd"), 404, "model_not_found")
    assert_openai_error(door.ask("asleep"), 503, "no_replica")
    assert_openai_error(door.http.post("/v1/chat/completions"), 400, "invalid_request")


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"model":"org/chat","messages":' + b"[" * 10_000 + b"]" * 10_000 + b"}", 400),
        (b'{"model":"org/chat","x":' + b"[" * 3_000_000, 400),
        (b'{"model":"org/chat","messages":"' + b"a" * (17 << 20) + b'"}', 413),
        (b'{"model":["org/chat"]}', 400),
        (b'{"model":"' + b"m" * 600 + b'"}', 400),
        (b"\xff\xfe", 400),
    ],
    ids=["deep", "open", "large", "list", "long name", "no text"],
)
def test_bombs_are_refused(door, chat, body, status):
    before = [len(replica.seen) for replica in chat]
    assert_openai_error(door.http.post("/v1/chat/completions", content=body), status, "invalid_request")
    assert [len(replica.seen) for replica in chat] == before
    wait_until(lambda: door.gauge("tangram_gateway_body_bytes") == 0)


@pytest.mark.parametrize("chunked", [False, True])
def test_a_large_body_passes_unchanged(door, chat, chunked):
    request = {"model": "team-a/org/chat", "messages": [{"role": "user", "content": "ä" * 1_600_000}]}
    body = json.dumps(request, ensure_ascii=False).encode()
    content = iter([body[:100_000], body[100_000:]]) if chunked else body
    response = door.http.post("/v1/chat/completions", content=content)
    assert response.status_code == 200, response.text
    (seen,) = (each for replica in chat for each in replica.seen if len(str(each)) > 10**6)
    assert seen == request | {"model": "org/chat"}
    for replica in chat:
        replica.seen.clear()


def test_a_replica_that_ends_soon_gets_nothing_new(door):
    stays, ends = door.serve("team-a", "ending", "stays", "ends")
    door.change("endpointslices", endpoint_slice("team-a", "ending", ends, ready=False, terminating=True))
    began, last = time.monotonic(), 0.0
    while time.monotonic() - began < 4:
        asked = time.monotonic()
        if door.ask("ending").json()["choices"][0]["message"]["content"] == "ends":
            last = asked - began
        time.sleep(0.05)
    assert last < 2  # 0.1 s where nothing else runs
    assert len(stays.seen) > 20


def test_a_request_moves_on_where_its_replica_does_not_answer(door):
    """Whether it refuses connections, or is lost before its first byte."""
    lost, other = door.serve("team-a", "moving", "lost", "other")
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(door.ask("moving"))) for _ in range(2)]
    with held(lost, other):
        for thread in threads:
            thread.start()
        wait_until(lambda: lost.seen and other.seen)
        door.loop.run(lost.stop())
        wait_until(lambda: len(other.seen) == 2)
    for thread in threads:
        thread.join()
    answers += [door.ask("moving") for _ in range(4)]
    assert [response.status_code for response in answers] == [200] * 6, [each.text for each in answers]
    assert {response.json()["choices"][0]["message"]["content"] for response in answers} == {"other"}


def test_streams_survive_the_picker_and_new_requests_are_refused_meanwhile(door, chat):
    lines = []

    def read():
        body = {"model": "org/chat", "messages": [], "stream": True, "max_tokens": 12}
        with door.http.stream("POST", "/v1/chat/completions", json=body) as response:
            lines.extend(line for line in response.iter_lines() if line)

    reader, waiting = threading.Thread(target=read), []
    late = threading.Thread(target=lambda: waiting.append(door.ask("org/chat")))
    before = arrived(chat)
    with held(*chat):
        for thread in (reader, late):
            thread.start()
        wait_until(lambda: arrived(chat) == before + 2 and lines)
        door.kill_picker()
        assert_openai_error(door.ask("org/chat"), 503, "gateway_error")
        assert door.http.get("/v1/models").status_code == 503
    for thread in (reader, late):
        thread.join()
    assert (len(lines), lines[-1]) == (13, "data: [DONE]")
    assert waiting[0].status_code == 200  # it had no byte of its response yet
    door.start_picker()
    assert door.ask("org/chat").status_code == 200
