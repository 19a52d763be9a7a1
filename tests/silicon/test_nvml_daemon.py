"""The daemon: state behind a socket and in a file, through real processes that are killed at any moment."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path

import pynvml
import pytest

from e2e.silicon.nvml.codes import CallFailed, ReturnCode
from e2e.silicon.nvml.connection import Admin, Connection
from e2e.silicon.nvml.daemon import read_state, serving
from e2e.silicon.nvml.library import DaemonLink, environment, installed
from e2e.silicon.nvml.state import Fault
from tests.support.nvml_driver import nvml_state

ROOT = Path(__file__).resolve().parents[2]
BOARD = "sku: H100-80GB-SXM\ngpus: [{}, {mig: []}, {mig: [1g.10gb@0, 3g.40gb@4]}]\n"
# What an agent does for one slice, call by call; it reads a line before each and prints the call after it.
AGENT = """
import sys, pynvml
from ctypes import byref
def step(name, *arguments):
    sys.stdin.readline()
    value = getattr(pynvml, name)(*arguments)
    print(name, flush=True)
    return value
step("nvmlInit")
gpu = step("nvmlDeviceGetHandleByIndex", 1)
placement = pynvml.c_nvmlGpuInstancePlacement_t(start=4, size=4)
made = step("nvmlDeviceCreateGpuInstanceWithPlacement", gpu, 9, byref(placement))
compute = step("nvmlGpuInstanceCreateComputeInstance", made, 2)
step("nvmlComputeInstanceDestroy", compute)
step("nvmlGpuInstanceDestroy", made)
step("nvmlShutdown")
"""


@pytest.fixture
def folder():
    # Not tmp_path: a unix socket's path must stay below 108 characters.
    path = Path(tempfile.mkdtemp(prefix="nvml"))
    (path / "board.yaml").write_text(BOARD)
    yield path
    shutil.rmtree(path)


def state():
    return nvml_state("H100-80GB-SXM", {}, {"mig": []}, {"mig": ["1g.10gb@0", "3g.40gb@4"]})


@pytest.fixture
def admin(folder):
    with serving(state(), folder) as path, Admin(path) as admin:
        yield admin


@contextmanager
def process(path, program, **options):
    """A Python process that finds its GPUs at the daemon; killed at the end."""
    started = subprocess.Popen(
        [sys.executable, "-c", program],
        env=os.environ | environment(path, **options),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with started:
        try:
            yield started
        finally:
            started.kill()


def go(started):
    """Let the agent make its next call, and return the call's name."""
    started.stdin.write("\n")
    started.stdin.flush()
    return started.stdout.readline().strip()


