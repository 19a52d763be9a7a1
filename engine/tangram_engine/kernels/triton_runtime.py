"""Import Triton, or a stand-in where it is not installed; launch and compile the kernels.

Triton decides when it is imported whether kernels are compiled or interpreted on the host: with
TRITON_INTERPRET=1 in the environment at that moment, every kernel of the process is interpreted.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

try:
    # Importing it takes 0.6 s, which the start of an engine on a CPU is spared. A process that compiles
    # kernels without a GPU imports Triton before this module.
    if not ("triton" in sys.modules or "TRITON_INTERPRET" in os.environ or torch.cuda.device_count()):
        raise ImportError  # noqa: TRY301 - handled as if Triton were not installed
    import triton
    import triton.language as tl
except ImportError:  # the processor build of torch and Windows have none

    class _AbsentTriton:
        """Any name of Triton's: usable in an annotation or as a decorator, an error when launched."""

        def __init__(self, name: str = "") -> None:
            self._name = name

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return _AbsentTriton(name)

        def __call__(self, *arguments: Any, **_: Any) -> Any:
            if not arguments or not callable(arguments[0]):
                return self  # @triton.jit(...) is a decorator still
            return _AbsentTriton(getattr(arguments[0], "__name__", self._name))

        def __getitem__(self, _grid: Any) -> Any:
            raise RuntimeError(
                f"kernel {self._name} needs Triton and a GPU, one of which is missing: use its reference()"
            )

    triton = tl = _AbsentTriton()
    INSTALLED = False
else:
    from .checked_cache import CheckedCache

    INSTALLED = True
    if "TRITON_CACHE_MANAGER" not in os.environ:
        triton.knobs.cache.manager_class = CheckedCache

__all__ = [
    "ARCHITECTURES",
    "FP_FUSION",
    "INSTALLED",
    "INTERPRETED",
    "TENSOR_CORES",
    "CompileCase",
    "launch",
    "launcher_error",
    "tl",
    "triton",
]

# Whether this process interprets kernels on the host instead of compiling them.
INTERPRETED: bool = INSTALLED and bool(triton.knobs.runtime.interpret)
# Multiply and add in one rounding. Stated with every launch: Triton 3.10 changes what happens without.
FP_FUSION = True
# Compute capabilities for which kernels are compiled; older ones run plain torch.
ARCHITECTURES = (80, 86, 89, 90, 100, 103, 120)
# The instruction that a `tl.dot` of 16-bit operands becomes (PTX): Hopper's needs M >= 64 and 4 warps.
TENSOR_CORES: Mapping[int, tuple[str, ...]] = {
    80: ("mma.sync",),
    86: ("mma.sync",),
    89: ("mma.sync",),
    90: ("wgmma.mma_async",),
    100: ("tcgen05.mma",),
    103: ("tcgen05.mma",),
    120: ("mma.sync",),
}


def launcher_error() -> str | None:
    """Why kernels cannot be launched on this machine's GPU, and what helps; None where they can.

    Triton builds a part of its launcher with a C compiler, or finds it in its cache.
    """
    if INTERPRETED:
        return None
    try:
        triton.runtime.driver.active.utils  # noqa: B018 - builds it
    except Exception as problem:  # noqa: BLE001 - Triton has no class for a missing compiler, header or libcuda
        cause = str(problem).partition("\n")[0]
        return (
            f"Triton cannot build its launcher ({type(problem).__name__}: {cause}): install gcc and Python's "
            "headers, or name a C compiler in CC"
        )
    return None


def launch(
    kernel: Any,
    grid: tuple[int, ...],
    *arguments: Any,
    num_warps: int,
    num_stages: int = 1,
    maxnreg: int | None = None,
    **constexprs: Any,
) -> None:
    """Launch `kernel` on the current stream: the one place that states how its floating point is fused.

    `maxnreg`: registers that a thread may use. Raises RuntimeError where Triton is not installed.
    """
    kernel[grid](
        *arguments,
        num_warps=num_warps,
        num_stages=num_stages,
        maxnreg=maxnreg,
        enable_fp_fusion=FP_FUSION,
        **constexprs,
    )


@dataclass(frozen=True)
class CompileCase:
    """One specialisation of a kernel that the compile gate builds for each architecture.

    `signature` names the type of each argument that is no constexpr, as Triton writes it: "*bf16:16" is a
    pointer to an address that 16 divides (every torch allocation's), "i32:16" an integer that 16 divides,
    "i32" any other. Without ":16" loads are not vectorised and never become cp.async.
    `emits` and `avoids` are fragments of instructions looked for in PTX ("cp.async", "wgmma", "mma.sync",
    "tcgen05.mma"), or in SASS where in capitals ("LDGSTS"; Triton 3.6 shows no SASS of sm_103);
    `emits_on` adds those of one architecture.
    """

    name: str
    kernel: Any
    signature: Mapping[str, str]
    constexprs: Mapping[str, Any]
    num_warps: int = 4
    num_stages: int = 1
    maxnreg: int | None = None
    architectures: tuple[int, ...] = ARCHITECTURES
    emits: tuple[str, ...] = ()
    avoids: tuple[str, ...] = ()
    emits_on: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    shared_bytes: int | None = None  # at most; None: what the architecture has
    quick: bool = True  # whether the quick gate compiles it; False where another case is nearly the same
    stack_bytes: int = 0  # at most, per thread: more than none means spilled registers
