"""A simulated driver for tests: a state of `e2e.silicon.nvml` that calls and operations replace."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from e2e.silicon.board import parse_machine
from e2e.silicon.nvml import calls
from e2e.silicon.nvml.state import NvmlState, node_state

NAMES = {"L4": "NVIDIA L4"}


def nvml_state(sku: str, *gpus: dict[str, Any], **fields: Any) -> NvmlState:
    """Return the state of a node with these GPUs of a board file."""
    raw = {"sku": sku, "gpus": list(gpus)} | ({"name": NAMES[sku]} if sku in NAMES else {})
    return replace(node_state(parse_machine(raw, "node-a"), "node-a"), **fields)


class SimulatedDriver:
    """Holds the state of a node between calls, and knows the handles of its GPUs."""

    def __init__(self, state: NvmlState) -> None:
        self.state = state

    def call(self, name: str, *arguments: Any, caller: calls.Caller | None = None) -> tuple[str, Any]:
        """Make one NVML call; returns the name of its code and its value."""
        self.state, answer = calls.call(self.state, name, arguments, caller)
        return answer.code.name, answer.value

    def value(self, name: str, *arguments: Any, caller: calls.Caller | None = None) -> Any:
        """Make one NVML call that succeeds."""
        code, value = self.call(name, *arguments, caller=caller)
        assert code == "SUCCESS", (name, arguments, code)
        return value

    def change(self, operation: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Let something happen from outside of NVML; returns what the operation returns beside the state."""
        result = operation(self.state, *arguments, **named)
        self.state, value = result if isinstance(result, tuple) else (result, None)
        return value

    def gpu(self, index: int = 0, caller: calls.Caller | None = None) -> int:
        """Return a handle of the GPU of an index."""
        return int(self.value("nvmlDeviceGetHandleByIndex", index, caller=caller))

    def profile(self, name: str) -> int:
        """Return the published id of a profile."""
        return self.state.board.profiles[name].profile_id

    def create(self, name: str, start: int | None = None, *, compute: bool = False) -> int:
        """Create an instance on the first GPU, with a compute instance or without; returns its handle."""
        if start is None:
            made = self.value("nvmlDeviceCreateGpuInstance", self.gpu(), self.profile(name))
        else:
            placement = [start, self.state.board.profiles[name].size]
            made = self.value(
                "nvmlDeviceCreateGpuInstanceWithPlacement", self.gpu(), self.profile(name), placement
            )
        if compute:
            self.create_compute(made)
        return int(made)

    def create_compute(self, instance: int) -> int:
        """Create the compute instance that covers a GPU instance; returns its handle."""
        for number in (0, 1, 2, 3, 4):
            code, info = self.call("nvmlGpuInstanceGetComputeInstanceProfileInfo", instance, number, 0)
            if code == "SUCCESS" and info["instanceCount"] == 1:
                return int(self.value("nvmlGpuInstanceCreateComputeInstance", instance, info["id"]))
        raise AssertionError("no compute instance profile covers the instance")

    def start(self, instance: int) -> int:
        """Return where a GPU instance was placed."""
        return int(self.value("nvmlGpuInstanceGetInfo", instance)["placement"][0])

    def layout(self, index: int = 0) -> list[str]:
        """Return the instances of a GPU as PROFILE@START, by start."""
        instances = sorted(self.state.gpus[index].instances, key=lambda one: one.start)
        return [f"{one.profile}@{one.start}" for one in instances]
