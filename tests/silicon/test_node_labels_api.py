"""Labels are set through the API with the pod's own token, and only what differs is sent."""

import json
import threading
import urllib.error
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from e2e.silicon.node import Api, set_labels


class Server(ThreadingHTTPServer):
    """An API server that knows one node and remembers what was asked."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.labels = {"zone": "a", "nvidia.com/mig-1g.10gb.count": "7"}
        self.calls = []
        self.refuse = 0


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def _answer(self, status, body):
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def do_GET(self):
        self.server.calls.append(("GET", self.path, self.headers["Authorization"], None))
        self._answer(200, {"metadata": {"name": "node-a", "labels": self.server.labels}})

    def do_PATCH(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.calls.append(("PATCH", self.path, self.headers["Content-Type"], body))
        self._answer(self.server.refuse or 200, {})


@pytest.fixture
def server():
    with Server() as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


@pytest.fixture
def api(server, tmp_path):
    token = tmp_path / "token"
    token.write_text("first\n")
    return Api(f"http://127.0.0.1:{server.server_port}", token)


def test_only_what_differs_is_patched_and_stale_slices_are_removed(server, api):
    assert set_labels(api, "node-a", {"nvidia.com/gpu.count": "1"}) == 2
    method, path, kind, body = server.calls[-1]
    assert (method, path, kind) == ("PATCH", "/api/v1/nodes/node-a", "application/merge-patch+json")
    assert body == {
        "metadata": {"labels": {"nvidia.com/gpu.count": "1", "nvidia.com/mig-1g.10gb.count": None}}
    }


def test_nothing_is_written_when_nothing_differs(server, api):
    assert set_labels(api, "node-a", {"nvidia.com/mig-1g.10gb.count": "7"}) == 0
    assert [call[0] for call in server.calls] == ["GET"]


def test_a_renewed_token_is_used_at_once(server, api):
    set_labels(api, "node-a", dict(server.labels))
    api.token.write_text("second")
    set_labels(api, "node-a", dict(server.labels))
    assert [call[2] for call in server.calls] == ["Bearer first", "Bearer second"]


def test_a_refusal_is_an_oserror_that_the_agent_retries(server, api):
    server.refuse = 403
    with pytest.raises(OSError, match="403") as refused:
        set_labels(api, "node-a", {"nvidia.com/gpu.count": "1"})
    assert isinstance(refused.value, urllib.error.HTTPError)
    refused.value.close()


def test_a_pod_finds_the_api_server_where_kubernetes_says_it_is():
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    assert Api.in_cluster(environ).url == "https://[fd00::1]:443"
    with pytest.raises(KeyError):
        Api.in_cluster({})
