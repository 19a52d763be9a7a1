"""`tangram diagnose` against servers on loopback: what it prints, and one line for all that may be wrong."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from tangram.cli.diagnose import command, metrics_page
from tangram.cli.main import main
from tests.support.vllm_page import Page, steady

Reply = tuple[int, dict[str, str], bytes]


class Clock:
    """Time that passes only when somebody waits."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(metrics_page, "monotonic", found.monotonic)
    monkeypatch.setattr(command, "sleep", found.sleep)
    return found


@contextmanager
def serving(replies: Callable[[int, BaseHTTPRequestHandler], Reply]) -> Iterator[str]:
    """A server whose n-th reply is `replies(n, request)`; yields its URL without a path."""
    count = iter(range(10**6))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, headers, body = replies(next(count), self)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # who gives up closes the connection
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def pages(*texts: str, **headers: str) -> Callable[[int, BaseHTTPRequestHandler], Reply]:
    def reply(number: int, _: BaseHTTPRequestHandler) -> Reply:
        return (
            200,
            {"Content-Type": "text/plain; version=0.0.4", **headers},
            texts[number % len(texts)].encode(),
        )

    return reply


BUSY = tuple(page.text() for page in steady(batch=8, step_s=0.0095, prompt=100, output=1000, waiting=3))
ON_AN_H100 = ("--sku", "h100", "--model", "Llama-3.1-8B", "--max-num-seqs", "8")


