"""The webhook on its port: what it answers, and what it outlives."""

import asyncio
import contextlib
import gc
import json
import math
import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.certificates import Authority
from tangram.admission import NO_ANSWER, RefusedField, Review
from tangram.kube.kinds import GPU_POOLS, LLM_DEPLOYMENTS, NODES
from tangram.shell.admission import review_server, reviewer
from tangram.shell.admission.certificate import WebhookCertificate, expiry
from tangram.shell.admission.processor_share import ProcessorShare
from tangram.shell.intake import supervision
from tangram_http.tls_listener import MOST_HANDSHAKES
from tests.support.apiserver import llm
from tests.support.kopf_api import DEEP, KopfApi
from tests.support.webhook import issue, review, webhook

MODEL = llm("m", "n")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("authority")


@pytest.fixture
def folder(authority: Path, tmp_path: Path) -> Path:
    return issue(tmp_path / "webhook", authority)


@pytest.fixture(autouse=True)
def short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "RESTART_S", (0.02, 0.05))
    monkeypatch.setattr(review_server, "CERTIFICATE_CHECK_S", 0.05)


def api(**fields: Any) -> KopfApi:
    return KopfApi((LLM_DEPLOYMENTS, GPU_POOLS), **fields)


async def until(check: Callable[[], Any]) -> None:
    async with asyncio.timeout(20.0):
        while not check():  # noqa: ASYNC110 - of another thread
            await asyncio.sleep(0.02)


