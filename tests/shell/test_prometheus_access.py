"""A Prometheus behind a proxy that demands a token, a tenant and its own authority; no secret gets out."""

import logging
import ssl
import traceback
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from aiohttp import web

from e2e.cluster.certificates import Authority
from tangram.shell.measure.metrics_reader import MetricsReader, Reading
from tangram.shell.measure.prometheus import MAX_RESPONSE_BYTES, Prometheus, QueryFailed
from tangram.shell.measure.prometheus_access import PrometheusAccessError, read_access
from tangram.shell.settings import PrometheusSettings, SettingsError, parse_settings
from tests.support.fleet import intent as llm

TOKEN, OTHER_TOKEN, TENANT = "s3cret-token-1", "s3cret-token-2", "s3cret-tenant"
CHAT = llm("chat", namespace="ns")
TIME = {"status": "success", "data": {"resultType": "scalar", "result": [100.0, "100"]}}
EMPTY = {"status": "success", "data": {"resultType": "vector", "result": []}}


class Server:
    """A Prometheus on loopback, with TLS, that demands a token and a header of each query."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.token = TOKEN
        self.reply: Callable[[web.Request], web.Response] | None = None
        self.received: list[web.Request] = []
        self.url = ""

    async def handle(self, request: web.Request) -> web.Response:
        self.received.append(request)
        if request.headers.get("Authorization") != f"Bearer {self.token}":
            return web.Response(status=401, text="no")
        if request.headers.get("X-Scope-OrgID") != TENANT:
            return web.Response(status=403, text="no")
        if self.reply is not None:
            return self.reply(request)
        return web.json_response(TIME if (await request.post())["query"] == "time()" else EMPTY)

    def settings(self, **more: object) -> PrometheusSettings:
        values = {"url": self.url, "timeout_seconds": 5, "bearer_token_file": self.folder / "token"}
        files = {"ca_file": self.folder / "ca.crt", "headers_file": self.folder / "headers"}
        return PrometheusSettings.model_validate(values | files | more)


@pytest.fixture(scope="module")
def authorities(tmp_path_factory: pytest.TempPathFactory) -> tuple[Authority, Authority]:
    folder = tmp_path_factory.mktemp("pki")
    ours, other = Authority(folder / "ours"), Authority(folder / "other")
    for authority in (ours, other):
        authority.ensure()
    ours.ensure_pair("prometheus", user="prometheus", addresses=("127.0.0.1",))
    return ours, other


@pytest.fixture
async def server(authorities: tuple[Authority, Authority], tmp_path: Path) -> AsyncIterator[Server]:
    ours, _ = authorities
    made = Server(tmp_path)
    (tmp_path / "ca.crt").write_text(ours.certificate.read_text())
    (tmp_path / "token").write_text(TOKEN + "\n")
    (tmp_path / "headers").write_text(f"# of the proxy\n\nX-Scope-OrgID: {TENANT}\n")
    app = web.Application()
    app.router.add_post("/prefix/api/v1/query", made.handle)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(ours.cert("prometheus"), ours.key("prometheus"))
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    made.url = f"https://127.0.0.1:{runner.addresses[0][1]}/prefix"
    yield made
    await runner.cleanup()


async def read(settings: PrometheusSettings, times: int = 1) -> Reading:
    reader = MetricsReader(settings, now=lambda: 100.0)
    for _ in range(times):
        await reader.read((CHAT,), {CHAT.uid: ("chat-1-a",)})
    await reader.close()
    return reader.reading(CHAT)


async def test_queries_carry_the_token_and_the_headers_of_their_files(server: Server) -> None:
    reading = await read(server.settings())

    assert reading.problem == ""
    assert reading.sample is not None
    assert server.received[0].headers["X-Scope-OrgID"] == TENANT


async def test_headers_of_the_settings_go_with_those_of_the_file(server: Server) -> None:
    await read(server.settings(headers={"X-Team": "ml"}))

    assert {request.headers["X-Team"] for request in server.received} == {"ml"}


async def test_a_token_that_was_replaced_is_sent_from_the_next_round_on(server: Server) -> None:
    settings = server.settings()
    reader = MetricsReader(settings, now=lambda: 100.0)
    await reader.read((CHAT,), {})
    server.token = OTHER_TOKEN
    await reader.read((CHAT,), {})
    refused = reader.reading(CHAT)
    (server.folder / "token").write_text(OTHER_TOKEN)
    await reader.read((CHAT,), {})

    assert "401" in refused.problem
    assert reader.reading(CHAT).problem == ""
    await reader.close()


async def test_an_authority_that_was_replaced_is_trusted_from_the_next_round_on(
    server: Server, authorities: tuple[Authority, Authority]
) -> None:
    ours, other = authorities
    (server.folder / "ca.crt").write_text(other.certificate.read_text())
    reader = MetricsReader(server.settings(), now=lambda: 100.0)
    await reader.read((CHAT,), {})
    refused = reader.reading(CHAT)
    (server.folder / "ca.crt").write_text(other.certificate.read_text() + ours.certificate.read_text())
    await reader.read((CHAT,), {})

    assert "certificate" in refused.problem
    assert reader.reading(CHAT).problem == ""
    await reader.close()


REFUSED = {
    "a wrong token": (
        lambda at: (at / "token").write_text(OTHER_TOKEN),
        "Prometheus answered 401: the token or the headers of prometheus.auth are missing or not accepted",
    ),
    "a wrong tenant": (
        lambda at: (at / "headers").write_text("X-Scope-OrgID: s3cret-other"),
        "Prometheus answered 403: the token or the headers of prometheus.auth do not give access",
    ),
    "no token file": (
        lambda at: (at / "token").unlink(),
        "prometheus.bearerTokenFile {at}/token cannot be read: No such file or directory",
    ),
    "an empty token": (
        lambda at: (at / "token").write_text("\n"),
        "prometheus.bearerTokenFile {at}/token does not hold one token",
    ),
    "a token of two lines": (
        lambda at: (at / "token").write_text(f"{TOKEN}\nX-Admin: s3cret"),
        "prometheus.bearerTokenFile {at}/token does not hold one token",
    ),
    "a token that is no text": (
        lambda at: (at / "token").write_bytes(b"s3cret\xff"),
        "prometheus.bearerTokenFile {at}/token is not text",
    ),
    "a token file without an end": (
        lambda at: (at / "token").write_text("s3cret" * 20_000),
        "prometheus.bearerTokenFile {at}/token is larger than 64 KiB",
    ),
    "an authority that is none": (
        lambda at: (at / "ca.crt").write_text("s3cret"),
        "prometheus.caFile holds no certificate in PEM",
    ),
    "a line that is no header": (
        lambda at: (at / "headers").write_text("X-Scope-OrgID: s3cret\ns3cret"),
        "prometheus.headersFile {at}/headers, line 2, is not `Name: value`",
    ),
    "a header that HTTP itself needs": (
        lambda at: (at / "headers").write_text("Host: s3cret"),
        "prometheus.headersFile {at}/headers, line 1, is not `Name: value`",
    ),
    "two values of one header": (
        lambda at: (at / "headers").write_text("X-A: s3cret\nx-a: s3cret"),
        "prometheus: the header x-a has more than one value",
    ),
    "a token beside another identity": (
        lambda at: (at / "headers").write_text("authorization: Basic s3cret"),
        "prometheus: the header Authorization has more than one value",
    ),
    "more headers than are sent": (
        lambda at: (at / "headers").write_text("".join(f"X-{n}: s3cret\n" for n in range(33))),
        "prometheus.headersFile {at}/headers has more than 32 headers",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
async def test_access_that_is_refused_is_the_problem_of_the_reading(what: str, server: Server) -> None:
    spoil, problem = REFUSED[what]
    spoil(server.folder)

    reading = await read(server.settings())

    assert reading.sample is None
    assert reading.problem.startswith(problem.format(at=server.folder))
    assert "s3cret" not in reading.problem


async def test_a_certificate_of_another_authority_is_refused_with_the_reason(
    server: Server, authorities: tuple[Authority, Authority]
) -> None:
    (server.folder / "ca.crt").write_text(authorities[1].certificate.read_text())

    reading = await read(server.settings())

    assert reading.problem == (
        "the certificate of Prometheus is not accepted (unable to get local issuer certificate)"
    )
    assert server.received == []


async def test_a_certificate_for_another_name_is_refused_with_the_reason(server: Server) -> None:
    reading = await read(server.settings(url=server.url.replace("127.0.0.1", "localhost")))

    assert reading.problem.startswith("the certificate of Prometheus is not accepted (Hostname mismatch")
    assert server.received == []


async def test_a_redirect_gets_no_token(server: Server) -> None:
    target = f"{server.url}/elsewhere"
    server.reply = lambda _request: web.Response(status=307, headers={"Location": target})

    reading = await read(server.settings())

    assert reading.problem.startswith("Prometheus answered 307, a redirect, which is not followed")
    assert len(server.received) == 1


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        (lambda _r: web.Response(body=b"[" * (MAX_RESPONSE_BYTES + 1)), "more than"),
        (
            lambda _r: web.Response(body=b"x", headers={"Content-Encoding": "gzip"}),
            "compressed body",
        ),
    ],
)
async def test_no_response_is_read_without_a_bound(
    reply: Callable[[web.Request], web.Response], problem: str, server: Server
) -> None:
    server.reply = reply

    assert problem in (await read(server.settings())).problem


async def test_a_query_that_was_never_refreshed_fails(server: Server) -> None:
    with pytest.raises(QueryFailed):
        await Prometheus(server.settings()).query("time()", None)


async def test_no_secret_is_logged_shown_or_raised(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    texts: list[str] = []
    settings, authority = server.settings(), (server.folder / "ca.crt").read_text()
    reader = MetricsReader(settings, now=lambda: 100.0)
    for spoil in (lambda at: None, *(spoil for spoil, _ in REFUSED.values())):
        (server.folder / "token").write_text(TOKEN)
        (server.folder / "headers").write_text(f"X-Scope-OrgID: {TENANT}\n")
        (server.folder / "ca.crt").write_text(authority)
        spoil(server.folder)
        await reader.read((CHAT,), {})
        texts.append(repr(reader.reading(CHAT)))
        try:
            texts.append(repr(read_access(settings)))
        except PrometheusAccessError as error:
            texts += traceback.format_exception(error)
        prometheus = Prometheus(settings)
        try:
            await prometheus.refresh()
            await prometheus.query("up", None)
        except QueryFailed as error:
            texts += traceback.format_exception(error)
        texts += [repr(vars(prometheus)), repr(vars(reader))]
        await prometheus.close()
    await reader.close()

    assert server.received[0].headers["Authorization"] == f"Bearer {TOKEN}"
    assert caplog.text
    assert "s3cret" not in caplog.text + "".join(texts)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("https://u:s3cret@prometheus", "must not contain a user or a password"),
        ("https://s3cret@prometheus/x", "must not contain a user or a password"),
        ("https://prometheus/?key=s3cret", "must not have a query"),
        ("https://prometheus/#s3cret", "must not have a query or a fragment"),
        ("https://prometheus s3cret", "must not contain a blank"),
    ],
)
def test_a_url_with_an_identity_is_refused_without_it(url: str, problem: str) -> None:
    with pytest.raises(SettingsError, match=rf"prometheus\.url: .*{problem}") as caught:
        parse_settings(f"engineImage: e\nprometheus: {{url: '{url}'}}", "file")

    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("headers", "problem"),
    [
        ("Authorization: s3cret", "Authorization is secret"),
        ("cookie: s3cret", "cookie is secret"),
        ("Host: s3cret", "Host is a header that the query itself sets"),
        ('X-A: "s3cret\\nX-B: 1"', "the value of X-A must be printable ASCII"),
        ('"X A": s3cret', "the name of a header"),
    ],
)
def test_a_header_that_cannot_be_sent_is_refused_without_its_value(headers: str, problem: str) -> None:
    with pytest.raises(SettingsError, match=rf"prometheus\.headers: .*{problem}") as caught:
        parse_settings(f"engineImage: e\nprometheus: {{url: 'http://p', headers: {{{headers}}}}}", "file")

    assert "s3cret" not in str(caught.value)


def test_an_authority_needs_a_server_with_a_certificate() -> None:
    with pytest.raises(SettingsError, match="caFile needs a url with https"):
        parse_settings("engineImage: e\nprometheus: {url: 'http://p', caFile: /ca.crt}", "file")
