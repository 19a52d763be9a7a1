"""How the agent follows its GPUNode and its Node: events, resumption, and streams that are hostile."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tangram.partition.agent import cluster as cluster_module
from tangram.partition.agent.api_access import APIAccess
from tangram.partition.agent.cluster import Cluster, ClusterFailure, WatchExpired
from tangram.partition.agent.watch import FIRST_DELAY_S, LONGEST_DELAY_S, STEADY_S, NodeWatch, ObjectWatch

NAME = "node-a"


def gpu_node(version="1", generation=1, **fields):
    meta = {"name": NAME, "uid": "u", "generation": generation, "resourceVersion": version}
    return {"kind": "GPUNode", "metadata": meta, **fields}


def node(version="1", labels=None, allocatable=None, **status):
    meta = {"name": NAME, "uid": "n", "labels": labels or {}, "resourceVersion": version}
    return {"kind": "Node", "metadata": meta, "status": {"allocatable": allocatable or {}, **status}}


def line(obj, kind="MODIFIED"):
    return json.dumps({"type": kind, "object": obj}).encode()


def bookmark(version):
    return line({"kind": "GPUNode", "metadata": {"resourceVersion": version}}, "BOOKMARK")


class Streams:
    """Streams as listed: lines, and what is raised before the first or after the last of them."""

    def __init__(self, *streams):
        self.streams = list(streams)
        self.versions = []
        self.now = 0.0
        self.waits = []

    @contextmanager
    def watch(self, kind, version, *, lasts_s, silence_s):
        assert kind in {"GPUNode", "Node"}
        assert lasts_s > silence_s > 0
        self.versions.append(version)
        stream = self.streams.pop(0)
        if isinstance(stream, Exception):
            raise stream
        yield self.lines(stream)

    def lines(self, stream):
        for entry in stream:
            if isinstance(entry, Exception):
                raise entry
            if isinstance(entry, float):
                self.now += entry
            elif callable(entry):
                entry()
            else:
                yield entry

    def follow(self, kind="GPUNode"):
        """Follow all streams; return the watch, and how often it saw a change."""
        changes = []
        watch = ObjectWatch(self, kind, NAME, lambda: changes.append(1), self.waits.append, lambda: self.now)
        while self.streams:
            watch.watch_once()
        return watch, len(changes)


def changes(*events, kind="GPUNode"):
    return Streams(events).follow(kind)[1]


def test_a_new_spec_is_a_change_and_a_status_is_none():
    assert changes(line(gpu_node(), "ADDED")) == 1
    assert changes(line(gpu_node()), line(gpu_node("2", status={"gpuCount": 1}))) == 1
    assert changes(line(gpu_node()), line(gpu_node("2", generation=2))) == 2
    assert changes(line(gpu_node()), bookmark("2"), line(gpu_node("3"), "DELETED")) == 2


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
    assert changes(line(node()), line(after), kind="Node") == expected


def test_a_watch_resumes_after_its_last_event_or_bookmark():
    streams = Streams([line(gpu_node("5"), "ADDED")], [bookmark("9")], [])

    _, seen = streams.follow()

    assert streams.versions == [None, "5", "9"]
    assert seen == 1


@pytest.mark.parametrize(
    "expired",
    [WatchExpired("410"), [line({"kind": "Status", "code": 410, "message": "too old"}, "ERROR")]],
    ids=["response", "event"],
)
def test_a_version_that_is_too_old_begins_the_watch_anew_and_is_a_change_only_if_there_was_one(expired):
    same = Streams([line(gpu_node("5"))], expired, [line(gpu_node("5"), "ADDED")])
    assert same.follow()[1] == 1
    assert same.versions == [None, "5", None]

    other = Streams([line(gpu_node("5"))], expired, [line(gpu_node("8", generation=2), "ADDED")])
    assert other.follow()[1] == 2


HOSTILE = [
    b"{",
    b"[]",
    b"7",
    b'{"type": "ADDED"}',
    b'{"type": "ADDED", "object": 7}',
    b'{"type": "ADDED", "object": {"metadata": {}}}',
    b"\xff\xfe",
    b'{"type": "ERROR", "object": []}',
    line({"kind": "Status", "code": 500, "message": "x"}, "ERROR"),
    line(gpu_node() | {"metadata": {"name": "node-b", "resourceVersion": "9"}}),
    b"[" * 200_000,
    b'{"type":"ADDED","object":' + b'{"a":' * 100_000,
]


@pytest.mark.parametrize("wrong", HOSTILE, ids=range(len(HOSTILE)))
def test_a_line_that_is_no_event_of_the_object_ends_the_stream_and_the_watch_resumes_before_it(wrong):
    streams = Streams([line(gpu_node("5")), wrong, line(gpu_node("7", generation=7))], [])

    watch, seen = streams.follow()

    assert (seen, streams.versions) == (1, [None, "5"])
    assert watch.copy is None  # no stream continues it


def test_the_copy_is_given_only_while_a_stream_continues_it():
    copies = []

    def note():
        copies.append(watch.copy)

    streams = Streams()
    watch = ObjectWatch(streams, "Node", NAME, lambda: None, streams.waits.append, lambda: streams.now)
    first = node("5", images=[{"names": ["x"]}])
    first["metadata"]["managedFields"] = [{}]
    streams.streams = [
        [note, line(first), note],
        ClusterFailure("refused"),
        [note],
        WatchExpired("410"),
        [note, line(node("8"), "ADDED"), note, line(node("9"), "DELETED"), note],
    ]
    while streams.streams:
        watch.watch_once()
        note()

    unknown = [None, node("5"), None, None, node("5"), None, None]
    assert copies == [*unknown, None, node("8"), None, None]


def test_watches_that_do_not_last_are_tried_again_later_and_later_within_a_bound():
    streams = Streams(*[ClusterFailure("refused")] * 12, [line(gpu_node()), STEADY_S], ClusterFailure("x"))

    streams.follow()

    factor = streams.waits[0] / FIRST_DELAY_S
    assert 0.5 <= factor < 1.5
    delays = [wait / factor for wait in streams.waits]
    assert delays[:4] == pytest.approx([1, 2, 4, 8])
    assert delays[11] == pytest.approx(LONGEST_DELAY_S)
    assert delays[12:] == pytest.approx([FIRST_DELAY_S])  # none after the stream that lasted


def test_a_server_that_ends_each_watch_after_one_event_is_not_called_without_a_pause():
    streams = Streams(*[[line(gpu_node(str(number)))] for number in range(5)])

    streams.follow()

    assert len(streams.waits) == 5


def test_only_the_first_of_failures_in_a_row_is_a_warning(caplog):
    Streams(ClusterFailure("a"), ClusterFailure("b"), [line(gpu_node())], ClusterFailure("c")).follow()

    assert [record.message for record in caplog.records] == ["a: watching again", "c: watching again"]


class ScriptedServer(BaseHTTPRequestHandler):
    """Answers each request as `answer` of its server says, in chunks."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.server.requests.append((self.path, dict(self.headers)))
        status, chunks = self.server.answer
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for chunk in chunks:
                if chunk is None:
                    self.server.released.wait(20)
                    continue
                self.wfile.write(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
                self.server.sent += len(chunk)
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.close_connection = True

    def log_message(self, *_arguments):
        """Say nothing."""


@pytest.fixture
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), ScriptedServer) as serving:
        serving.requests, serving.answer, serving.sent = [], (200, []), 0
        serving.released = threading.Event()
        thread = threading.Thread(target=serving.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        serving.cluster = Cluster(
            APIAccess(f"http://127.0.0.1:{serving.server_port}", None, lambda: "token"),
            NAME,
            plugin_namespace="ns",
            plugin_selector="app=x",
        )
        yield serving
        serving.released.set()
        serving.shutdown()


def lines_of(server, version=None, silence_s=5.0):
    with server.cluster.watch("GPUNode", version, lasts_s=300, silence_s=silence_s) as lines:
        return list(lines)


def test_a_watch_asks_for_one_object_by_its_name_with_bookmarks_and_an_end(server):
    server.answer = (200, [b'{"a": 1}\n{"b"', b": 2}\n\n", b'{"unfinished'])

    assert lines_of(server, "17") == [b'{"a": 1}', b'{"b": 2}']

    path, headers = server.requests[0]
    assert path == (
        "/apis/tangram.dev/v1alpha1/gpunodes?watch=true&fieldSelector=metadata.name%3Dnode-a"
        "&allowWatchBookmarks=true&timeoutSeconds=300&resourceVersion=17"
    )
    assert (headers["Authorization"], headers["Accept-Encoding"]) == ("Bearer token", "identity")


def test_the_first_watch_names_no_version_so_that_it_begins_with_the_object(server):
    lines_of(server)

    assert "resourceVersion" not in server.requests[0][0]


@pytest.mark.parametrize(
    ("status", "failure"), [(410, WatchExpired), (403, ClusterFailure), (500, ClusterFailure)]
)
def test_a_response_that_is_no_stream_is_a_failure(server, status, failure):
    server.answer = (status, [b"{}"])

    with pytest.raises(failure, match=str(status)):
        lines_of(server)


def test_a_line_without_an_end_is_given_up_before_it_fills_the_memory(server, monkeypatch):
    monkeypatch.setattr(cluster_module, "LONGEST_EVENT", 2**16)
    server.answer = (200, [b"x" * 2**14] * 4000)

    with pytest.raises(ClusterFailure, match="more than 65536 bytes"):
        lines_of(server)

    assert server.sent < 4000 * 2**14


def test_a_line_that_is_too_long_is_no_event_even_if_it_ends(server, monkeypatch):
    monkeypatch.setattr(cluster_module, "LONGEST_EVENT", 100)
    server.answer = (200, [b"x" * 101 + b"\n"])

    with pytest.raises(ClusterFailure, match="more than 100 bytes"):
        lines_of(server)


def test_a_watch_that_says_nothing_is_ended(server):
    server.answer = (200, [b"{}\n", None])

    with pytest.raises(ClusterFailure, match="ReadTimeout"):
        lines_of(server, silence_s=0.2)


def test_an_object_that_nests_too_deep_is_a_failed_read_and_not_the_end_of_the_process(server):
    server.answer = (200, [b"[" * 200_000])

    with pytest.raises(ClusterFailure, match="RecursionError"):
        server.cluster.gpu_node()


def test_both_objects_are_watched_and_given_together(server):
    server.answer = (200, [line(node("3"), "ADDED") + b"\n", None])
    changed = threading.Semaphore(0)
    watch = NodeWatch(server.cluster, NAME, changed.release)
    assert watch.copies() is None

    watch.start()

    assert changed.acquire(timeout=20)
    assert changed.acquire(timeout=20)
    assert watch.copies() == (node("3"), node("3"))
    assert sorted(path.split("?")[0] for path, _ in server.requests) == [
        "/api/v1/nodes",
        "/apis/tangram.dev/v1alpha1/gpunodes",
    ]
