"""The simulated driver against calls that were recorded on an NVIDIA H200 with MIG off, driver 580.159.04."""

import ctypes
import json
from pathlib import Path

import pynvml
import pytest

from e2e.silicon.nvml import listings
from e2e.silicon.nvml.c_functions import FUNCTIONS
from e2e.silicon.nvml.in_process import StateLink
from e2e.silicon.nvml.library import installed
from tests.support.nvml_driver import nvml_state

GOLDEN = Path(__file__).with_name("golden")
RECORDED = json.loads((GOLDEN / "nvml_h200_580.json").read_text())["calls"]
PRINTED = (GOLDEN / "nvidia_smi_mig_h200_580.txt").read_text()
NOT_SIMULATED = {
    "nvmlDeviceGetComputeMode",
    "nvmlDeviceGetDriverModel",
    "nvmlDeviceGetGpuInstancePossiblePlacements",  # pynvml calls _v2
    "nvmlDeviceGetPersistenceMode",
    "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetVirtualizationMode",
}
LISTS = {
    "nvmlDeviceGetGpuInstancePossiblePlacements_v2": pynvml.c_nvmlGpuInstancePlacement_t,
    "nvmlDeviceGetGpuInstances": pynvml.c_nvmlGpuInstance_t,
}


def h200():
    return nvml_state("H200-141GB-SXM", {}, driver="580.159.04")


class Replay:
    """Makes recorded calls once more, with the handle and the UUID of the simulated GPU."""

    def __init__(self):
        self.known = {}

    def answer(self, name, arguments):
        arguments = [self.known.get(one, one) for one in arguments]
        if name in LISTS:
            return self.list(name, *arguments)
        try:
            value = getattr(pynvml, name)(*arguments)
        except pynvml.NVMLError as error:
            return {"code": error.value}
        if name == "nvmlDeviceGetHandleByIndex":
            self.known |= {"gpu": value, "uuid": pynvml.nvmlDeviceGetUUID(value)}
        return {"code": pynvml.NVML_SUCCESS, "value": plain(value)}

    def list(self, name, gpu, profile, length, count):
        array, count = None if length is None else (LISTS[name] * length)(), ctypes.c_uint(count)
        code = getattr(pynvml.nvmlLib, name)(gpu, profile, array, ctypes.byref(count))
        value = {"count": count.value}
        if code == pynvml.NVML_SUCCESS and array is not None and name.endswith("Placements_v2"):
            value["placements"] = [[one.start, one.size] for one in array[: count.value]]
        return {"code": code, "value": value}


def plain(value):
    if isinstance(value, ctypes.Structure):
        return {name: plain(getattr(value, name)) for name, _ in value._fields_}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return value


def test_every_recorded_call_has_the_code_and_the_value_of_the_real_driver():
    replay, different = Replay(), []
    with installed(StateLink(h200())):
        for row in RECORDED:
            if row["call"] in NOT_SIMULATED:
                continue
            answer = replay.answer(row["call"], row["arguments"])
            if any(answer.get(key) != row[key] for key in ("code", "value") if key in row):
                different.append((row, answer))

    assert different == []


@pytest.mark.parametrize("name", sorted(NOT_SIMULATED))
def test_a_recorded_call_that_is_not_replayed_is_one_that_the_simulated_driver_lacks(name):
    assert name in {row["call"] for row in RECORDED}
    assert name not in FUNCTIONS


def test_profiles_placements_and_instances_are_printed_as_by_nvidia_smi():
    printed = [listing(h200()) for listing in (listings.profiles, listings.placements, listings.instances)]

    assert "\n".join(printed) + "\n" == PRINTED
