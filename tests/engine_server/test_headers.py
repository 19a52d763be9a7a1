"""Headers, targets and keys as clients send them, odd bytes included: each gets its answer, none is a 500."""

import random
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.engine_process import EngineProcess, engine_process

BODY = b'{"model":"tiny","prompt":"the","max_tokens":1}'
HEADERS = (
    b"Authorization",
    b"Content-Type",
    b"Content-Encoding",
    b"X-Request-Id",
    b"Host",
    b"Expect",
    b"Accept",
    b"Accept-Encoding",
    b"Connection",
    b"Upgrade",
    b"Transfer-Encoding",
    b"Content-Length",
    b"Range",
    b"If-None-Match",
    b"If-Modified-Since",
    b"Cookie",
    b"Forwarded",
    b"Origin",
    b"Sec-WebSocket-Key",
)
VALUES = (
    b"",
    b" ",
    b"\xff",
    b"Bearer \xff",
    b"Bearer \xed\xa0\x80",
    b"\xc3\xa9",
    b"application/json; charset=\xff",
    b'application/json; charset="',
    b";",
    b"/",
    b"application/json;;=;",
    b"100-continue",
    b"chunked, chunked",
    b"websocket",
    b"h2c",
    b"-1",
    b"1_0",
    b"9" * 400,
    b"bytes=0-,5-",
    b"a=\xff; b",
    b"a" * 8000,
    b"\t",
    b"[::",
    b"=" * 300,
)
TARGETS = (
    b"/v1/models/%ff",
    b"/v1/models/\xff",
    b"/v1/models/%",
    b"/v1/models/%00",
    b"/%c3%28",
    b"/health?\xff=%ff",
    b"/health?a=%ff&%ff",
    b"/health?" + b"a=1&" * 1500,
    b"*",
    b"//",
    b"/../..",
    b"http://x:99999/health",
    b"http://[::/health",
    b"http://\xff/health",
    b"/health#\xff",
    b"/v1/models/" + b"a" * 7000,
    b"/v1/models/%ed%a0%80",
    b"/\\",
    b"/v1/completions/",
)


@pytest.fixture(scope="module")
def guarded(served_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    """A server that asks for a key."""
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "keys").write_bytes(b"# ours\nsecret-one\n\nsecret-two\nsecret-\xff\n")
    with ExitStack() as stack:
        yield stack.enter_context(
            engine_process(served_model, folder / "log", "--api-key-file", str(folder / "keys"), fake={})
        )


