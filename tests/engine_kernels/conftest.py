"""Kernels run in the Triton interpreter here; only the compile gate, a process of its own, compiles them.

Triton reads TRITON_INTERPRET once, when it is imported. The whole test run is one process, so the variable
is set where pytest starts (tests/conftest.py), before any test module imports torch or Triton.
"""

import pytest
import torch

from tangram_engine.kernels import triton_runtime as language


@pytest.fixture(autouse=True, scope="session")
def interpreted() -> None:
    assert language.INTERPRETED, "triton was imported before tests/conftest.py set TRITON_INTERPRET=1"


@pytest.fixture(autouse=True)
def same_random_numbers() -> None:
    torch.manual_seed(0)
