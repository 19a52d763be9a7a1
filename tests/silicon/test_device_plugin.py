"""The kubelet's device plugin protocol, over real unix sockets, against a registry that plays the kubelet."""

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from e2e.silicon.__main__ import main, parser
from e2e.silicon.agent import Agent, Options
from e2e.silicon.nvml.codes import CallFailed
from e2e.silicon.nvml.connection import Admin
from e2e.silicon.nvml.daemon import serving
from e2e.silicon.nvml.library import environment
from e2e.silicon.plugin import Plugin, socket_name
from e2e.silicon.rpc import deviceplugin_v1beta1_pb2 as dp
from e2e.silicon.rpc import podresources_v1_pb2 as pr
from e2e.silicon.rpc import services
from tests.support.nvml_driver import nvml_state

ROOT = Path(__file__).resolve().parents[2]
CUT = "sku: H100-80GB-SXM\ngpus: [{mig: [1g.10gb@0, 1g.10gb@1]}, {}, {mig: [1g.10gb@6]}]\n"
RECUT = "sku: H100-80GB-SXM\ngpus: [{mig: [7g.80gb@0]}, {}, {}]\n"
SLICE = "nvidia.com/mig-1g.10gb"


class Kubelet:
    """Takes registrations on kubelet.sock and talks back to whoever registered, as the kubelet does."""

    def __init__(self, folder):
        self.folder = folder
        self.registered = asyncio.Queue()
        self.refuse = 0
        self.server = None

    async def register(self, request, context):
        if self.refuse:
            self.refuse -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "starting")
        await self.registered.put(request)
        return dp.Empty()

    async def start(self):
        for path in self.folder.iterdir():
            path.unlink()  # the kubelet empties its plugin folder when it starts
        self.server = grpc.aio.server()
        self.server.add_generic_rpc_handlers((services.registration(self),))
        self.server.add_insecure_port(f"unix://{self.folder}/kubelet.sock")
        await self.server.start()

    async def stop(self):
        await self.server.stop(grace=0)

    async def hear(self, number):
        found = [await asyncio.wait_for(self.registered.get(), 10) for _ in range(number)]
        return {request.resource_name: request for request in found}

    def channel(self, resource):
        return grpc.aio.insecure_channel(f"unix://{self.folder}/{socket_name(resource)}")


@pytest.fixture
def folder():
    # Not tmp_path: a unix socket's path must stay below 108 characters.
    path = Path(tempfile.mkdtemp(prefix="dp"))
    (path / "plugins").mkdir()
    (path / "board.yaml").write_text(CUT)
    yield path
    shutil.rmtree(path)


@asynccontextmanager
async def dressed(folder, set_labels=None, refuse=0, nvml=None):
    """A kubelet and an agent that found each other; `nvml`: the socket of a driver."""
    kubelet = Kubelet(folder / "plugins")
    kubelet.refuse = refuse
    await kubelet.start()
    board = folder / "board.yaml" if nvml is None else None
    options = Options(board, "node-a", folder / "plugins", folder / "unhealthy", poll_s=0.02, nvml=nvml)
    agent = Agent(options, set_labels)
    stop = asyncio.Event()
    task = asyncio.create_task(agent.run(stop))
    try:
        yield kubelet, agent
    finally:
        stop.set()
        await asyncio.wait_for(task, 10)
        await kubelet.stop()


async def devices(stream):
    answer = await asyncio.wait_for(stream.read(), 10)
    return {device.ID: device.health for device in answer.devices}


async def test_every_resource_is_registered_in_the_kubelets_version_with_its_own_socket(folder):
    async with dressed(folder) as (kubelet, _):
        found = await kubelet.hear(2)
        assert set(found) == {SLICE, "nvidia.com/gpu"}
        assert {request.version for request in found.values()} == {"v1beta1"}
        assert found[SLICE].options.get_preferred_allocation_available
        assert (folder / "plugins" / found[SLICE].endpoint).is_socket()


async def test_list_and_watch_gives_every_device_healthy(folder):
    async with dressed(folder) as (kubelet, agent):
        await kubelet.hear(2)
        async with kubelet.channel(SLICE) as channel:
            stream = services.watch(channel)(dp.Empty())
            assert await devices(stream) == dict.fromkeys(agent.machine.devices()[SLICE], "Healthy")