def refusal(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The one line that a wrong call ends in."""
    assert main(["diagnose", *argv]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("tangram: ")
    assert err.count("\n") == 1
    return err


def test_a_person_reads_four_answers_with_their_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(pages(*BUSY)) as url:
        assert main(["diagnose", "--url", f"{url}/metrics", *ON_AN_H100]) == 0
    out = capsys.readouterr().out
    assert out.startswith("llama, 15.0 s between the readings")
    headings = [line for line in out.splitlines() if line[:1].isdigit()]
    assert [line.rsplit("?  ")[1].rstrip("*") for line in headings] == [
        "memory bandwidth", "decode", "low", "held by sequence limit"
    ]  # fmt: skip
    assert "measured step, mean" in out
    assert out.count("next: ") == 3, "low pressure asks for nothing"
    assert "\x1b" not in out, "no colours in a pipe"


@pytest.mark.parametrize(("fmt", "load"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_programs_read_the_same_as_a_document(
    fmt: str, load: Callable[[str], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(pages(*BUSY)) as url:
        assert main(["diagnose", "--url", url, *ON_AN_H100, "-o", fmt]) == 0
    found = load(capsys.readouterr().out)
    assert found["model"] == "llama"
    assert found["seconds"] == 15.0
    assert found["answers"][0]["verdict"] == "memory bandwidth"
    assert {"name": "requests that ended", "unit": ""}.items() <= found["answers"][1]["numbers"][0].items()
    assert found["answers"][3]["missing"] == []


def test_the_readings_lie_as_far_apart_as_asked(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(pages(*BUSY)) as url:
        assert main(["diagnose", "--url", url, "--interval", "60", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["seconds"] == 60 == clock.now


@pytest.mark.parametrize("interval", ["14.9", "0", "-20", "nan", "inf", "4000"])
def test_readings_too_close_are_refused(interval: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = refusal(capsys, "--url", "http://127.0.0.1:1", f"--interval={interval}")
    assert "--interval" in line
    assert "between 15 and 3600 s" in line


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("", "not a URL like"), ("localhost:8000", "not a URL like"), ("ftp://x/metrics", "not a URL like"),
        ("http://", "not a URL like"), ("http://h:99999", "is not a URL"), ("http://[::1", "is not a URL"),
        ("http://h:0", "port 0"), ("http://a:b@h/metrics", "--token-file"),
        ("http://127.0.0.1:1/metrics", "Connection refused"), ("http://a b/metrics", "cannot be read"),
        ("http://" + "a" * 300 + "/metrics", "cannot be read"),
    ],
)  # fmt: skip
def test_a_url_that_leads_nowhere_says_why(
    url: str, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert problem in refusal(capsys, "--url", url)


@pytest.mark.parametrize(
    ("status", "headers", "body", "problem"),
    [
        (401, {}, b"", "401: the engine requires a token: --token-file"),
        (403, {}, b"", "403: the token is not allowed"),
        (404, {}, b"vllm:x 1", "404: the path does not exist; it is usually /metrics"),
        (503, {}, b"", "503: expected 200"),
        (204, {}, b"", "204"),
        (302, {"Location": "/again"}, b"", "has a redirect loop"),
        (302, {"Location": "http://127.0.0.1:1/"}, b"", "Connection refused"),
        (302, {"Location": "file:///etc/passwd"}, b"", "cannot be read"),
        (200, {"Content-Type": "text/html"}, b"vllm:x 1", "a web page, not metrics"),
        (200, {}, b"\n <!DOCTYPE html><html>vllm:x 1</html>", "a web page, not metrics"),
        (200, {}, b'{"data": []}', "that is JSON"),
        (200, {}, b"", "no metric named vllm:"),
        (200, {}, b"\xff\xfe\x00binary", "no metric named vllm:"),
        (200, {}, b"# TYPE sglang:num_running_reqs gauge\nsglang:num_running_reqs 1\n", "looks like SGLang"),
        (200, {}, b"vllm:num_requests_running{a=b} 1\n", "breaks the Prometheus text format"),
        (200, {}, b"vllm:num_requests_running one\n", "breaks the Prometheus text format"),
        (200, {"Content-Encoding": "gzip"}, b"not gzip", "cannot be read"),
    ],
)  # fmt: skip
def test_an_answer_that_is_no_page_of_an_engine_is_one_clear_line(
    status: int, headers: dict[str, str], body: bytes, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(lambda _, __: (status, headers, body)) as url:
        assert problem in refusal(capsys, "--url", f"{url}/x")


def test_a_page_without_end_is_given_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(metrics_page, "MAX_BYTES", 1_500_000)
    with serving(pages("vllm:x 1\n" * 200_000)) as url:
        assert "the page is larger than" in refusal(capsys, "--url", url)
    monkeypatch.setattr(metrics_page, "MAX_PARSED", 2**20)
    with serving(pages("vllm:num_requests_running 1\n" * 40_000)) as url:
        assert "over 1 MiB of engine metrics" in refusal(capsys, "--url", url)


def test_a_server_that_trickles_is_given_up(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    def late(_: int, __: BaseHTTPRequestHandler) -> Reply:
        clock.now += 11  # the answer begins in time, by its own clock; its body comes late
        return 200, {}, BUSY[0].encode()

    with serving(late) as url:
        assert "did not answer within 10 s" in refusal(capsys, "--url", url)


def test_a_server_that_is_silent_is_given_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(metrics_page, "TIMEOUT_S", 0.05)
    release = threading.Event()

    def silent(_: int, __: BaseHTTPRequestHandler) -> Reply:
        release.wait(10)
        return 200, {}, b""

    with serving(silent) as url:
        try:
            assert "did not answer within 0.05 s" in refusal(capsys, "--url", url)
        finally:
            release.set()


def test_vllms_own_redirect_is_followed(capsys: pytest.CaptureFixture[str]) -> None:
    def reply(_: int, request: BaseHTTPRequestHandler) -> Reply:
        if request.path == "/metrics":
            return 307, {"Location": "/metrics/"}, b""
        return 200, {}, BUSY[0].encode()

    with serving(reply) as url:
        assert main(["diagnose", "--url", url, "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["model"] == "llama"


def test_a_token_is_sent_to_the_engine_and_to_nobody_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[tuple[str, str | None]] = []

    def engine(_: int, request: BaseHTTPRequestHandler) -> Reply:
        seen.append(("engine", request.headers["Authorization"]))
        return 200, {}, BUSY[0].encode()

    def gateway(_: int, request: BaseHTTPRequestHandler) -> Reply:
        seen.append(("gateway", request.headers["Authorization"]))
        return 302, {"Location": f"{elsewhere}/metrics"}, b""

    (tmp_path / "token").write_text("s3cret\n")
    token = ("--token-file", str(tmp_path / "token"))
    with serving(engine) as elsewhere, serving(gateway) as url:
        assert main(["diagnose", "--url", url, *token]) == 0
    assert seen == [("gateway", "Bearer s3cret"), ("engine", None)] * 2
    assert "s3cret" not in "".join(capsys.readouterr())


@pytest.mark.parametrize("content", [None, b"", b"two words", b"caf\xc3\xa9", b"a\nb", b"x" * 20_000])
def test_a_token_file_that_holds_no_token_is_refused(
    content: bytes | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content)
    assert "--token-file" in refusal(capsys, "--url", "http://127.0.0.1:1", "--token-file", str(path))


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (("--sku", "H1000"), "--sku: no GPU is called 'H1000'"),
        (("--profile", "1g.10gb"), "--profile: needs --sku"),
        (("--sku", "H100-80GB-SXM", "--profile", "9g.90gb"), "profile: H100-80GB-SXM has no MIG profile"),
        (("--sku", "H100-80GB-SXM", "--profile", "1g.10gb", "--tp", "2"), "--tp: MIG slices have no"),
        (("--tp", "0"), "--tp: 0 is not"),
        (("--max-num-seqs", "0"), "--max-num-seqs: 0 is not"),
        (("--max-num-batched-tokens", "-5"), "--max-num-batched-tokens: -5 is not"),
        (("--sku", "H100-80GB-SXM", "--model", "Llama-9-1B"), "--model: 'Llama-9-1B' is neither"),
        (("--sku", "H100-80GB-SXM", "--model", "Llama-3.1-8B", "--tp", "3"), "3 does not divide"),
        (("--sku", "H100-80GB-SXM", "--model", "Llama-3.1-8B", "--weights", "fp3"), "fp3"),
        (("--sku", "H100-80GB-SXM", "--model", "Llama-3.1-8B", "--kv", "fp3"), "fp3"),
    ],
)
def test_flags_are_checked_before_anything_is_read(
    flags: tuple[str, ...], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(lambda _, __: pytest.fail("was read")) as url:
        assert problem in refusal(capsys, "--url", url, *flags)


def test_several_models_are_listed_and_one_is_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    two = [a.text() + replace(a, model="adapter").text() for a in steady(batch=8, step_s=0.01)]
    with serving(pages(*two)) as url:
        assert "choose one: adapter, llama" in refusal(capsys, "--url", url)
        assert "no model 'x'; it has adapter, llama" in refusal(capsys, "--url", url, "--served-model", "x")
        assert main(["diagnose", "--url", url, "--served-model", "adapter", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["model"] == "adapter"


def test_recalled_facts_mark_the_answer_that_uses_them(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(pages(*BUSY)) as url:
        assert main(["diagnose", "--url", url, "--sku", "T4", "--model", "Llama-3.1-8B"]) == 0
        out = capsys.readouterr().out
        assert "?  cannot tell*" in out, "8B at 105 steps per second is beyond a T4"
        assert "data sheet" in out.splitlines()[-1]
        assert main(["diagnose", "--url", url, "--sku", "T4", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["unverified"]


def test_openmetrics_reads_like_text(capsys: pytest.CaptureFixture[str]) -> None:
    def openmetrics(page: str) -> str:
        """Counters are declared without their suffix there, and the end is marked."""
        return page.replace("_total counter", " counter") + "# EOF\n"

    kind = {"Content-Type": "application/openmetrics-text; version=1.0.0"}
    with serving(pages(*map(openmetrics, BUSY), **kind)) as url, serving(pages(*BUSY)) as plain:
        for one in (url, plain):
            assert main(["diagnose", "--url", one, *ON_AN_H100, "-o", "json"]) == 0
    first, second = capsys.readouterr().out.split("}\n{")
    assert json.loads(first + "}") == json.loads("{" + second)


def test_an_idle_page_of_another_time_needs_no_model_name(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(pages("vllm:num_requests_running 0\n")) as url:
        assert main(["diagnose", "--url", url]) == 0
    assert capsys.readouterr().out.startswith("an unnamed model")


def test_a_page_keeps_its_meaning_with_junk_around_it() -> None:
    page = Page(generated=3).text()
    junk = f'{page}\nother_metric{{a=b}} oops\nvllm:huge{{x="{"y" * 30_000}"}} 1\n'
    assert metrics_page.parsed(junk.encode()) == metrics_page.parsed(page.encode())


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-3"])
def test_a_number_that_no_engine_means_is_refused_by_its_name(
    value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    usage = 'vllm:kv_cache_usage_perc{engine="0",model_name="llama"}'
    before, after = (page.text() for page in steady(batch=4, step_s=0.01))
    broken = after.replace(f"{usage} 0.1", f"{usage} {value}")
    assert broken != after
    with serving(pages(before, broken)) as url:
        assert main(["diagnose", "--url", url]) == 2
    assert capsys.readouterr().err == (
        "tangram: vllm:kv_cache_usage_perc: is NaN, infinite or negative: not a reading of an engine\n"
    )
