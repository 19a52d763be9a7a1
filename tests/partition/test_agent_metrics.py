"""What the metrics of a node agent show, and that neither scrapes nor the driver hold each other up."""

import re
import socket
import threading
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from e2e.silicon.nvml import state as simulated
from e2e.silicon.nvml.library import installed
from tangram.packing.geometry.layouts import Placement
from tangram.partition.agent import metrics as metrics_module
from tangram.partition.agent.driver_thread import DriverHangs
from tangram.partition.agent.metrics import AgentMetrics, MetricsServer
from tangram.partition.device_usage import device_usage
from tangram.partition.nvml import NVMLDriver
from tangram_http.pages import PAGE_LIMITS
from tests.support.ipv6 import has_ipv6
from tests.support.node_agent import AgentNode

ROOT = Path(__file__).resolve().parents[2]
FOUR, THREE = Placement(0, "4g.40gb"), Placement(4, "3g.40gb")
CUT = {"mig": ["4g.40gb@0", "3g.40gb@4"]}
MIB = 2**20


@pytest.fixture
def build(tmp_path):
    """Return a maker of nodes with simulated GPUs, which is the driver of this process then."""
    contexts = []

    def make(sku, *gpus):
        node = AgentNode(tmp_path, sku, *gpus)
        for context in (installed(node.link), node.kubelet.serving()):
            context.__enter__()
            contexts.append(context)
        return node

    yield make
    for context in reversed(contexts):
        context.__exit__(None, None, None)


def series(metrics):
    """All samples: {name: {the labels that tell them apart: value}}."""
    text = metrics_module.generate_latest(metrics.registry).decode()
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def by(found, name, *labels):
    return {tuple(each[label] for label in labels): value for each, value in found.get(name, [])}


def start(node, device, memory_mib, sm, memory):
    pid = node.link.change(simulated.start_process, device, memory_mib)
    busy = {"sm_percent": sm, "memory_percent": memory}
    node.link.change(
        lambda state: replace(
            state,
            processes=tuple(replace(one, **busy) if one.pid == pid else one for one in state.processes),
        )
    )
    return pid


def test_slices_have_memory_holder_and_activity_of_their_own(build):
    node = build("H100-80GB-SXM", CUT)
    start(node, node.device(FOUR), 1000, 60.0, 30.0)
    node.kubelet.held = {("ml", "chat-0"): [node.device(FOUR)]}
    agent = node.agent()

    agent.round()

    found = series(agent.metrics)
    labels, held = next(one for one in found["tangram_device_held"] if one[0]["start"] == "0")
    assert held == 1
    assert labels == {
        "node": "",
        "gpu": node.gpus[0],
        "uuid": node.device(FOUR),
        "profile": "4g.40gb",
        "start": "0",
        "namespace": "ml",
        "pod": "chat-0",
    }
    assert by(found, "tangram_device_held", "profile") == {("4g.40gb",): 1, ("3g.40gb",): 0}
    used = by(found, "tangram_device_memory_used_bytes", "profile")
    assert used == {("4g.40gb",): 1000 * MIB, ("3g.40gb",): 0}
    total = by(found, "tangram_device_memory_bytes", "profile")
    state = node.link.state
    assert total == {(one.profile,): state.memory_mib(one) * MIB for one in state.gpus[0].instances}
    activity = by(found, "tangram_device_sm_activity_ratio", "profile")
    assert activity == {("4g.40gb",): pytest.approx(0.6), ("3g.40gb",): 0}
    bandwidth = by(found, "tangram_device_memory_bandwidth_ratio", "profile")
    assert bandwidth == {("4g.40gb",): pytest.approx(0.3), ("3g.40gb",): 0}
    assert "tangram_device_kernel_time_ratio" not in found
    assert by(found, "tangram_gpu_mig_enabled", "gpu") == {(node.gpus[0],): 1}


def test_a_gpu_without_mig_has_the_same_series_and_the_time_with_a_kernel(build):
    node = build("H100-80GB-SXM", {})
    start(node, node.gpus[0], 500, 20.0, 10.0)
    agent = node.agent()

    agent.round()

    found = series(agent.metrics)
    key = (node.gpus[0], node.gpus[0], "gpu", "")
    for name, value in {
        "tangram_device_held": 1,
        "tangram_device_memory_used_bytes": 500 * MIB,
        "tangram_device_memory_bytes": node.link.state.board.memory_mib * MIB,
        "tangram_device_sm_activity_ratio": pytest.approx(0.2),
        "tangram_device_memory_bandwidth_ratio": pytest.approx(0.1),
        "tangram_device_kernel_time_ratio": 1,
    }.items():
        assert by(found, name, "gpu", "uuid", "profile", "start") == {key: value}, name


