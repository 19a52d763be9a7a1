"""Compile every kernel for every architecture, without a GPU, and check what came out.

    make compile-gate
    python -m tests.support.compile_gate [--kernel NAME ...] [--architecture SM ...] [--processes 2]

For each CompileCase of a module in tangram_engine.kernels: shared memory within the architecture's limit,
no spilled registers (stack, from the bundled cuobjdump), the instructions that the case expects. Prints a
table and exits with status 1 when anything is missed. Works with any installed Triton: put another version
first on PYTHONPATH to gate that one. Must run without TRITON_INTERPRET.
"""

import argparse
import importlib
import os
import pkgutil
import re
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import triton  # first: `language` leaves it out where there is no GPU

import tangram_engine.kernels as kernels_package
from tangram_engine.kernels.triton_runtime import ARCHITECTURES, FP_FUSION, INTERPRETED, CompileCase

# Bytes of shared memory that one block may have (CUDA C programming guide, technical specifications).
SHARED_LIMIT = {80: 166_912, 86: 101_376, 89: 101_376, 90: 232_448, 100: 232_448, 103: 232_448, 120: 101_376}
TENSOR_MEMORY_COLUMNS = 512
# Compiled as 80 or 100 is, but for the machine code and the limit of shared memory.
VARIANTS = (86, 89, 103, 120)


@dataclass(frozen=True)
class GateResult:
    """What one case became on one architecture. `failures` is empty when it passed."""

    kernel: str
    case: str
    architecture: int
    registers: int = 0
    shared: int = 0
    stack: int = 0
    seconds: float = 0.0
    failures: tuple[str, ...] = ()


def kernel_modules() -> list[str]:
    """The kernel files: names of all modules of the package that have CASES."""
    names = [
        f"{kernels_package.__name__}.{found.name}" for found in pkgutil.iter_modules(kernels_package.__path__)
    ]
    return [name for name in names if hasattr(importlib.import_module(name), "CASES")]


def gate_case(case: CompileCase, architecture: int, kernel: str = "") -> GateResult:
    """Compile one case for one architecture and check it."""
    start = time.perf_counter()
    try:
        compiled = compile_case(case, architecture)
        registers, stack = _resources(compiled.kernel)
        failures = tuple(_failures(case, architecture, compiled, stack))
    except Exception as problem:  # noqa: BLE001 - whatever the compiler raises is the finding
        cause = " ".join(str(problem).split())[-160:]
        return GateResult(
            kernel,
            case.name,
            architecture,
            failures=(f"does not compile: {type(problem).__name__}: {cause}",),
        )
    seconds = time.perf_counter() - start
    return GateResult(
        kernel, case.name, architecture, registers, compiled.metadata.shared, stack, seconds, failures
    )


