"""What must be importable where there is no torch."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "module", ["schedule", "cache", "config", "sample.params", "checkpoint", "messages", "schedule.request"]
)
def test_module_imports_without_torch(module):
    program = f"import sys; sys.modules['torch'] = None; import tangram_engine.{module}"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30)
