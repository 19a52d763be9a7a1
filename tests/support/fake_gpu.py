"""The bytes of the engine's GPU step on fake tensors: real code, real shapes, no data, no kernels, no GPU."""

import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tangram_engine.checkpoint import DecoderSpec, expected_shapes
from tangram_engine.kernels.ops import Ops, kernel_ops
from tangram_engine.models import Decoder
from tangram_engine.models.quantized import QuantizedLinear, largest_projection
from tangram_engine.models.weights import MakeProjection, Projection, assemble, in_place
from tangram_engine.quantize import Fp8Weight, Int4Weight
from tangram_engine.run.attention.paged import PagedAttention
from tangram_engine.run.attention.paged_prefill import CollectedPrefill
from tangram_engine.run.load import warm_up
from tangram_engine.run.rows import DeviceRows
from tangram_engine.run.runner import Launched, Runner
from tangram_engine.schedule import SchedulerLimits

GPU = torch.device("cuda", 0)


class _LiveBytes(TorchDispatchMode):
    """Bytes of the tensors on the GPU, now and at most."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.device.type == "cuda":
                self._count(leaf.untyped_storage())
        return result

    def _count(self, storage: Any) -> None:
        key = storage._cdata
        if key not in self._known:
            self._known.add(key)
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._free, key, storage.nbytes())

    def _free(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


def step_memory(
    spec: DecoderSpec, dtype: torch.dtype, block_size: int, limits: SchedulerLimits, form: str | None = None
) -> dict[str, int]:
    """Bytes of all but weights and pool that the engine keeps, and the peak of its largest steps above it.

    `form`: of quantised weights, with torch's scaled product where it is fp8.
    """
    with _simulated() as live, torch.inference_mode():
        make = _quantised(spec, form, dtype) if form else in_place
        kept = live.now
        shapes = dict(expected_shapes(spec))
        operations = kernel_ops()
        weights = assemble(
            spec,
            lambda name: torch.empty(shapes[name], dtype=dtype, device=GPU),
            dtype,
            GPU,
            operations,
            make,
        )
        loaded = live.now - kept
        rows = DeviceRows(limits.max_num_seqs, limits.max_model_len, block_size, spec.vocab_size, GPU)
        prefill = CollectedPrefill(spec, block_size, dtype, GPU, limits.max_model_len, _flash)
        attention = PagedAttention(
            spec, rows.tables, 0, block_size, dtype, limits.max_model_len, operations, prefill
        )
        runner = Runner(Decoder(spec, weights), attention, rows, operations.sample)
        pool = runner.allocate(1)
        kept = live.now - loaded - pool // 2  # a block and the padding row's
        held = live.peak = live.now
        warm_up(runner, limits, block_size, limits.max_model_len)
        return {"kept": kept, "step": live.peak - held}


@contextmanager
def _simulated() -> Iterator[_LiveBytes]:
    """Nothing needs a driver: kernels are not launched, no host memory is pinned, nothing is collected."""
    # With cuDNN among the choices torch asks a GPU for its capability.
    choices = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    with ExitStack() as stack:
        for name, module in list(sys.modules.items()):
            if name.startswith("tangram_engine.kernels.") and hasattr(module, "launch"):
                stack.enter_context(patch.object(module, "launch", lambda *_, **__: None))
        stack.enter_context(
            patch.object(Runner, "_to_host", lambda _, ids, asked, scored: (ids, asked, [*scored], None))
        )
        stack.enter_context(patch.object(Launched, "result", lambda _: []))
        stack.enter_context(patch.object(torch, "tensor", _without_data))
        stack.enter_context(patch.object(torch, "from_numpy", _without_data))
        stack.enter_context(patch.object(Tensor, "pin_memory", lambda tensor: tensor))
        stack.enter_context(FakeTensorMode())
        stack.enter_context(sdpa_kernel(choices))
        yield stack.enter_context(_LiveBytes())


def _without_data(
    values: Any, dtype: torch.dtype | None = None, device: Any = None, pin_memory: bool = False
) -> Tensor:
    """A tensor made of numbers is a constant to fake tensors, which they would copy to the GPU for good."""
    array = np.asarray(values)
    kind = torch.float32 if array.dtype.kind == "f" else torch.int64
    return torch.empty(array.shape, dtype=dtype or kind, device=device)


def _flash(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """What `causal_attention` calls on a GPU; its subclass of Tensor has no fake."""
    return torch.ops.aten._scaled_dot_product_flash_attention(q, keys, values, 0.0, True)[0]


def _quantised(spec: DecoderSpec, form: str, dtype: torch.dtype) -> MakeProjection:
    def empty(*shape: int, kind: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=kind, device=GPU)

    buffer = empty(largest_projection(spec), kind=dtype)

    def make(read: Callable[[], tuple[Tensor, Tensor | None]], operations: Ops) -> Projection:
        weight, bias = read()
        outputs, columns = weight.shape
        groups = -(-columns // 128)
        made: Fp8Weight | Int4Weight
        if form == "fp8":
            values = empty(outputs, columns, kind=torch.float8_e4m3fn)
            made = Fp8Weight(values, empty(outputs, kind=torch.float32))
        else:
            made = Int4Weight(
                empty(outputs, columns // 2, kind=torch.uint8),
                empty(outputs, groups, kind=torch.float16),
                empty((outputs + 1) // 2, groups, kind=torch.uint8),
            )
        return QuantizedLinear(made, bias, buffer, operations, scaled=form == "fp8")

    return make
