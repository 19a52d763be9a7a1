"""Kernel files without Triton, launches, and tile rows."""

import os
import subprocess
import sys

import pytest
import torch

from tangram_engine.kernels import tiles
from tangram_engine.kernels.triton_runtime import FP_FUSION, launch, tl, triton

WITHOUT_TRITON = """
import sys
sys.modules["triton"] = None
from tangram_engine.kernels.triton_runtime import INSTALLED, INTERPRETED, launch, tl, triton

@triton.jit
def plain(x, BLOCK: tl.constexpr):
    pass

@triton.jit(do_not_specialize=["x"])
def configured(x, BLOCK: tl.constexpr):
    pass

DTYPE = tl.float32
assert not INSTALLED and not INTERPRETED
for kernel in (plain, configured):
    try:
        launch(kernel, (1,), None, num_warps=4, BLOCK=1)
    except RuntimeError as problem:
        print(problem)
"""


def test_without_triton_a_kernel_file_imports_and_a_launch_names_the_way_out() -> None:
    ran = subprocess.run([sys.executable, "-c", WITHOUT_TRITON], capture_output=True, text=True, check=False)

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [
        f"kernel {name} needs Triton and a GPU, one of which is missing: use its reference()"
        for name in ("plain", "configured")
    ]


def test_the_start_of_an_engine_without_a_gpu_imports_neither_triton_nor_torchs_compiler() -> None:
    code = "import sys, tangram_engine.run; print({'triton', 'torch._dynamo'} & {*sys.modules})"
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env=environment | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )

    assert ran.stdout == "set()\n", ran.stderr


@triton.jit
def _double(x, y, N, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < N) * 2, mask=at < N)


def test_a_kernel_is_interpreted_on_the_host() -> None:
    x, y = torch.randn(10), torch.full((10,), float("nan"))

    launch(_double, (3,), x, y, 10, num_warps=4, BLOCK=4)

    assert torch.equal(y, x * 2)


def test_each_launch_states_how_floating_point_is_fused() -> None:
    stated = []

    class Kernel:
        def __getitem__(self, grid: object) -> object:
            return lambda *_, **options: stated.append(options["enable_fp_fusion"])

    launch(Kernel(), (1,), num_warps=4)

    assert stated == [FP_FUSION]


def test_hardware_takes_the_largest_row_that_it_reaches_and_the_safe_row_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = {
        ("k", 0, 0): {"B": 1},
        ("k", 90, 0): {"B": 2},
        ("k", 90, 100): {"B": 3},
        ("other", 80, 0): {"B": 4},
    }
    monkeypatch.setattr(tiles, "TILES", rows)

    assert [tiles.tile_for("k", *at)["B"] for at in ((90, 16), (90, 100), (90, 132), (80, 108), (0, 0))] == [
        2,
        3,
        3,
        1,
        1,
    ]
    assert tiles.tile("k", torch.device("cpu"))["B"] == 1
    with pytest.raises(KeyError):
        tiles.tile_for("unheard", 90, 132)