def answer(server: EngineProcess, raw: bytes, wait_s: float = 10) -> bytes:
    """What comes back until the server closes, or waits for more of the request."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=wait_s) as connection:
        received = b""
        try:
            connection.sendall(raw)
            while data := connection.recv(1 << 16):
                received += data
        except (ConnectionError, TimeoutError):
            pass
    return received


def completion(*headers: bytes) -> bytes:
    lines = (
        b"POST /v1/completions HTTP/1.1",
        b"Host: x",
        b"Connection: close",
        b"Content-Length: %d" % len(BODY),
        b"Content-Type: application/json",
        *headers,
    )
    return b"\r\n".join(lines) + b"\r\n\r\n" + BODY


def status(received: bytes) -> int:
    return int(received.split(b" ", 2)[1])


@pytest.mark.parametrize(
    "value",
    [
        b"Bearer secret-one",
        b"bearer secret-two",
        b"BEARER secret-one",
        b"bEaReR   secret-one ",
        b"Bearer secret-\xff",
    ],
)
def test_a_key_is_accepted_whatever_the_case_of_its_scheme(value: bytes, guarded: EngineProcess) -> None:
    assert status(answer(guarded, completion(b"Authorization: " + value))) == 200


@pytest.mark.parametrize(
    ("headers", "challenge"),
    [
        ([], b'Bearer realm="tangram"\r'),
        ([b"secret-one"], b'Bearer realm="tangram"\r'),
        ([b"Basic secret-one"], b'Bearer realm="tangram"\r'),
        ([b"Bearersecret-one"], b'Bearer realm="tangram"\r'),
        ([b"Bearer secret-one", b"Bearer secret-one"], b'Bearer realm="tangram"\r'),
        ([b"Bearer"], b'Bearer realm="tangram", error="invalid_token"\r'),
        ([b"Bearer wrong"], b'Bearer realm="tangram", error="invalid_token"\r'),
        ([b"Bearer # ours"], b'Bearer realm="tangram", error="invalid_token"\r'),
        ([b"Bearer \xff"], b'Bearer realm="tangram", error="invalid_token"\r'),
        ([b"Bearer \xc3\xbf"], b'Bearer realm="tangram", error="invalid_token"\r'),
        ([b"Bearer secret-one\xff"], b'Bearer realm="tangram", error="invalid_token"\r'),
        ([b"Bearer secret-one secret-two"], b'Bearer realm="tangram", error="invalid_token"\r'),
    ],
)
def test_without_a_valid_key_the_answer_is_401_with_a_challenge(
    headers: list[bytes], challenge: bytes, guarded: EngineProcess
) -> None:
    received = answer(guarded, completion(*(b"Authorization: " + value for value in headers)))
    assert status(received) == 401
    assert b"WWW-Authenticate: " + challenge in received
    assert b"invalid_api_key" in received


def test_a_request_has_at_most_64_headers(guarded: EngineProcess) -> None:
    key = b"Authorization: Bearer secret-one"
    few = completion(key, *(b"h%d: v" % at for at in range(64 - 5)))
    many = completion(key, *(b"h%d: v" % at for at in range(64)))
    assert status(answer(guarded, few)) == 200
    assert status(answer(guarded, many)) == 400


def test_a_key_is_asked_for_on_every_route_but_the_probes(guarded: EngineProcess) -> None:
    for path in ("/v1/models", "/v1/models/tiny", "/load", "/nothing"):
        assert guarded.get(path).status_code == 401
    for path in ("/health", "/ready", "/metrics", "/version", "/ping"):
        assert guarded.get(path).status_code == 200


@pytest.mark.parametrize("name", HEADERS, ids=bytes.decode)
def test_no_value_of_a_header_is_an_internal_error(name: bytes, guarded: EngineProcess) -> None:
    key = b"Authorization: Bearer secret-one"
    for value in VALUES:
        headers = [name + b": " + value] if name == b"Authorization" else [key, name + b": " + value]
        received = answer(guarded, completion(*headers), 0.3)
        assert not received or status(received) < 500, (name, value, received)


@pytest.mark.parametrize(
    "method", [b"GET", b"POST", b"OPTIONS", b"HEAD", b"CONNECT", b"PURGE"], ids=bytes.decode
)
def test_no_target_is_an_internal_error(method: bytes, guarded: EngineProcess) -> None:
    for target in TARGETS:
        for key in (b"", b"Authorization: Bearer secret-one\r\n"):
            head = b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + key + b"\r\n"
            received = answer(guarded, method + b" " + target + head, 0.3)
            assert not received or status(received) < 500, (target, received)


def test_no_mutated_request_is_an_internal_error(guarded: EngineProcess) -> None:
    dice = random.Random(7)
    whole = completion(b"Authorization: Bearer secret-one", b"X-Request-Id: abc", b"Accept: */*")
    for _ in range(200):
        raw = bytearray(whole)
        for _ in range(dice.randint(1, 4)):
            at = dice.randrange(len(raw))
            raw[at : at + dice.randint(0, 2)] = dice.randbytes(dice.randint(0, 3))
        received = answer(guarded, bytes(raw), 0.2)
        assert not received or status(received) < 500, (raw, received)


def test_the_log_holds_neither_a_trace_nor_a_key(guarded: EngineProcess) -> None:
    assert guarded.complete("the", max_tokens=1).status_code == 401
    log = guarded.log.read_text()
    assert "Traceback" not in log
    assert "secret" not in log