async def is_open(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionRefusedError:
        return False
    writer.close()
    return True


async def test_a_refusal_is_a_422_with_the_field(
    folder: Path, authority: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = RefusedField("spec.placement.allowedSKUs", "no node has H1000-80GB, perhaps H100-80GB-SXM")
    monkeypatch.setattr(reviewer, "refusal", lambda *_: refused)
    async with webhook(api(), folder, authority) as this:
        status, response = await (await this.up()).post(review(MODEL))

    assert (status, response["allowed"], response["status"]["code"]) == (200, False, 422)
    assert response["status"]["message"] == f"{refused.field_path}: {refused.message}"
    assert this.outcomes == ["refused"]


async def test_warnings_are_what_the_placement_says(folder: Path, authority: Path) -> None:
    seen: list[Review] = []

    async def placement(asked: Review) -> tuple[str, ...]:
        seen.append(asked)
        return ("runs on 1 x H100-80GB-SXM, $2.49/h", "x" * 120)

    update = review(MODEL, operation="UPDATE", oldObject=MODEL, dryRun=True)
    async with webhook(api(), folder, authority, placement) as this:
        _, response = await (await this.up()).post(update)

    assert response["allowed"]
    assert response["warnings"] == ["runs on 1 x H100-80GB-SXM, $2.49/h", "x" * 120]
    assert seen == [Review("UPDATE", "llmdeployments", "n", "m", MODEL, MODEL, "ada", dry_run=True)]


async def test_kopf_remembers_no_object_that_is_updated(folder: Path, authority: Path) -> None:
    async with webhook(api(), folder, authority) as this:
        await this.up()
        for number in range(20):
            body = MODEL | {"metadata": {"name": "m", "namespace": "n", "uid": f"uid-{number}"}}
            await this.post(review(body, operation="UPDATE", oldObject=body))
        remembered = [obj for obj in gc.get_objects() if type(obj).__name__ == "ResourceMemory"]

    assert this.outcomes == ["admitted"] * 20
    assert remembered == []


async def test_a_fault_of_our_own_refuses_nothing(
    folder: Path, authority: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(reviewer, "refusal", fails)
    async with webhook(api(), folder, authority) as this:
        _, response = await (await this.up()).post(review(MODEL))

    assert (response["allowed"], this.outcomes) == (True, ["failed"])


async def test_a_placement_that_takes_long_is_answered_in_time(folder: Path, authority: Path) -> None:
    begun: list[float] = []

    async def placement(_review: Review) -> tuple[str, ...]:
        begun.append(time.monotonic())
        await asyncio.sleep(3600)
        return ()

    async with webhook(api(), folder, authority, placement) as this:
        await this.up()
        _, response = await this.post(review(MODEL))
        took_s = time.monotonic() - begun[0]

    assert (response["allowed"], response["warnings"], this.outcomes) == (True, [NO_ANSWER], ["late"])
    assert 0.9 * reviewer.ANSWER_S < took_s < 2.0  # timeoutSeconds of the chart's webhook


def nested(levels: int) -> Any:
    return [nested(levels - 1)] if levels else []


INVALID = {
    "no JSON": (b"<html>", 400),
    "no AdmissionReview": (b"[]", 400),
    "nested 10,000 deep": (b'{"request":{"object":' + DEEP + b"}}", 400),
    "nested 65 deep": (json.dumps(review(MODEL | {"extra": nested(61)})).encode(), 400),
    "larger than 4 MiB": (b'{"request":"' + b"x" * review_server.MAX_REVIEW_BYTES + b'"}', 413),
    "of a kind that is not ours": (json.dumps(review({}, NODES)).encode(), 400),
}


def with_fields(fields: Any) -> dict[str, Any]:
    """Return a model with managedFields, which tenants may nest deep."""
    return MODEL | {"metadata": MODEL["metadata"] | {"managedFields": [{"fieldsV1": fields}]}}


async def test_what_is_no_review_is_refused_and_harms_no_other(folder: Path, authority: Path) -> None:
    async with webhook(api(), folder, authority) as this:
        await this.up()
        statuses = {name: (await this.post(body))[0] for name, (body, _) in INVALID.items()}
        elsewhere, _ = await this.post(review(MODEL), this.url[:-1])
        answers = [
            await this.post(json.dumps(review(body)).replace('"deeper"', DEEP.decode()).encode())
            for body in (MODEL | {"extra": nested(60)}, with_fields(nested(500)), with_fields("deeper"))
        ]

    assert statuses == {name: status for name, (_, status) in INVALID.items()}
    assert elsewhere == 404, "only the API server knows the path"
    assert all(response["allowed"] for _, response in answers)
    assert this.outcomes == ["invalid"] * len(INVALID) + ["admitted"] * 3


async def test_clients_that_say_nothing_hold_up_no_review(folder: Path, authority: Path) -> None:
    async with webhook(api(), folder, authority) as this:
        await this.up()
        silent = [socket.create_connection(("127.0.0.1", this.port)) for _ in range(MOST_HANDSHAKES + 8)]
        try:
            status, _ = await this.post(review(MODEL))
            await asyncio.sleep(0.1)
            ended = sum(_has_ended(client) for client in silent)
        finally:
            for client in silent:
                client.close()

    assert status == 200
    assert ended == 9, "handshakes beyond the limit, and the one of the review"


def _has_ended(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


async def test_a_flood_takes_a_share_of_a_core_and_the_rest_is_admitted_unreviewed(
    folder: Path, authority: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(review_server, "BURST_S", 0.1)
    monkeypatch.setattr(review_server, "SHARE", 0.02)
    async with webhook(api(), folder, authority) as this:
        await this.up()
        answers = await asyncio.gather(*(this.post(review(MODEL)) for _ in range(500)))

    statuses = [status for status, _ in answers]
    assert set(statuses) == {200, 503}
    assert this.outcomes.count("busy") == statuses.count(503) > 20


async def test_a_flood_of_handshakes_takes_no_more(
    folder: Path, authority: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(review_server, "BURST_S", 0.02)
    monkeypatch.setattr(review_server, "SHARE", 0.01)

    def handshakes(port: int) -> int:
        until, done = time.monotonic() + 1.0, 0
        while time.monotonic() < until:
            with socket.create_connection(("127.0.0.1", port)) as client:
                client.settimeout(0.2)
                with contextlib.suppress(OSError), trusting.wrap_socket(client, server_hostname="localhost"):
                    done += 1
        return done

    trusting = ssl.create_default_context(cafile=str(Authority(authority).certificate))
    async with webhook(api(), folder, authority) as this:
        await this.up()
        done = await asyncio.to_thread(handshakes, this.port)

    assert 0 < done < 120, "of several hundred"


def test_a_share_is_earned_while_nothing_is_used() -> None:
    clock, used = [0.0], [0.0]
    share = ProcessorShare(0.25, 2.0, lambda: clock[0], lambda: used[0])
    clock[0], used[0] = 100.0, 1.9
    assert share.has_left(), "idle time adds no more than the burst"
    clock[0], used[0] = 100.0, 3.9
    assert not share.has_left()
    clock[0] = 108.0
    assert share.has_left(), "a quarter of a core earns the rest"


@pytest.mark.parametrize("refused", [{"/apis": 404}, {"/v1alpha1": 500}])
async def test_a_kopf_that_never_comes_up_opens_no_port(
    folder: Path, authority: Path, refused: dict[str, int]
) -> None:
    faulty = api(refused=refused)
    async with webhook(faulty, folder, authority) as this:
        await until(lambda: sum(faulty.requests.values()) >= 6)
        assert not await is_open(this.port)


async def test_an_outage_of_the_api_server_leaves_it_up(folder: Path, authority: Path) -> None:
    down = api()
    async with webhook(down, folder, authority) as this:
        await this.up()
        down.refused[""] = 503  # whatever is asked for
        await until(lambda: down.requests["GET /apis/tangram.dev/v1alpha1/llmdeployments"] >= 4)
        assert (await this.post(review(MODEL)))[0] == 200


async def test_the_port_opens_with_a_certificate_and_serves_its_renewal(
    authority: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    async with webhook(api(), mounted, authority) as this:
        await until(lambda: this.expiries)
        assert not await is_open(this.port)
        assert math.isnan(this.expiries[-1])
        (logged,) = [text for text in caplog.messages if "certificate" in text]
        assert str(mounted) in logged

        issue(mounted, authority)
        await this.up()
        first, before = await asyncio.to_thread(_served_certificate, this.port), this.certificate.in_force()
        (mounted / "tls.key").write_text("half of a renewal")
        issue(mounted, authority, "renewed")
        await until(lambda: this.certificate.in_force() is not before)
        assert await asyncio.to_thread(_served_certificate, this.port) != first
        assert (await this.post(review(MODEL)))[0] == 200


def _served_certificate(port: int) -> str:
    return ssl.get_server_certificate(("127.0.0.1", port))


def test_an_expired_certificate_is_said_once(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    now, expiries = [0.0], list[float]()
    certificate = WebhookCertificate(folder, lambda: now[0], expiries.append)
    certificate.refresh()
    assert caplog.messages == []
    assert abs(expiries[-1] - time.time() - 3650 * 86400) < 86400

    now[0] = expiries[-1]
    certificate.refresh()
    certificate.refresh()
    (said,) = caplog.messages
    assert "expired" in said
    assert certificate.in_force() is not None


@pytest.mark.parametrize("name", ["tls.crt", "tls.key", "path"])
@pytest.mark.parametrize("content", [b"", b"\xff", b"x" * (2 << 20), None])
def test_files_that_cannot_be_used_leave_the_last_certificate_in_force(
    folder: Path, caplog: pytest.LogCaptureFixture, name: str, content: bytes | None
) -> None:
    certificate = WebhookCertificate(folder, lambda: 0.0, lambda _: None)
    certificate.refresh()
    before = certificate.in_force(), certificate.path
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content)
    certificate.refresh()
    certificate.refresh()

    assert (certificate.in_force(), certificate.path) == before
    assert len(caplog.messages) == 1


@pytest.mark.parametrize(
    "der", [b"", b"\x30", b"\x30\x03\x30\x01\x00", b"\x30\x84\xff\xff\xff\xff", b"\x30\x00"]
)
def test_a_certificate_that_is_none_has_no_expiry(der: bytes) -> None:
    with pytest.raises(ValueError, match=r"tls\.crt"):
        expiry(ssl.DER_cert_to_PEM_cert(der))
