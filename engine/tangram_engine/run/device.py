"""Which device computes, and in which dtype; what cannot work is refused before anything is loaded."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from tangram_engine.run import host
from tangram_engine.start_error import StartError

logger = logging.getLogger(__name__)

STORED = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
BFLOAT16_FROM = (8, 0)  # compute capability; older GPUs imitate bfloat16 in float32, several times slower
DRIVER_NODE = Path("/dev/nvidiactl")  # there wherever a GPU was given to the process, in a container or not


class UnusableDevice(StartError):
    """The device cannot do what is asked; the message says why and what to do."""


def open_device(requested: str, driver_node: Path = DRIVER_NODE) -> torch.device:
    """Return a device that has computed something. `requested`: auto, cpu or cuda. Raises UnusableDevice.

    A GPU that is there and cannot be used is an error, also for "auto": a CPU would answer, but far slower.
    """
    if requested == "cpu" or (requested == "auto" and not _available() and not driver_node.exists()):
        return torch.device("cpu")
    advice = "" if requested == "cuda" else "; --device cpu runs without it"
    with _unusable("the GPU cannot be used", advice):
        torch.cuda.init()  # type: ignore[no-untyped-call]
        device = torch.device("cuda", torch.cuda.current_device())
        # Nothing grows after the start, so nothing is won; on a MIG slice they ask NVML, which may refuse.
        _allocator_settings("expandable_segments:False")
        # cuDNN's attention builds a plan for each length of a prompt, some 40 ms of the host each time.
        torch.backends.cuda.enable_cudnn_sdp(False)
        capability = torch.cuda.get_device_capability(device)
        name = torch.cuda.get_device_name(device)
    build = f"torch {torch.__version__}, which is built for {', '.join(torch.cuda.get_arch_list())}"
    with _unusable(f"{name} (sm_{capability[0]}{capability[1]}) cannot run {build}", advice):
        torch.ones(1, device=device).add(1).item()
    return device


def limit_threads() -> None:
    """Compute with no more threads than the container has CPUs."""
    torch.set_num_threads(min(torch.get_num_threads(), host.threads(host.cpu_limit())))


def choose_dtype(
    requested: str, stored: str, device: torch.device, *, quantized: bool = False
) -> torch.dtype:
    """Return the dtype of weights, activations and cache. `requested`: auto or a name of torch's.

    auto: float32 on a CPU, else as most weights are stored, float16 on a GPU without bfloat16. What a
    quantised model leaves alone is served in 16 bits on a GPU, as the operator counts it. Raises
    UnusableDevice where bfloat16 is asked for and the GPU has none.
    """
    stored = "bf16" if quantized and stored == "fp32" else stored
    dtype: torch.dtype = STORED[stored] if requested == "auto" else getattr(torch, requested)
    if device.type == "cpu":
        return torch.float32 if requested == "auto" else dtype
    capability = torch.cuda.get_device_capability(device)
    if dtype is not torch.bfloat16 or capability >= BFLOAT16_FROM:
        return dtype
    gpu = f"{torch.cuda.get_device_name(device)} (sm_{capability[0]}{capability[1]}) has no bfloat16"
    if requested != "auto":
        raise UnusableDevice(f"{gpu}: use --dtype float16 or float32")
    logger.warning("%s: the weights are served in float16, which overflows beyond 65504", gpu)
    return torch.float16


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error of torch means that the device has no memory left.

    In a MIG slice the allocator, on its way to report that, asks NVML for what the board has, is refused, and
    raises an internal error about NVML instead (pytorch#112377).
    """
    if isinstance(error, torch.OutOfMemoryError):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and ("NVML" in text or "out of memory" in text)


def _available() -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a driver that is too old: `torch.cuda.init` raises it
        return torch.cuda.is_available()


def _allocator_settings(settings: str) -> None:
    apply: Any = getattr(torch._C, "_accelerator_setAllocatorSettings", None)  # noqa: SLF001 (no public name)
    if apply is not None:
        apply(settings)


@contextmanager
def _unusable(what: str, advice: str) -> Iterator[None]:
    """Turn errors of the CUDA runtime and of torch's set-up into one line."""
    try:
        yield
    except (RuntimeError, AssertionError) as error:  # torch without CUDA raises AssertionError
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise UnusableDevice(f"{what}: {reason.strip()}{advice}") from error
