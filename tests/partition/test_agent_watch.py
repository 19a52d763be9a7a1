"""How the agent follows its GPUNode and its Node: events, resumption, and events that are hostile."""

import asyncio
import json
import ssl
import threading
from copy import deepcopy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tangram.kube.client import ApiError, WatchEvent
from tangram.kube.kinds import GPU_NODES, NODES
from tangram.partition.agent.api_thread import ApiThread
from tangram.partition.agent.cluster import Cluster
from tangram.partition.agent.watch import FIRST_DELAY_S, LONGEST_DELAY_S, STEADY_S, NodeWatch, ObjectWatch
from tests.support.plain_credentials import PlainCredentials

NAME = "node-a"
REFUSED = ApiError(0, "Unreachable", "refused")
EXPIRED = ApiError(410, "Expired", "too old")


def gpu_node(version="1", generation=1, **fields):
    meta = {"name": NAME, "uid": "u", "generation": generation, "resourceVersion": version}
    return {"kind": "GPUNode", "metadata": meta, **fields}


def node(version="1", labels=None, allocatable=None, **status):
    meta = {"name": NAME, "uid": "n", "labels": labels or {}, "resourceVersion": version}
    return {"kind": "Node", "metadata": meta, "status": {"allocatable": allocatable or {}, **status}}


def event(obj, kind="MODIFIED"):
    return WatchEvent(kind, deepcopy(obj))


def bookmark(version):
    return WatchEvent("BOOKMARK", {"kind": "GPUNode", "metadata": {"resourceVersion": version}})


class Streams:
    """Streams as listed: events, and what is raised before the first or after the last of them."""

    def __init__(self, *streams):
        self.streams = list(streams)
        self.versions = []
        self.now = 0.0
        self.waits = []

    async def watch(self, kind, version, *, server_timeout_s, field_selector, on_open):
        assert kind in {GPU_NODES, NODES}
        assert 300 <= server_timeout_s <= 360
        assert field_selector == f"metadata.name={NAME}"
        self.versions.append(version)
        stream = self.streams.pop(0)
        if isinstance(stream, Exception):
            raise stream
        on_open()
        for entry in stream:
            if isinstance(entry, Exception):
                raise entry
            if isinstance(entry, float):
                self.now += entry
            elif callable(entry):
                entry()
            else:
                yield entry

    async def sleep(self, seconds):
        self.waits.append(seconds)

    def object_watch(self, kind=GPU_NODES, changed=lambda: None):
        return ObjectWatch(self, kind, NAME, changed, self.sleep, lambda: self.now)

    def follow(self, kind=GPU_NODES):
        """Follow all streams; return the watch, and how often it saw a change."""
        changes = []
        watch = self.object_watch(kind, lambda: changes.append(1))
        while self.streams:
            asyncio.run(watch.watch_once())
        return watch, len(changes)


def changes(*events, kind=GPU_NODES):
    return Streams(events).follow(kind)[1]


def test_a_new_spec_is_a_change_and_a_status_is_none():
    assert changes(event(gpu_node(), "ADDED")) == 1
    assert changes(event(gpu_node()), event(gpu_node("2", status={"gpuCount": 1}))) == 1
    assert changes(event(gpu_node()), event(gpu_node("2", generation=2))) == 2
    assert changes(event(gpu_node()), bookmark("2"), event(gpu_node("3"), "DELETED")) == 2


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (node("2", conditions=[{"type": "Ready"}]), 1),  # a heartbeat
        (node("2", labels={"nvidia.com/gpu.deploy.dcgm": "paused"}), 2),
        (node("2", allocatable={"nvidia.com/mig-4g.40gb": "1"}), 2),
        (node("2", nodeInfo={"bootID": "b"}), 2),
    ],
)
def test_labels_allocatable_and_boot_of_the_node_are_changes_and_heartbeats_are_none(after, expected):
    assert changes(event(node()), event(after), kind=NODES) == expected


def test_a_watch_resumes_after_its_last_event_or_bookmark():
    streams = Streams([event(gpu_node("5"), "ADDED")], [bookmark("9")], [])

    _, seen = streams.follow()

    assert streams.versions == [None, "5", "9"]
    assert seen == 1


@pytest.mark.parametrize(
    "expired",
    [EXPIRED, [event({"kind": "Status", "code": 410, "message": "too old"}, "ERROR")]],
    ids=["response", "event"],
)
def test_a_version_that_is_too_old_begins_the_watch_anew_and_is_a_change_only_if_there_was_one(expired):
    same = Streams([event(gpu_node("5"))], expired, [event(gpu_node("5"), "ADDED")])
    assert same.follow()[1] == 1
    assert same.versions == [None, "5", None]

    other = Streams([event(gpu_node("5"))], expired, [event(gpu_node("8", generation=2), "ADDED")])
    assert other.follow()[1] == 2


HOSTILE = [
    event({"metadata": {"name": NAME}}),
    event({"metadata": 7}),
    event({"metadata": {"name": NAME, "resourceVersion": "9"}, "status": 7}),
    event({"metadata": {"name": "node-b", "resourceVersion": "9"}}),
    WatchEvent("BOOKMARK", {}),
    WatchEvent("ERROR", {"kind": "Status", "code": 500, "message": "x"}),
    WatchEvent("ERROR", {"code": "x"}),
    ApiError(0, "Garbled", "a watch event is not JSON"),
]