@pytest.mark.parametrize(
    ("sku", "gpu", "expected"),
    [("A100-80GB-SXM", CUT, set()), ("A100-80GB-SXM", {}, {"kernel_time"}), ("L4", {}, {"kernel_time"})],
)
def test_before_hopper_there_is_no_activity_by_gpm_and_absent_is_not_zero(build, sku, gpu, expected):
    node = build(sku, gpu)
    agent = node.agent()

    agent.round()

    found = series(agent.metrics)
    told = {
        name
        for name in ("sm_activity", "memory_bandwidth", "kernel_time")
        if f"tangram_device_{name}_ratio" in found
    }
    assert told == expected
    assert len(found["tangram_device_memory_used_bytes"]) == (2 if gpu else 1)


@pytest.mark.parametrize(
    "call", ["nvmlDeviceGetMemoryInfo", "nvmlGpmMigSampleGet", "nvmlGpmQueryDeviceSupport"]
)
def test_what_fails_on_one_device_is_absent_there_alone(build, call):
    node = build("H100-80GB-SXM", CUT)
    node.fail(call, "UNKNOWN")
    agent = node.agent()

    agent.round()

    found = series(agent.metrics)
    name = "memory_used_bytes" if "Memory" in call else "sm_activity_ratio"
    assert len(found[f"tangram_device_{name}"]) == 1
    assert len(found["tangram_device_held"]) == 2
    assert node.objects.reason == "AsWanted"


def test_samples_of_the_driver_are_freed(build):
    node = build("H100-80GB-SXM", CUT, {})
    with installed(node.link) as library, NVMLDriver() as driver:
        layouts = [driver.observe(gpu) for gpu in node.gpus]
        pauses = []

        usages = device_usage(driver, layouts, lambda: pauses.append(len(library.samples)))

        assert pauses == [3]  # one pause for all
        assert library.samples == {}
        assert [usage.sm_activity for usage in usages.values()] == [0, 0, 0]


def test_series_of_a_slice_that_is_gone_are_gone(build):
    node = build("H100-80GB-SXM", CUT)
    node.want(FOUR)
    agent = node.agent()
    while agent.round():
        pass

    found = series(agent.metrics)
    assert by(found, "tangram_device_held", "profile") == {("4g.40gb",): 0}
    assert by(found, "tangram_device_memory_bytes", "profile").keys() == {("4g.40gb",)}


def test_operations_are_counted_by_kind_and_result_with_their_durations(build):
    node = build("H100-80GB-SXM", {"mig": []})
    now = 0.0

    def clock():
        nonlocal now
        now += 1.0
        return now

    node.want(FOUR, THREE)
    node.fail("nvmlDeviceCreateGpuInstanceWithPlacement", "UNKNOWN", nth=2)
    agent = node.agent()
    agent.metrics = AgentMetrics("node-a", clock)
    while agent.round():
        pass

    found = series(agent.metrics)
    assert by(found, "tangram_agent_operation_seconds_count", "kind", "result") == {
        ("create-instance", "done"): 1,
        ("create-instance", "failed"): 1,
    }
    assert by(found, "tangram_agent_operation_seconds_sum", "result") == {("done",): 1, ("failed",): 1}


def test_an_operation_that_hangs_is_counted_as_such_and_a_scrape_answers_meanwhile(build):
    node = build("H100-80GB-SXM", {"mig": []})
    node.want(FOUR)
    node.driver_deadline_s = 2.0
    node.fail("nvmlDeviceCreateGpuInstanceWithPlacement", hangs=True)
    agent = node.agent()
    raised = []

    def rounds():
        try:
            while True:
                agent.round()
        except DriverHangs as hang:
            raised.append(hang)

    with serving(agent.metrics) as port:
        thread = threading.Thread(target=rounds)
        thread.start()
        while "nvmlDeviceCreateGpuInstanceWithPlacement" not in node.link.made:
            assert thread.is_alive()
        made = len(node.link.made)
        body = scrape(port)
        assert not raised
        assert "tangram_agent_last_round_age_seconds" in body
        assert len(node.link.made) == made  # a scrape calls no driver
        thread.join(20)
    assert raised
    found = series(agent.metrics)
    assert by(found, "tangram_agent_operation_seconds_count", "result") == {("hangs",): 1}
    node.link.released.set()


