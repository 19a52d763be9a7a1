"""The engine image brings the kernels of well-known models: a start on a GPU compiles none of them."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from tests.support.passed_before import PassedBefore

ROOT = Path(__file__).parents[2]
CATALOG = ROOT / "operator/tangram/catalog/models.yaml"
SCRIPT = "tests/support/image_cache_script.py"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_start_finds_every_kernel_in_the_image_and_another_model_compiles_only_what_is_missing(
    tmp_path: Path,
) -> None:
    inputs = ("engine/tangram_engine", "requirements", str(CATALOG.relative_to(ROOT)), SCRIPT)
    passed_before = PassedBefore("compiled-kernels", inputs, ("triton", "torch", "transformers"))
    if passed_before:
        pytest.skip("passed before with the same files and packages")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRITON")}
    environment |= {"PYTHONPATH": f"{ROOT / 'engine'}:{ROOT}", "PATH": ""}  # no compiler is needed
    command = [sys.executable, "-m", "tests.support.image_cache_script", str(tmp_path)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    assert ran.returncode == 0, ran.stderr
    seen = json.loads(ran.stdout)
    assert "_attend" in seen["filled"]
    assert (seen["bf16"]["compiled"], seen["int4"]["compiled"]) == ([], [])
    assert set(seen["bf16"]["found"]) | set(seen["int4"]["found"]) == set(seen["filled"])
    assert set(seen["bf16"]["found"]) < set(seen["filled"])
    assert seen["another model"]["compiled"] == ["_choose", "_scan"]  # for another vocabulary
    assert seen["in the volume"] == ["_choose.cubin", "_scan.cubin"]
    assert seen["image unchanged"]
    assert seen["files"] == [".cubin", ".json"]  # no intermediate code
    passed_before.add()


@pytest.fixture
def compile_kernels(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "requirements"))
    return importlib.import_module("compile_kernels")


def test_the_catalog_has_the_shapes_of_the_models_in_the_image(compile_kernels: ModuleType) -> None:
    models = yaml.safe_load(CATALOG.read_text())["models"]

    assert {models[name]["check"] for name in compile_kernels.MODELS} == {"stored"}


def test_a_model_that_the_catalog_lacks_ends_the_build_with_its_name(
    compile_kernels: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        compile_kernels.main([str(tmp_path), "--catalog", str(CATALOG), "--models", "Llama-9-1B"])

    assert "the catalog has no model 'Llama-9-1B'" in capsys.readouterr().err