async def test_a_gpu_that_breaks_takes_its_slices_along_and_heals_again(folder):
    async with dressed(folder) as (kubelet, agent):
        await kubelet.hear(2)
        ids = agent.machine.devices()[SLICE]
        async with kubelet.channel(SLICE) as channel:
            stream = services.watch(channel)(dp.Empty())
            await devices(stream)
            (folder / "unhealthy").write_text("0\n")
            assert await devices(stream) == {ids[0]: "Unhealthy", ids[1]: "Unhealthy", ids[2]: "Healthy"}
            (folder / "unhealthy").unlink()
            assert set((await devices(stream)).values()) == {"Healthy"}


async def test_one_slice_can_break_alone(folder):
    async with dressed(folder) as (kubelet, agent):
        await kubelet.hear(2)
        first = agent.machine.devices()[SLICE][0]
        async with kubelet.channel(SLICE) as channel:
            stream = services.watch(channel)(dp.Empty())
            await devices(stream)
            (folder / "unhealthy").write_text(first)
            assert [k for k, v in (await devices(stream)).items() if v == "Unhealthy"] == [first]


async def test_allocate_tells_each_container_its_devices_as_nvidias_runtime_reads_them(folder):
    async with dressed(folder) as (kubelet, agent):
        await kubelet.hear(2)
        one, two, three = agent.machine.devices()[SLICE]
        async with kubelet.channel(SLICE) as channel:
            allocate = services.call(
                channel, "/v1beta1.DevicePlugin/Allocate", dp.AllocateRequest, dp.AllocateResponse
            )
            wanted = [{"devices_ids": [one, three]}, {"devices_ids": [two]}]
            answer = await allocate(dp.AllocateRequest(container_requests=wanted))
            given = [dict(container.envs) for container in answer.container_responses]
            assert given == [
                {"NVIDIA_VISIBLE_DEVICES": f"{one},{three}"},
                {"NVIDIA_VISIBLE_DEVICES": two},
            ]


async def test_a_device_of_another_resource_is_not_handed_out(folder):
    async with dressed(folder) as (kubelet, agent):
        await kubelet.hear(2)
        stranger = agent.machine.devices()["nvidia.com/gpu"][0]
        async with kubelet.channel(SLICE) as channel:
            allocate = services.call(
                channel, "/v1beta1.DevicePlugin/Allocate", dp.AllocateRequest, dp.AllocateResponse
            )
            with pytest.raises(grpc.aio.AioRpcError, match="has no device") as refused:
                await allocate(dp.AllocateRequest(container_requests=[{"devices_ids": [stranger]}]))
            assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_options_and_pre_start_answer_as_they_promise(folder):
    async with dressed(folder) as (kubelet, _):
        await kubelet.hear(2)
        async with kubelet.channel(SLICE) as channel:
            prefix = "/v1beta1.DevicePlugin/"
            options = services.call(
                channel, prefix + "GetDevicePluginOptions", dp.Empty, dp.DevicePluginOptions
            )
            answer = await options(dp.Empty())
            assert (answer.pre_start_required, answer.get_preferred_allocation_available) == (False, True)
            start = services.call(
                channel,
                prefix + "PreStartContainer",
                dp.PreStartContainerRequest,
                dp.PreStartContainerResponse,
            )
            assert await start(dp.PreStartContainerRequest()) == dp.PreStartContainerResponse()


async def test_preference_fills_the_gpu_with_the_fewest_free_slices_first(folder):
    async with dressed(folder) as (kubelet, agent):
        await kubelet.hear(2)
        ids = list(agent.machine.devices()[SLICE])  # two on the first GPU, one on the third
        async with kubelet.channel(SLICE) as channel:
            preferred = services.call(
                channel,
                "/v1beta1.DevicePlugin/GetPreferredAllocation",
                dp.PreferredAllocationRequest,
                dp.PreferredAllocationResponse,
            )
            asked = [{"available_deviceIDs": ids, "allocation_size": 1}]
            answer = await preferred(dp.PreferredAllocationRequest(container_requests=asked))
            assert list(answer.container_responses[0].deviceIDs) == [ids[2]]


def test_preference_keeps_what_must_be_included():
    plugin = Plugin("r", ("a", "b", "c"), {"a": "0", "b": "0", "c": "1"})
    assert plugin.prefer(["a", "b", "c"], ["b"], 2) == ("b", "a")