def test_a_driver_that_hangs_while_usage_is_read_is_published(build):
    node = build("H100-80GB-SXM", CUT)
    node.driver_deadline_s = 1.0
    node.fail("nvmlDeviceGetMemoryInfo", hangs=True)

    with pytest.raises(DriverHangs):
        node.agent().round()

    assert node.objects.condition("Ready")["reason"] == "DriverHangs"
    node.link.released.set()


def test_quarantined_gpus_are_shown_even_if_they_are_lost(build):
    node = build("H100-80GB-SXM", {}, {})
    node.settle()
    node.link.change(simulated.raise_xid, node.gpus[0], simulated.XID_FELL_OFF_THE_BUS)
    agent = node.agent()
    agent.round()
    agent.round()

    found = series(agent.metrics)
    assert by(found, "tangram_gpu_quarantined", "gpu") == {(node.gpus[0],): 1, (node.gpus[1],): 0}
    assert by(found, "tangram_device_held", "gpu").keys() == {(node.gpus[1],)}


def test_after_a_round_that_failed_nothing_old_is_shown_and_the_age_grows():
    now = 100.0
    metrics = AgentMetrics("node-a", lambda: now)
    metrics.show((), {}, {"GPU-a": True})
    metrics.count_round(has_failed=False)
    now = 130.0

    metrics.count_round(has_failed=True)

    found = series(metrics)
    assert "tangram_gpu_quarantined" not in found
    assert by(found, "tangram_agent_last_round_age_seconds") == {(): 30.0}
    assert by(found, "tangram_agent_rounds_total", "result") == {("done",): 1, ("failed",): 1}


@contextmanager
def serving(metrics, limits=PAGE_LIMITS):
    """Serve metrics on loopback; yields the port."""
    server = MetricsServer(0, metrics.registry, "127.0.0.1", limits)
    server.start()
    try:
        yield server.server_port
    finally:
        server.close()


def scrape(port, path="/metrics"):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as response:
        return response.read().decode()


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_the_port_is_reached_at_every_address_of_the_pod(address):
    if address == "::1" and not has_ipv6():
        pytest.skip("this machine has no IPv6")
    server = MetricsServer(0, AgentMetrics("node-a").registry)
    server.start()
    try:
        host = f"[{address}]" if ":" in address else address
        with urllib.request.urlopen(f"http://{host}:{server.server_port}/metrics", timeout=10) as response:
            assert response.status == 200
    finally:
        server.close()


def test_the_port_serves_metrics_and_nothing_else():
    with serving(AgentMetrics("node-a")) as port:
        assert "tangram_agent_last_round_age_seconds" in scrape(port)
        with pytest.raises(urllib.error.HTTPError, match="404"):
            scrape(port, "/")


def test_clients_that_send_a_byte_now_and_then_keep_no_scrape_out_and_are_ended():
    with serving(AgentMetrics("node-a"), replace(PAGE_LIMITS, header_seconds=1)) as port:
        dripping = [socket.create_connection(("127.0.0.1", port)) for _ in range(8)]
        ended = 0
        limit = time.monotonic() + 60
        while ended < len(dripping):
            assert time.monotonic() < limit
            assert "tangram_agent" in scrape(port)
            for each in dripping:
                if each.fileno() >= 0:
                    try:
                        each.send(b"G")
                    except OSError:
                        each.close()
                        ended += 1
            time.sleep(0.05)  # the pace of the clients


def test_a_port_that_is_taken_is_an_error_of_the_start():
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use"):
        MetricsServer(taken.getsockname()[1], AgentMetrics("node-a").registry, "127.0.0.1")


def test_every_metric_has_its_row_in_the_documents_and_every_row_its_metric():
    source = (ROOT / "operator" / "tangram" / "partition" / "agent" / "metrics.py").read_text()
    document = (ROOT / "docs" / "node-agent.md").read_text()
    declared = set(re.findall(r'"(tangram_[a-z_]+)"', source))

    assert len(declared) > 8
    assert set(re.findall(r"^\| `(tangram_[a-z_]+)` \|", document, re.MULTILINE)) == declared
