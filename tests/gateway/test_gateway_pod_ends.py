"""The end of a pod of the gateway, with TLS to its clients."""

import signal
import ssl
import threading

import httpx
import pytest

from e2e.cluster.certificates import Authority
from tangram.gateway import envoy_drain
from tests.gateway.conftest import ENABLED
from tests.support.front_door import FrontDoor, bootstrap_of, wait_until


@pytest.fixture(scope="module")
def door(helm, tmp_path_factory):
    """A gateway whose picker drains its Envoy; its certificate is that of the Secret."""
    folder = tmp_path_factory.mktemp("pod")
    authority = Authority(folder / "tls")
    authority.ensure()
    authority.ensure_pair("tls", user="gateway", addresses=["127.0.0.1"])
    gateway = ENABLED["gateway"] | {"tls": {"secretName": "door"}}
    objects = helm.objects({"gateway": gateway})
    (certificate,) = (
        obj["data"]["certificate.yaml"] for obj in objects if "certificate.yaml" in obj.get("data", {})
    )
    (folder / "certificate.yaml").write_text(certificate.replace("/etc/tls", f"{folder}/tls"))
    bootstrap = bootstrap_of(objects).replace("/etc/envoy", str(folder))
    tls = ssl.create_default_context(cafile=authority.certificate)
    drain = (f"--envoy-admin={folder}/admin.sock", "--drain-s=30")
    with FrontDoor(bootstrap, folder, *drain, tls=tls) as running:
        yield running


def test_a_picker_that_is_restarted_alone_leaves_envoy_ready(door):
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(door.folder / "admin.sock"))) as admin:
        admin.post("http://envoy/healthcheck/fail")
    wait_until(lambda: door.http.get("/healthz").status_code == 503)
    door.kill_picker()
    door.start_picker()
    wait_until(lambda: door.http.get("/healthz").status_code == 200)


def test_a_pod_that_ends_finishes_its_requests_and_takes_new_ones_until_clients_know(door):
    (replica,) = door.serve("team-a", "chat", "only")
    replica.holds = True
    lines = []

    def read():
        body = {"model": "chat", "messages": [], "stream": True, "max_tokens": 70}
        with door.http.stream("POST", "/v1/chat/completions", json=body) as response:
            lines.extend(line for line in response.iter_lines() if line)

    reader = threading.Thread(target=read)
    reader.start()
    wait_until(lambda: lines)
    door.picker.send_signal(signal.SIGTERM)
    wait_until(lambda: door.http.get("/healthz").status_code == 503)
    late = door.http.get("/v1/models")
    assert (late.status_code, late.headers["connection"]) == (200, "close")  # the next one goes elsewhere
    wait_until(lambda: "1 requests run" in (door.folder / "python.log").read_text())
    replica.holds = False
    reader.join()
    assert (len(lines), lines[-1]) == (71, "data: [DONE]")
    assert door.picker.wait(10) == 0


class Admin:
    """An Envoy that answers each call with the next of these."""

    def __init__(self, *answers):
        self.answers = list(answers)

    async def post(self, _path):
        await self.active_requests()

    async def active_requests(self):
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.mark.parametrize(
    ("answers", "is_drained"),
    [
        # The posts, then the running requests.
        ([TimeoutError(), 0, OSError(), 0, 1, *[TimeoutError()] * 9, 1, OSError(), 0], True),
        ([0, 0, 1, *[TimeoutError()] * 10], False),
    ],
    ids=["busy", "gone"],
)
async def test_calls_that_fail_end_no_drain_until_envoy_counts_as_gone(monkeypatch, answers, is_drained):
    monkeypatch.setattr(envoy_drain, "POLL_S", 0)
    admin = Admin(*answers)
    assert await envoy_drain.drain(admin, 10, lag_s=0) is is_drained
    assert admin.answers == []
