"""Every kernel compiles for every architecture; and the gate sees what it is there to see."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tangram_engine.kernels as kernels_package
from tests.support.compile_gate import GateResult, table
from tests.support.passed_before import PassedBefore

ROOT = Path(__file__).parents[2]
FOUND = re.compile(r"FAILED gate_kernels: (.+?) on sm_(\d+): (.+)")


def compile_gate(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the gate in a process of its own: this one interprets kernels."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.support.compile_gate", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_kernel_compiles_for_every_architecture() -> None:
    inputs = ("engine/tangram_engine", "tests/support/compile_gate.py")
    passed_before = PassedBefore("compile-gate", inputs, ("triton", "torch"))
    if passed_before:
        pytest.skip("passed before with the same files and packages")
    ran = compile_gate("--quick")  # `make compile-gate` compiles the rest

    assert ran.returncode == 0, ran.stdout + ran.stderr
    passed_before.add()


@pytest.mark.slow
def test_the_gate_reports_each_way_to_fail_and_nothing_else() -> None:
    ran = compile_gate("--kernel", "tests.support.gate_kernels", "--architecture", "80", "86", "90")

    found = {(name, int(sm)): failure for name, sm, failure in FOUND.findall(ran.stdout)}
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "of stack (spilled registers), limit 0" in found.pop(("spills", 80))
    assert "no_such_name is not defined" in found.pop(("no kernel", 90))
    assert found == {
        ("not pipelined", 90): "emits no cp.async",
        ("unwanted", 90): "emits wgmma",
        ("too much shared", 86): "131072 bytes of shared memory, limit 101376",
        ("more shared than stated", 90): "49152 bytes of shared memory, limit 1000",
    }


def test_the_gate_refuses_to_run_interpreted() -> None:
    command = [sys.executable, "-m", "tests.support.compile_gate"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert ran.returncode == 1
    assert "run it without TRITON_INTERPRET" in ran.stderr


def test_the_table_shows_registers_and_shared_memory_of_each_architecture() -> None:
    results = [
        GateResult("k", "a", 80, registers=40, shared=2048),
        GateResult("k", "a", 90, registers=32, failures=("emits no wgmma",)),
        GateResult("k", "b", 90, registers=24),
    ]

    assert [line.split() for line in table(results).splitlines()] == [
        ["registers", "/", "KiB", "shared", "sm_80", "sm_90"],
        ["k:", "a", "40", "/", "2.0", "FAILED"],
        ["k:", "b", "-", "24", "/", "0.0"],
        ["FAILED", "k:", "a", "on", "sm_90:", "emits", "no", "wgmma"],
    ]


def test_kernels_are_launched_through_the_function_that_states_fp_fusion() -> None:
    sources = [Path(folder) for folder in kernels_package.__path__]
    files = [file for folder in sources for file in folder.glob("*.py") if file.name != "triton_runtime.py"]

    direct = {file.name: re.findall(r"\w+\[[^\]]*\]\(", file.read_text()) for file in files}
    assert files
    assert {name: launches for name, launches in direct.items() if launches} == {}