async def test_a_restarted_kubelet_is_registered_with_again(folder):
    async with dressed(folder) as (kubelet, _):
        await kubelet.hear(2)
        await kubelet.stop()
        await kubelet.start()
        assert set(await kubelet.hear(2)) == {SLICE, "nvidia.com/gpu"}
        async with kubelet.channel(SLICE) as channel:
            assert len(await devices(services.watch(channel)(dp.Empty()))) == 3


async def test_a_kubelet_that_refuses_at_first_is_asked_again(folder):
    async with dressed(folder, refuse=3) as (kubelet, _):
        assert set(await kubelet.hear(2)) == {SLICE, "nvidia.com/gpu"}


async def test_a_changed_board_is_served_and_labelled_anew(folder):
    labelled = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def record(labels):
        loop.call_soon_threadsafe(labelled.put_nowait, labels)

    async with dressed(folder, record) as (kubelet, _):
        await kubelet.hear(2)
        assert (await asyncio.wait_for(labelled.get(), 10))["nvidia.com/mig-1g.10gb.count"] == "3"
        (folder / "board.yaml").write_text(RECUT)
        assert set(await kubelet.hear(2)) == {"nvidia.com/mig-7g.80gb", "nvidia.com/gpu"}
        relabelled = await asyncio.wait_for(labelled.get(), 10)
        assert "nvidia.com/mig-1g.10gb.count" not in relabelled
        assert not (folder / "plugins" / socket_name(SLICE)).exists()


async def test_a_board_that_turns_wrong_leaves_the_silicon_as_it_was(folder, caplog):
    async with dressed(folder) as (kubelet, agent):
        await kubelet.hear(2)
        before = agent.machine
        (folder / "board.yaml").write_text("sku: nonsense\ngpus: [{}]\n")
        async with asyncio.timeout(10):
            while "stays as it was" not in caplog.text:  # noqa: ASYNC110 - a log line has no event
                await asyncio.sleep(0.01)
        assert agent.machine == before


async def test_labels_that_the_api_server_refuses_are_set_later(folder):
    calls = []
    done = asyncio.Event()
    loop = asyncio.get_running_loop()

    def flaky(labels):
        calls.append(labels)
        if len(calls) < 3:
            raise OSError("503")
        loop.call_soon_threadsafe(done.set)

    async with dressed(folder, flaky):
        await asyncio.wait_for(done.wait(), 10)
    assert len(calls) == 3


async def test_sockets_are_gone_after_the_agent_stopped(folder):
    async with dressed(folder) as (kubelet, _):
        await kubelet.hear(2)
    assert {path.name for path in (folder / "plugins").iterdir()} <= {"kubelet.sock"}


async def test_pod_resources_tell_which_pod_holds_which_slice(folder):
    async def answer(_request, _context):
        held = {"resource_name": SLICE, "device_ids": ["MIG-1"]}
        pod = {"name": "p", "namespace": "n", "containers": [{"name": "c", "devices": [held]}]}
        return pr.ListPodResourcesResponse(pod_resources=[pod])

    handler = grpc.unary_unary_rpc_method_handler(
        answer,
        request_deserializer=pr.ListPodResourcesRequest.FromString,
        response_serializer=pr.ListPodResourcesResponse.SerializeToString,
    )
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("v1.PodResourcesLister", {"List": handler}),)
    )
    server.add_insecure_port(f"unix://{folder}/pods.sock")
    await server.start()
    held = await asyncio.to_thread(services.list_pod_resources, f"{folder}/pods.sock")
    await server.stop(grace=0)
    assert held == {("n", "p"): {SLICE: ("MIG-1",)}}


@pytest.fixture
def driver(folder):
    """The socket of a driver with an H100 of two slices and a whole one."""
    with serving(nvml_state("H100-80GB-SXM", {"mig": ["1g.10gb@0", "1g.10gb@1"]}, {}), folder) as socket:
        yield socket


def cut_another(socket):
    """Create 1g.10gb@6 on the first GPU, as an agent in another process does; returns the UUID."""
    program = """
import pynvml
from ctypes import byref
pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
placement = byref(pynvml.c_nvmlGpuInstancePlacement_t(start=6, size=1))
made = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(gpu, 19, placement)
pynvml.nvmlGpuInstanceCreateComputeInstance(made, 0)
print(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 2)))
"""
    command = [sys.executable, "-c", program]
    agent = subprocess.run(
        command, env=os.environ | environment(socket), check=True, capture_output=True, text=True
    )
    return agent.stdout.strip()


async def served(kubelet, resource=SLICE):
    async with kubelet.channel(resource) as channel:
        return await devices(services.watch(channel)(dp.Empty()))