@contextmanager
def daemon(folder):
    """The daemon as a process of its own."""
    command = [sys.executable, "-P", "-m", "e2e.silicon.nvml", "serve", f"--board={folder}/board.yaml"]
    started = subprocess.Popen(
        [*command, "--node=node-a", f"--socket={folder}/nvml.sock", f"--file={folder}/nvml.json"],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    with started:
        try:
            yield started
        finally:
            started.kill()


def instances(raw, index):
    return [
        (one["profile"], one["start"], len(one["compute_instances"]))
        for one in raw["gpus"][index]["instances"]
    ]


LEFT_AFTER = {
    "nvmlInit": [],
    "nvmlDeviceGetHandleByIndex": [],
    "nvmlDeviceCreateGpuInstanceWithPlacement": [("3g.40gb", 4, 0)],
    "nvmlGpuInstanceCreateComputeInstance": [("3g.40gb", 4, 1)],
    "nvmlComputeInstanceDestroy": [("3g.40gb", 4, 0)],
    "nvmlGpuInstanceDestroy": [],
}


def test_an_agent_that_dies_between_any_two_calls_leaves_what_it_did_and_no_handle(folder, admin):
    for last, left in LEFT_AFTER.items():
        with process(folder / "nvml.sock", AGENT) as agent:
            while go(agent) != last:
                pass
            agent.send_signal(signal.SIGKILL)
            agent.wait()
        raw = admin.state()
        assert (last, instances(raw, 1)) == (last, left)
        assert instances(json.loads((folder / "nvml.json").read_text()), 1) == left
        for uuid in [gpu["uuid"] for gpu in raw["gpus"][1:2]]:
            admin.reset(uuid)  # nobody holds it


def test_a_client_without_privileges_is_refused(folder, admin):
    program = """
import pynvml
pynvml.nvmlInit()
try:
    pynvml.nvmlDeviceCreateGpuInstance(pynvml.nvmlDeviceGetHandleByIndex(1), 19)
except pynvml.NVMLError as error:
    print(type(error).__name__)
"""
    with process(folder / "nvml.sock", program, privileged=False) as client:
        assert client.stdout.read().strip() == "NVMLError_NoPermission"
    assert [one["code"] for one in admin.calls()][-1] == "NO_PERMISSION"


def test_another_process_with_a_handle_keeps_the_mode_and_the_reset_away_until_it_is_killed(folder, admin):
    uuid = admin.state()["gpus"][0]["uuid"]
    program = "import sys, pynvml; pynvml.nvmlInit(); pynvml.nvmlDeviceGetHandleByIndex(0); print('held', flush=True); sys.stdin.read()"  # noqa: E501
    toggle = "import pynvml; pynvml.nvmlInit(); print(pynvml.nvmlDeviceSetMigMode(pynvml.nvmlDeviceGetHandleByIndex(0), 1))"  # noqa: E501
    with process(folder / "nvml.sock", program) as exporter:
        assert exporter.stdout.readline().strip() == "held"
        with pytest.raises(CallFailed, match="IN_USE"):
            admin.reset(uuid)
        with process(folder / "nvml.sock", toggle) as agent:
            assert agent.stdout.read().strip() == str(int(ReturnCode.IN_USE))
    with process(folder / "nvml.sock", toggle) as agent:
        assert agent.stdout.read().strip() == str(int(ReturnCode.SUCCESS))


def test_a_pods_process_keeps_its_slice_until_it_ends(folder, admin):
    take_down = """
import pynvml
from ctypes import byref, c_uint
pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(2)
made, count = (pynvml.c_nvmlGpuInstance_t * 7)(), c_uint()
pynvml.nvmlDeviceGetGpuInstances(gpu, 19, made, byref(count))
try:
    pynvml.nvmlComputeInstanceDestroy(pynvml.nvmlGpuInstanceGetComputeInstanceById(made[0], 0))
    pynvml.nvmlGpuInstanceDestroy(made[0])
    print("destroyed")
except pynvml.NVMLError_InUse:
    print("in use")
"""
    connection = Connection(folder / "nvml.sock")
    _, handle = connection.request(verb="call", name="nvmlDeviceGetHandleByIndex", arguments=[2])
    _, device = connection.request(
        verb="call", name="nvmlDeviceGetMigDeviceHandleByIndex", arguments=[handle, 0]
    )
    _, uuid = connection.request(verb="call", name="nvmlDeviceGetUUID", arguments=[device])
    connection.close()
    pid = admin.start_process(uuid, memory_mib=100)
    with process(folder / "nvml.sock", take_down) as agent:
        assert agent.stdout.read().strip() == "in use"
    admin.stop_process(pid)
    with process(folder / "nvml.sock", take_down) as agent:
        assert agent.stdout.read().strip() == "destroyed"


def test_a_call_that_hangs_has_done_its_work_or_not_when_its_client_is_killed(folder, admin):
    create = "nvmlDeviceCreateGpuInstanceWithPlacement"
    for takes_effect, left in ((False, []), (True, [("3g.40gb", 4, 0)])):
        admin.add_fault(Fault(create, hangs=True, takes_effect=takes_effect))
        with process(folder / "nvml.sock", AGENT) as agent:
            go(agent)
            go(agent)
            agent.stdin.write("\n")
            agent.stdin.flush()
            while (admin.calls() or [{}])[-1].get("name") != create:
                pass
            agent.send_signal(signal.SIGKILL)
            agent.wait()
        assert instances(admin.state(), 1) == left


def test_faults_are_set_and_cleared_from_outside(admin):
    admin.add_fault({"call": "nvmlInit", "code": "DRIVER_NOT_LOADED", "times": 0})
    admin.set_latencies({"nvmlInit": 0.001})
    assert admin.state()["faults"][0]["code"] == "DRIVER_NOT_LOADED"
    admin.clear_faults()
    assert admin.state()["faults"] == []
    with pytest.raises(CallFailed, match="INVALID_ARGUMENT"):
        admin.add_fault({"call": "nvmlInit", "code": "TEAPOT"})
    with pytest.raises(CallFailed, match="NOT_FOUND"):
        admin.stop_process(1)


def test_a_reboot_takes_the_instances_and_may_change_indexes(admin):
    before = [gpu["uuid"] for gpu in admin.state()["gpus"]]

    admin.reboot(order=[2, 1, 0])

    after = admin.state()
    assert [gpu["uuid"] for gpu in after["gpus"]] == before[::-1]
    assert all(gpu["instances"] == [] for gpu in after["gpus"])


def test_a_lost_gpu_stays_lost_until_a_reboot(admin):
    uuid = admin.state()["gpus"][0]["uuid"]
    admin.raise_xid(uuid, 79)

    with pytest.raises(CallFailed, match="GPU_IS_LOST"):
        admin.reset(uuid)
    admin.reboot()
    assert not admin.state()["gpus"][0]["is_lost"]


def test_without_a_daemon_the_driver_is_not_loaded(folder):
    with (
        installed(DaemonLink(folder / "none.sock", wait_s=0)),
        pytest.raises(pynvml.NVMLError_DriverNotLoaded),
    ):
        pynvml.nvmlInit()


def test_a_call_during_which_the_daemon_dies_is_unknown_and_is_not_made_again(folder):
    create = "nvmlDeviceCreateGpuInstanceWithPlacement"
    with Admin(folder / "nvml.sock") as admin, process(folder / "nvml.sock", AGENT) as agent:
        with daemon(folder) as first:
            admin.add_fault(Fault(create, hangs=True))
            go(agent)
            go(agent)
            agent.stdin.write("\n")
            agent.stdin.flush()
            while admin.calls()[-1]["name"] != create:
                pass
            first.send_signal(signal.SIGKILL)
            first.wait()
        assert "NVMLError_Unknown" in agent.communicate(timeout=10)[1]
        with daemon(folder):
            assert instances(admin.state(), 1) == []


def test_a_daemon_that_is_killed_comes_back_with_everything_a_driver_keeps(folder):
    path = folder / "nvml.sock"
    with Admin(path) as admin, process(path, AGENT) as agent:
        with daemon(folder) as first:
            calls = [go(agent) for _ in range(3)]
            uuid = admin.state()["gpus"][0]["uuid"]
            pid = admin.start_process(uuid, memory_mib=7)
            before = admin.state()
            first.send_signal(signal.SIGKILL)
            first.wait()
        with daemon(folder) as second:
            assert admin.state() == before
            assert calls[-1] == "nvmlDeviceCreateGpuInstanceWithPlacement"
            assert go(agent) == "nvmlGpuInstanceCreateComputeInstance"  # its handle of before is valid
            assert instances(admin.state(), 1) == [("3g.40gb", 4, 1)]
            admin.stop_process(pid)
            second.terminate()
            assert second.wait(10) == 0
    assert not path.exists()


def test_requests_that_are_no_requests_are_answered_or_end_the_connection(folder, admin):
    connection = Connection(folder / "nvml.sock")

    assert connection.request(verb="sing")[0] is ReturnCode.FUNCTION_NOT_FOUND
    assert (
        connection.request(verb="call", name="nvmlDeviceGetIndex", arguments=[1, 2])[0]
        is ReturnCode.INVALID_ARGUMENT
    )
    assert connection.request(verb="reset", arguments={"colour": 1})[0] is ReturnCode.INVALID_ARGUMENT
    connection.close()
    for line in (b"[1, 2\n", b"7\n", b"x" * (2 << 20)):
        with socket.socket(socket.AF_UNIX) as raw, suppress(BrokenPipeError, ConnectionResetError):
            raw.connect(str(folder / "nvml.sock"))
            raw.sendall(line)
            assert raw.recv(1) == b""
    assert admin.state()["holders"] == []


def test_the_file_is_read_again_without_its_board_file(folder, admin):
    raw = admin.state()

    again = read_state(folder / "nvml.json", None, "node-a")

    assert [gpu.uuid for gpu in again.gpus] == [gpu["uuid"] for gpu in raw["gpus"]]
    assert again.board.sku == "H100-80GB-SXM"