@pytest.mark.parametrize("wrong", HOSTILE, ids=range(len(HOSTILE)))
def test_what_is_no_event_of_the_object_ends_the_stream_and_the_watch_resumes_before_it(wrong):
    streams = Streams([event(gpu_node("5")), wrong, event(gpu_node("7", generation=7))], [])

    watch, seen = streams.follow()

    assert (seen, streams.versions) == (1, [None, "5"])
    assert watch.copy is None  # no stream continues it


def test_the_copy_is_given_only_while_a_stream_continues_it():
    copies = []

    def note():
        copies.append(watch.copy)

    streams = Streams()
    watch = streams.object_watch(NODES)
    first = node("5", images=[{"names": ["x"]}])
    first["metadata"]["managedFields"] = [{}]
    streams.streams = [
        [note, event(first), note],
        REFUSED,
        [note],
        EXPIRED,
        [note, event(node("8"), "ADDED"), note, event(node("9"), "DELETED"), note],
    ]
    while streams.streams:
        asyncio.run(watch.watch_once())
        note()

    unknown = [None, node("5"), None, None, node("5"), None, None]
    assert copies == [*unknown, None, node("8"), None, None]


def test_watches_that_do_not_last_are_tried_again_later_and_later_within_a_bound():
    streams = Streams(*[REFUSED] * 12, [event(gpu_node()), STEADY_S], REFUSED)

    streams.follow()

    longest = [min(FIRST_DELAY_S * 2**number, LONGEST_DELAY_S) for number in range(12)]
    assert len(streams.waits) == 12 + 1  # none after the stream that lasted
    for wait, at_most in zip(streams.waits, [*longest, FIRST_DELAY_S], strict=True):
        assert at_most / 2 <= wait <= at_most


def test_a_server_that_ends_each_watch_after_one_event_is_not_called_without_a_pause():
    streams = Streams(*[[event(gpu_node(str(number)))] for number in range(5)])

    streams.follow()

    assert len(streams.waits) == 5


def test_only_the_first_of_failures_in_a_row_is_a_warning(caplog):
    first, second, third = (ApiError(0, reason, "refused") for reason in "abc")
    Streams(first, second, [event(gpu_node())], third).follow()

    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert warnings == [f"no response {reason}: refused: watching again" for reason in "ac"]


class ScriptedServer(BaseHTTPRequestHandler):
    """Answers each request as `answer` of its server says, in chunks; None waits for `released`."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.server.paths.append(self.path)
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for chunk in self.server.answer:
                if chunk is None:
                    self.server.released.wait(20)
                    continue
                self.wfile.write(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.close_connection = True

    def log_message(self, *_arguments):
        """Say nothing."""


@pytest.fixture
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), ScriptedServer) as serving:
        serving.paths, serving.answer = [], []
        serving.released = threading.Event()
        thread = threading.Thread(target=serving.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        serving.api = ApiThread(PlainCredentials(f"http://127.0.0.1:{serving.server_port}"), deadline_s=5.0)
        yield serving
        serving.api.close()
        serving.released.set()
        serving.shutdown()


def test_an_object_that_nests_too_deep_is_a_failed_read_and_not_the_end_of_the_process(server):
    server.answer = [b"[" * 200_000]
    cluster = Cluster(server.api, NAME, plugin_namespace="ns", plugin_selector="app=x")

    with pytest.raises(ApiError, match="not JSON"):
        cluster.gpu_node()


def test_both_objects_are_watched_and_given_together(server):
    line = json.dumps({"type": "ADDED", "object": node("3")}).encode()
    server.answer = [line + b"\n", None]
    changed = threading.Semaphore(0)
    watch = NodeWatch(server.api.client, NAME, changed.release)
    assert watch.copies() is None

    server.api.begin(watch.follow())

    assert changed.acquire(timeout=20)
    assert changed.acquire(timeout=20)
    assert watch.copies() == (node("3"), node("3"))
    assert sorted(path.split("?")[0] for path in server.paths) == [
        "/api/v1/nodes",
        "/apis/tangram.dev/v1alpha1/gpunodes",
    ]


def test_calls_go_on_beside_watches_that_are_silent(server):
    server.answer = [None, b"{}"]
    server.api.begin(NodeWatch(server.api.client, NAME, lambda: None).follow())
    while len(server.paths) < 2:
        server.released.wait(0.01)
    server.answer = [json.dumps(node("3")).encode()]

    assert server.api.call(server.api.client.get(NODES, "", NAME)) == node("3")


def test_work_that_ends_by_a_defect_is_logged(server, caplog):
    ended = threading.Event()

    async def fails():
        try:
            raise ZeroDivisionError
        finally:
            ended.set()

    server.api.begin(fails())
    assert ended.wait(20)
    server.api.call(asyncio.sleep(0))  # after what follows the end

    assert "work beside the rounds ended" in caplog.text


def test_certificates_that_cannot_be_read_are_an_error_of_the_start(tmp_path):
    with pytest.raises(FileNotFoundError):
        ApiThread(PlainCredentials("https://127.0.0.1:1", ca_path=str(tmp_path / "ca.crt")))

    (tmp_path / "ca.crt").write_text("no certificate")
    with pytest.raises(ssl.SSLError):
        ApiThread(PlainCredentials("https://127.0.0.1:1", ca_path=str(tmp_path / "ca.crt")))
