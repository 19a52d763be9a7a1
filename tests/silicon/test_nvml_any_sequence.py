"""Whatever calls and events come, in whatever order: the GPUs stay what a driver would allow."""

from inspect import signature

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from e2e.silicon.nvml import calls
from e2e.silicon.nvml import state as operations
from e2e.silicon.nvml.codes import CallFailed
from tangram.packing.geometry.board import board as geometry_board
from tangram.packing.geometry.layouts import Placement, is_legal
from tests.support.nvml_driver import SimulatedDriver, nvml_state

ENGINES = ("copy", "decoder", "encoder", "jpeg", "ofa")
NUMBERS = st.integers(-1, 80)
SIGNATURES = {name: list(signature(one).parameters.values())[1:] for name, one in calls.CALLS.items()}
# Calls whose arguments are a handle and numbers, by how many they take.
TAKES_NUMBERS = {
    name: len(parameters)
    for name, parameters in SIGNATURES.items()
    if all(one.annotation == "int" for one in parameters)
}


class AnySequence(RuleBasedStateMachine):
    """Calls with handles that exist, that existed, or that never did."""

    @initialize(sku=st.sampled_from(["H100-80GB-SXM", "A100-40GB-SXM", "A30", "RTX-PRO-6000-SERVER"]))
    def begin(self, sku):
        self.sku = sku
        self.driver = SimulatedDriver(nvml_state(sku, {}, {"mig": []}, self_resets=True))
        self.handles = [0]
        self.uuids = {gpu.uuid for gpu in self.driver.state.gpus}

    def handle(self, number):
        return self.handles[number % len(self.handles)]

    def call(self, name, *arguments):
        before = self.driver.state
        code, value = self.driver.call(name, *arguments)
        if code != "SUCCESS":
            assert self.driver.state == before
        return value

    @rule(index=st.integers(-1, 3))
    def take_a_handle(self, index):
        self.handles.append(self.call("nvmlDeviceGetHandleByIndex", index) or 0)

    @rule(gpu=st.integers(0, 1), mode=st.integers(-1, 2))
    def set_the_mode(self, gpu, mode):
        handle = self.call("nvmlDeviceGetHandleByIndex", gpu)
        self.call("nvmlDeviceSetMigMode", handle or 0, mode)

    @rule(gpu=st.integers(0, 1), data=st.data())
    def create_an_instance(self, gpu, data):
        profile = data.draw(st.sampled_from(list(self.driver.state.board.profiles.values())))
        start = data.draw(st.none() | st.integers(-1, 12))
        handle = self.call("nvmlDeviceGetHandleByIndex", gpu) or 0
        if start is None:
            made = self.call("nvmlDeviceCreateGpuInstance", handle, profile.profile_id)
        else:
            placement = [start, profile.size]
            made = self.call(
                "nvmlDeviceCreateGpuInstanceWithPlacement", handle, profile.profile_id, placement
            )
        self.handles.append(made or 0)

    @rule(number=NUMBERS, profile=st.integers(-1, 9))
    def create_a_compute_instance(self, number, profile):
        made = self.call("nvmlGpuInstanceCreateComputeInstance", self.handle(number), profile)
        self.handles.append(made or 0)

    @rule(number=NUMBERS, name=st.sampled_from(["nvmlComputeInstanceDestroy", "nvmlGpuInstanceDestroy"]))
    def destroy(self, number, name):
        self.call(name, self.handle(number))

    @rule(name=st.sampled_from(sorted(TAKES_NUMBERS)), number=NUMBERS, data=st.data())
    def call_with_numbers(self, name, number, data):
        others = TAKES_NUMBERS[name] - 1
        arguments = [self.handle(number), *(data.draw(NUMBERS) for _ in range(others))]
        self.call(name, *arguments[: others + 1])

    @precondition(lambda self: any(self.driver.state.mig_devices(gpu) for gpu in self.driver.state.gpus))
    @rule(number=st.integers(0, 13), memory=st.integers(0, 30_000))
    def start_a_process(self, number, memory):
        devices = [one for gpu in self.driver.state.gpus for one in self.driver.state.mig_devices(gpu)]
        try:
            self.driver.change(operations.start_process, devices[number % len(devices)][0], memory)
        except CallFailed:
            return

    @rule(number=st.integers(0, 5))
    def stop_a_process(self, number):
        if number < len(self.driver.state.processes):
            self.driver.change(operations.stop_process, self.driver.state.processes[number].pid)

    @rule(gpu=st.integers(0, 1))
    def reset(self, gpu):
        try:
            self.driver.change(operations.reset, self.driver.state.gpus[gpu].uuid)
        except CallFailed:
            return

    @rule(swap=st.booleans())
    def reboot(self, swap):
        order = [gpu.minor for gpu in self.driver.state.gpus]
        self.driver.change(operations.reboot, order=order[::-1] if swap else None)

    @rule()
    def lose_a_gpu(self):
        self.driver.change(operations.raise_xid, self.driver.state.gpus[0].uuid, 79)

    @rule()
    def shut_down(self):
        self.call("nvmlShutdown")

    @invariant()
    def layouts_are_legal(self):
        board = self.driver.state.board
        for gpu in self.driver.state.gpus:
            placed = self.driver.state.placed(gpu)
            slices = [piece for profile, start in placed for piece in range(start, start + profile.size)]
            assert len(slices) == len(set(slices))
            for engine in ENGINES:
                assert sum(profile.engines[engine] for profile, _ in placed) <= board.engine_caps[engine]
            layout = [Placement(start, profile.name) for profile, start in placed]
            assert is_legal(geometry_board(self.sku), layout)
            assert gpu.mig_mode or not placed

    @invariant()
    def compute_instances_do_not_overlap(self):
        for gpu in self.driver.state.gpus:
            for instance in gpu.instances:
                taken = [
                    piece
                    for one in instance.compute_instances
                    for piece in range(one.start, one.start + one.size)
                ]
                assert len(taken) == len(set(taken))
                assert max(taken, default=-1) < self.driver.state.profile(instance).compute_slices

    @invariant()
    def processes_run_on_what_is_there_and_fits_them(self):
        state = self.driver.state
        for process in state.processes:
            gpu = state.gpu(process.gpu)
            instance = next(one for one in gpu.instances if one.id == process.gpu_instance)
            assert process.compute_instance in {one.id for one in instance.compute_instances}
            used = operations.used_mib(state.processes_on(gpu, instance))
            assert used <= state.memory_mib(instance)

    @invariant()
    def identities_hold(self):
        state = self.driver.state
        assert {gpu.uuid for gpu in state.gpus} == self.uuids
        serials = [
            serial
            for gpu in state.gpus
            for serial in (
                gpu.serial,
                *(one.serial for one in gpu.instances),
                *(compute.serial for one in gpu.instances for compute in one.compute_instances),
            )
        ]
        assert len(serials) == len(set(serials))
        devices = [uuid for gpu in state.gpus for uuid, _, _ in state.mig_devices(gpu)]
        assert len(devices) == len(set(devices))

    @invariant()
    def the_state_survives_json(self):
        state = operations.release_holder(self.driver.state, "client")
        assert operations.from_json(operations.to_json(state), state.board) == state


AnySequence.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)


@pytest.mark.timeout(120)
class TestAnySequence(AnySequence.TestCase):
    pass
