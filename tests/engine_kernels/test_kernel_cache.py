"""Kernels that are compiled late are counted, and a damaged kernel cache is compiled again."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tangram_engine.run.late_kernels import LateKernels
from tests.support.gate_kernels import CASES
from tests.support.kernel_cache_script import KERNEL_FILES

ROOT = Path(__file__).parents[2]


def test_kernels_are_counted_and_damaged_ones_are_compiled_again(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRITON")}
    ran = subprocess.run(
        [sys.executable, "-m", "tests.support.kernel_cache_script"],
        cwd=ROOT,
        env=environment | {"TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert ran.returncode == 0, ran.stderr
    seen = json.loads(ran.stdout)
    assert seen["before ready"] == 0
    assert seen["whole cache"] == {"counted": 1, "hit": True, "same": True, "warnings": 1}
    for damaged in (*KERNEL_FILES, "group", "missing"):
        assert seen[damaged]["hit"] is False, damaged
        assert seen[damaged]["counted"] == 1
        assert seen[damaged]["same"], damaged
        assert seen[damaged]["warnings"] == (1 if damaged == "missing" else 2)  # one line of each kind


def test_without_compiled_kernels_nothing_is_counted() -> None:
    assert CASES  # the kernels of this process are interpreted
    assert LateKernels().take() == 0