def compile_case(case: CompileCase, architecture: int) -> Any:
    """Triton's CompiledKernel."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = dict.fromkeys(case.kernel.arg_names, "constexpr")
    signature |= {name: written.split(":")[0] for name, written in case.signature.items()}
    aligned = {
        (case.kernel.arg_names.index(name),): [["tt.divisibility", 16]]
        for name, written in case.signature.items()
        if written.endswith(":16")
    }
    source = ASTSource(fn=case.kernel, signature=signature, constexprs=dict(case.constexprs), attrs=aligned)
    options = {
        "num_warps": case.num_warps,
        "num_stages": case.num_stages,
        "maxnreg": case.maxnreg,
        "enable_fp_fusion": FP_FUSION,
    }
    return triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=options)


def _failures(case: CompileCase, architecture: int, compiled: Any, stack: int) -> Iterator[str]:
    limit = min(case.shared_bytes or SHARED_LIMIT[architecture], SHARED_LIMIT[architecture])
    if architecture == 80:  # what its variants get, too
        limit = min([limit, *(SHARED_LIMIT[sm] for sm in case.architectures if sm in VARIANTS)])
    if compiled.metadata.shared > limit:
        yield f"{compiled.metadata.shared} bytes of shared memory, limit {limit}"
    columns = getattr(compiled.metadata, "tmem_size", None) or 0
    if columns > TENSOR_MEMORY_COLUMNS:
        yield f"{columns} columns of tensor memory, limit {TENSOR_MEMORY_COLUMNS}"
    if stack > case.stack_bytes:
        yield f"{stack} bytes of stack (spilled registers), limit {case.stack_bytes}"
    wanted = (*case.emits, *case.emits_on.get(architecture, ()))
    text = compiled.asm["ptx"]
    if any(fragment.isupper() for fragment in (*wanted, *case.avoids)):
        text += _inspect(compiled.kernel, "-sass")
    yield from (f"emits no {fragment}" for fragment in wanted if fragment not in text)
    yield from (f"emits {fragment}" for fragment in case.avoids if fragment in text)


def _resources(cubin: bytes) -> tuple[int, int]:
    """Registers and bytes of stack per thread."""
    report = _inspect(cubin, "-res-usage")
    used = {name: int(amount) for name, amount in re.findall(r"(REG|STACK|LOCAL):(\d+)", report)}
    return used["REG"], used["STACK"] + used.get("LOCAL", 0)


def _inspect(cubin: bytes, what: str) -> str:
    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    path = {**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}  # -sass starts nvdisasm
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(tools / "cuobjdump"), what, file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True, env=path).stdout


def _one(job: tuple[str, int, int]) -> GateResult:
    name, index, architecture = job
    case = importlib.import_module(name).CASES[index]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return gate_case(case, architecture, name.rpartition(".")[2])


def gate(
    modules: Sequence[str], architectures: Sequence[int], processes: int, *, quick: bool = False
) -> list[GateResult]:
    """Results of all cases of the modules for the architectures, in that order.

    `quick`: only cases that are `quick`, and of each module only the first for a variant of an architecture.
    """
    jobs = [
        (name, index, architecture)
        for name in modules
        for index, case in enumerate(importlib.import_module(name).CASES)
        for architecture in architectures
        if architecture in case.architectures
        and not (quick and (not case.quick or (index and architecture in VARIANTS)))
    ]
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TRITON_CACHE_DIR"] = cache  # nothing compiled earlier counts
        # Forked: the modules are imported by now, and neither torch nor Triton has done anything yet.
        with ProcessPoolExecutor(processes, mp_context=get_context("fork")) as pool:
            return list(pool.map(_one, jobs))


def table(results: Sequence[GateResult]) -> str:
    """One line per case: registers per thread and KiB of shared memory on each architecture."""
    architectures = sorted({result.architecture for result in results})
    lines = [f"{'registers / KiB shared':44}" + "".join(f"{f'sm_{sm}':>12}" for sm in architectures)]
    for kernel, case in dict.fromkeys((result.kernel, result.case) for result in results):
        of_case = {r.architecture: r for r in results if (r.kernel, r.case) == (kernel, case)}
        cells = (_cell(of_case.get(sm)) for sm in architectures)
        lines.append(f"{f'{kernel}: {case}':44.44}" + "".join(f"{cell:>12}" for cell in cells))
    lines += [
        f"FAILED {r.kernel}: {r.case} on sm_{r.architecture}: {failure}"
        for r in results
        for failure in r.failures
    ]
    return "\n".join(lines)


def _cell(result: GateResult | None) -> str:
    if result is None:
        return "-"
    return "FAILED" if result.failures else f"{result.registers} / {result.shared / 1024:.1f}"


def main() -> int:
    """Run the gate. Exit status 1: a case failed, or there was none."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kernel", nargs="*", default=[], help="file names without .py, or other modules")
    parser.add_argument("--architecture", nargs="*", type=int, default=list(ARCHITECTURES))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help=f"{VARIANTS}: the first case of each kernel")
    chosen = parser.parse_args()
    if INTERPRETED:
        sys.exit("the compile gate needs compiled kernels: run it without TRITON_INTERPRET")
    start = time.perf_counter()
    modules = [name if "." in name else f"{kernels_package.__name__}.{name}" for name in chosen.kernel]
    results = gate(modules or kernel_modules(), chosen.architecture, chosen.processes, quick=chosen.quick)
    print(table(results))
    compiling = sum(result.seconds for result in results)
    print(
        f"Triton {triton.__version__}: {len(results)} compilations, {compiling:.0f} s of compiling, "
        f"{time.perf_counter() - start:.0f} s in all"
    )
    return 1 if not results or any(result.failures for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