async def test_the_devices_of_a_driver_are_offered_with_the_uuids_of_nvml(folder, driver):
    async with dressed(folder, nvml=driver) as (kubelet, agent):
        assert set(await kubelet.hear(2)) == {SLICE, "nvidia.com/gpu"}
        with Admin(driver) as admin:
            assert await served(kubelet, "nvidia.com/gpu") == {admin.state()["gpus"][1]["uuid"]: "Healthy"}
        assert set(await served(kubelet)) == set(agent.machine.devices()[SLICE])


def test_the_devices_of_a_driver_can_be_counted_from_the_command_line(driver, capsys):
    assert main(["check", f"--nvml={driver}"]) == 0
    assert capsys.readouterr().out == f"{SLICE}: 2\nnvidia.com/gpu: 1\n"


async def test_a_new_slice_is_not_seen_until_the_plugin_is_told(folder, driver):
    async with dressed(folder, nvml=driver) as (kubelet, agent):
        await kubelet.hear(2)
        uuid = await asyncio.to_thread(cut_another, driver)
        for _ in range(5):
            await agent._once()
        assert len(await served(kubelet)) == 2
        assert kubelet.registered.empty()

        agent.rescan()

        await kubelet.hear(2)
        assert len(found := await served(kubelet)) == 3
        assert uuid in found


async def test_a_plugin_that_is_started_again_sees_a_new_slice(folder, driver):
    async with dressed(folder, nvml=driver) as (kubelet, _):
        await kubelet.hear(2)
    uuid = await asyncio.to_thread(cut_another, driver)
    async with dressed(folder, nvml=driver) as (kubelet, _):
        await kubelet.hear(2)
        assert uuid in await served(kubelet)


async def test_a_slice_that_is_gone_is_still_offered_and_handed_out_until_the_plugin_is_told(folder, driver):
    async with dressed(folder, nvml=driver) as (kubelet, agent):
        await kubelet.hear(2)
        with Admin(driver) as admin:
            admin.reboot()  # of the GPUs alone: the plugin lives on
        assert set((await served(kubelet)).values()) == {"Healthy"}
        agent.rescan()
        await kubelet.hear(1)
        assert not (folder / "plugins" / socket_name(SLICE)).exists()


async def test_a_lost_gpu_is_unhealthy_with_its_slices(folder, driver):
    async with dressed(folder, nvml=driver) as (kubelet, agent):
        await kubelet.hear(2)
        async with kubelet.channel(SLICE) as channel:
            stream = services.watch(channel)(dp.Empty())
            assert set((await devices(stream)).values()) == {"Healthy"}
            with Admin(driver) as admin:
                admin.raise_xid(agent.machine.gpus[0].uuid, 79)
            assert set((await devices(stream)).values()) == {"Unhealthy"}


async def test_while_the_plugin_runs_it_holds_every_gpu_and_no_mode_changes(folder, driver):
    with Admin(driver) as admin:
        uuid = admin.state()["gpus"][1]["uuid"]
        async with dressed(folder, nvml=driver) as (kubelet, _):
            await kubelet.hear(2)
            with pytest.raises(CallFailed, match="IN_USE"):
                admin.reset(uuid)
        async with asyncio.timeout(10):
            while admin.state()["holders"]:  # noqa: ASYNC110 - the end of a connection has no event here
                await asyncio.sleep(0.01)
        admin.reset(uuid)


async def test_the_daemon_serves_until_it_is_told_to_stop(folder):
    kubelet = Kubelet(folder / "plugins")
    await kubelet.start()
    arguments = [f"--board={folder}/board.yaml", f"--plugin-dir={folder}/plugins", "--no-labels"]
    daemon = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        "-m",
        "e2e.silicon",
        "serve",
        *arguments,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        assert set(await kubelet.hear(2)) == {SLICE, "nvidia.com/gpu"}
    finally:
        daemon.terminate()
        code = await asyncio.wait_for(daemon.wait(), 10)
        await kubelet.stop()
    assert code == 0
    assert not (folder / "plugins" / socket_name(SLICE)).exists()


def test_the_daemon_looks_where_the_kubelet_looks_unless_told_otherwise():
    args = parser().parse_args(["serve", "--board=b"])
    assert args.plugin_dir == Path("/var/lib/kubelet/device-plugins")
    assert args.unhealthy == Path("/run/silicon/unhealthy")
