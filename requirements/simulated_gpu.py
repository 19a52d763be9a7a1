"""A GPU that is not there: code for a GPU runs on it, kernels are compiled for it, nothing is computed.

Tensors on it are torch's fake ones: shapes, dtypes and offsets without memory. A launch of a Triton kernel
compiles it for the architecture, or finds it in Triton's cache, by the caller's very arguments. So the start
of the engine leaves in that cache what the start on such a GPU looks for.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn.attention import bias
from torch.overrides import TorchFunctionMode
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

MEMORY_BYTES = 1 << 40  # more than any model needs
SCALED_PRODUCT_FROM = 89  # architecture, as torch has it for fp8


class _Values(TorchFunctionMode):
    """What fake tensors do not have: an address, values, pinned memory, operators chosen by capability."""

    def __init__(self, architecture: int) -> None:
        super().__init__()
        self._architecture = architecture

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name, options = getattr(function, "__name__", ""), dict(kwargs or {})
        options.pop("pin_memory", None)
        match name:
            case "data_ptr":  # CUDA's allocations begin at multiples of 512
                return args[0].storage_offset() * args[0].itemsize
            case "pin_memory":
                return args[0]
            case "__bool__" | "item":
                return True
            case "scaled_dot_product_attention":
                return torch.empty_like(args[0])
            case "_scaled_mm" if self._architecture < SCALED_PRODUCT_FROM:
                raise RuntimeError("torch._scaled_mm is only supported from compute capability 8.9 on")
        result = function(*args, **options)
        if name == "tensor":
            result.constant = None  # torch would compute with one known number, on the GPU
        return result


class _Inert:
    """A CUDA stream, event or graph: whatever is done with it does nothing."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __getattr__(self, _name: str) -> Callable[..., None]:
        return lambda *_, **__: None

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


class _Driver:
    """Triton's driver, as far as compiling asks it. The device's number is the architecture's."""

    utils = None  # nothing is launched

    def __init__(self, architecture: int) -> None:
        self._architecture = architecture

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self._architecture, 32)

    def get_current_device(self) -> int:
        return self._architecture

    def get_current_stream(self, _device: int) -> int:
        return 0


@contextmanager
def simulated_gpu(architecture: int, multiprocessors: int) -> Iterator[None]:
    """Give this process a GPU of that compute capability (90 for 9.0) and size.

    A second passes with each look at the clock, so that no measurement of speed is repeated.
    """
    properties = SimpleNamespace(
        major=architecture // 10,
        minor=architecture % 10,
        multi_processor_count=multiprocessors,
        total_memory=MEMORY_BYTES,
        name="a simulated GPU",
    )
    generator, seconds = torch.Generator, count()
    answers = {
        "is_available": True,
        "current_device": 0,
        "get_device_properties": properties,
        "get_device_capability": (properties.major, properties.minor),
        "get_device_name": properties.name,
        "get_arch_list": [f"sm_{architecture}"],
        "mem_get_info": (MEMORY_BYTES, MEMORY_BYTES),
        **dict.fromkeys(("memory_allocated", "memory_reserved", "max_memory_reserved"), 0),
        **dict.fromkeys(("init", "synchronize", "empty_cache", "reset_peak_memory_stats")),
        "graph_pool_handle": None,
    }
    replaced: list[tuple[object, str, object]] = [
        *((torch.cuda, name, lambda *_, answer=answer, **__: answer) for name, answer in answers.items()),
        *((torch.cuda, name, _Inert) for name in ("Stream", "Event", "CUDAGraph", "graph", "stream")),
        (torch.cuda, "current_stream", _Inert),
        (torch, "Generator", lambda _device=None: generator()),
        (FakeTensor, "tolist", lambda tensor: _zeros(tuple(tensor.shape))),
        (bias, "CausalBias", lambda *_: None),
        (JITFunction, "__getitem__", lambda kernel, grid: partial(kernel.run, grid=grid, warmup=True)),
        (time, "perf_counter", lambda: float(next(seconds))),
    ]
    with ExitStack() as simulated:
        simulated.enter_context(FakeTensorMode())  # first: where it sees no GPU, it asks none
        simulated.enter_context(_Values(architecture))
        for holder, name, value in replaced:
            simulated.enter_context(patch.object(holder, name, value))
        driver.set_active(_Driver(architecture))
        yield


def _zeros(shape: tuple[int, ...]) -> Any:
    return [_zeros(shape[1:]) for _ in range(shape[0])] if shape else 0
