"""Pages in browsers: the origins that were allowed, and no others, may ask for and read every answer."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tangram_engine.__main__ import _parser
from tests.support.engine_process import EngineProcess, engine_process

PAGE = "http://localhost:5173"
KEY = "0123456789abcdef"
CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "the"}], "max_tokens": 2}


@pytest.fixture(scope="module")
def servers(served_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[EngineProcess]]:
    """One for pages of two origins, with a key; and one for any page."""
    folder = tmp_path_factory.mktemp("cross-origin")
    (folder / "keys").write_text(KEY)
    flags = [
        ("--allowed-origins", PAGE, "https://chat.example.com", "--api-key-file", str(folder / "keys")),
        ("--allowed-origins", "*"),
    ]
    with ExitStack() as stack:
        yield [
            stack.enter_context(engine_process(served_model, folder / f"log{number}", *of_one, fake={}))
            for number, of_one in enumerate(flags)
        ]


def ask(server: EngineProcess, method: str, path: str, **options: Any) -> httpx.Response:
    with httpx.Client(timeout=30, trust_env=False, verify=False) as client:  # noqa: S501
        return client.request(method, server.url + path, **options)


def preflight(server: EngineProcess, origin: str, path: str = "/v1/chat/completions") -> httpx.Response:
    names = "authorization,content-type,x-stainless-os"
    headers = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": names}
    return ask(server, "OPTIONS", path, headers=headers | {"Origin": origin})


def cors(response: httpx.Response) -> dict[str, str]:
    return {name: value for name, value in response.headers.items() if name.startswith("access-control")}


def test_a_preflight_of_an_allowed_page_is_answered_without_a_key(servers: list[EngineProcess]) -> None:
    listed, _ = servers
    response = preflight(listed, PAGE)
    assert (response.status_code, response.content) == (204, b"")
    assert cors(response) == {
        "access-control-allow-origin": PAGE,
        "access-control-allow-methods": "GET, POST",
        "access-control-allow-headers": "authorization,content-type,x-stainless-os",
        "access-control-expose-headers": "Retry-After, x-request-id, x-should-retry",
        "access-control-max-age": "600",
    }
    assert response.headers["vary"] == "Origin"
    assert preflight(listed, "https://chat.example.com").status_code == 204


@pytest.mark.parametrize(
    "origin", ["http://localhost:5174", "https://localhost:5173", "http://LOCALHOST:5173", "null", "*", ""]
)
def test_a_preflight_of_another_page_is_refused(origin: str, servers: list[EngineProcess]) -> None:
    response = preflight(servers[0], origin)
    assert response.status_code == 403
    assert response.json()["error"]["code"] == "origin_not_allowed"
    assert not cors(response)
    assert response.headers["vary"] == "Origin"


def test_every_answer_to_an_allowed_page_has_the_header(servers: list[EngineProcess]) -> None:
    listed, _ = servers
    headers = {"Origin": PAGE, "Authorization": f"Bearer {KEY}"}
    path = "/v1/chat/completions"
    answers = [
        ask(listed, "POST", path, headers=headers, json=CHAT),
        ask(listed, "POST", path, headers=headers, json=CHAT | {"stream": True}),
        ask(listed, "POST", "/tokenize", headers=headers, json={"prompt": "the"}),
        ask(listed, "GET", "/v1/models", headers=headers),
        ask(listed, "GET", "/health", headers=headers),
        ask(listed, "POST", path, headers=headers, json=CHAT | {"n": 0}),
        ask(listed, "POST", path, headers={"Origin": PAGE}, json=CHAT),
        ask(listed, "GET", "/nowhere", headers=headers),
        ask(listed, "GET", path, headers=headers),
        ask(listed, "POST", path, headers=headers | {"Expect": "a-miracle"}, json=CHAT),
    ]
    assert [answer.status_code for answer in answers] == [200] * 5 + [400, 401, 404, 405, 417]
    expected = {
        "access-control-allow-origin": PAGE,
        "access-control-expose-headers": "Retry-After, x-request-id, x-should-retry",
    }
    assert [cors(answer) for answer in answers] == [expected] * len(answers)
    assert {answer.headers["vary"] for answer in answers} == {"Origin"}


def test_other_pages_and_programs_get_no_header(servers: list[EngineProcess]) -> None:
    listed, _ = servers
    key = {"Authorization": f"Bearer {KEY}"}
    for headers in (key, key | {"Origin": "https://evil.example.com"}):
        answer = ask(listed, "POST", "/v1/chat/completions", headers=headers, json=CHAT)
        assert answer.status_code == 200
        assert not cors(answer)


def test_with_a_star_any_page_may_call_and_none_with_credentials(servers: list[EngineProcess]) -> None:
    _, any_page = servers
    for origin in ("https://anywhere.example.com", "null", "tauri://localhost"):
        asked = preflight(any_page, origin)
        answer = ask(any_page, "POST", "/v1/chat/completions", headers={"Origin": origin}, json=CHAT)
        assert (asked.status_code, answer.status_code) == (204, 200)
        for response in (asked, answer):
            assert response.headers["access-control-allow-origin"] == "*"
            assert "access-control-allow-credentials" not in response.headers
            assert "vary" not in response.headers


@pytest.mark.parametrize("names", ["", "x" * 3000, "a\tb", "é"])
def test_names_of_headers_that_are_none_are_not_repeated(names: str, servers: list[EngineProcess]) -> None:
    headers = {"Origin": PAGE, "Access-Control-Request-Method": "POST"}
    raw = [*headers.items(), ("Access-Control-Request-Headers", names.encode())]
    response = ask(servers[0], "OPTIONS", "/v1/models", headers=raw)
    assert response.headers["access-control-allow-headers"] == "Authorization, Content-Type"


def test_without_the_flag_no_page_of_another_origin_may_call(server: EngineProcess) -> None:
    response = preflight(server, PAGE)
    assert response.status_code == 405
    assert not cors(response)
    answer = ask(server, "POST", "/v1/chat/completions", headers={"Origin": PAGE}, json=CHAT)
    assert answer.status_code == 200
    assert not cors(answer)


ORIGINS = {
    "*": True,
    "https://chat.example.com": True,
    "http://localhost:3000": True,
    "http://[::1]:3000": True,
    "chrome-extension://abcdefghijklmnop": True,
    "tauri://localhost": True,
    "https://chat.example.com/": False,
    "https://Chat.example.com": False,
    "https://*.example.com": False,
    "chat.example.com": False,
    "https://a.example.com,https://b.example.com": False,
    '["*"]': False,
    "null": False,
    "": False,
}


@pytest.mark.parametrize(("origin", "accepted"), ORIGINS.items())
def test_an_origin_that_no_browser_would_send_ends_the_start(
    origin: str, accepted: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["serve", "--model", "m", "--served-model-name", "m", "--allowed-origins", origin]
    if accepted:
        assert _parser().parse_args(line).allowed_origins == [origin]
        return
    with pytest.raises(SystemExit, match="2"):
        _parser().parse_args(line)
    assert "neither * nor an origin as browsers write it" in capsys.readouterr().err
