"""What the engine image is built with: Triton's launcher, found at run time without a compiler."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from triton.runtime.cache import FileCacheManager

from tangram_engine.kernels.image_cache import ImageCache

ROOT = Path(__file__).parents[2]
LAUNCH = """
import os, sys
sys.setdlopenflags(os.RTLD_LAZY)  # the stand-in has none of the functions that the launcher calls
sys.path.insert(0, {requirements!r})
import triton_launcher
from triton.runtime.build import _load_module_from_path
path = triton_launcher.launcher()
print(path, _load_module_from_path("cuda_utils", path).launch)
"""


def run(code: str, **environment: str | Path) -> str:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("TRITON", "CC"))}
    paths = {"PYTHONPATH": f"{ROOT / 'engine'}:{ROOT}"}
    settings = inherited | paths | {name: str(value) for name, value in environment.items()}
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, env=settings, check=True, capture_output=True, text=True, timeout=100
    ).stdout


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What requirements/triton_launcher.py writes, made with this machine's compiler."""
    folder = tmp_path_factory.mktemp("triton")
    command = [sys.executable, ROOT / "requirements" / "triton_launcher.py", "cc", folder]
    subprocess.run(command, check=True, timeout=100)
    return folder


def test_the_launcher_of_the_image_is_found_and_loads_without_a_compiler(image: Path, tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    if file := shutil.which(
        "file"
    ):  # Python asks it for the platform, which is part of the name in the cache
        (programs / "file").symlink_to(file)

    found = run(
        LAUNCH.format(requirements=str(ROOT / "requirements")),
        PATH=programs,
        LD_LIBRARY_PATH=image / "libcuda",  # no driver here
        TRITON_LIBCUDA_PATH=image / "libcuda",
        TRITON_CACHE_MANAGER="tangram_engine.kernels.image_cache:ImageCache",
        TANGRAM_IMAGE_CACHE=image / "cache",
        TRITON_CACHE_DIR=tmp_path / "volume",
    )

    assert found.startswith(str(image / "cache"))
    assert "built-in function launch" in found


def test_what_the_image_lacks_goes_to_the_volume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image, volume = tmp_path / "image", tmp_path / "volume"
    monkeypatch.setenv("TRITON_CACHE_DIR", str(image))
    built = FileCacheManager("KEY")
    built.put_group("kernel.json", {"kernel.cubin": built.put(b"code", "kernel.cubin")})
    monkeypatch.setenv("TRITON_CACHE_DIR", str(volume))
    monkeypatch.setenv("TANGRAM_IMAGE_CACHE", str(image))

    cache, other = ImageCache("KEY"), ImageCache("OTHER")

    assert cache.get_group("kernel.json") == {"kernel.cubin": str(image / "KEY" / "kernel.cubin")}
    assert cache.get_file("kernel.cubin") == str(image / "KEY" / "kernel.cubin")
    assert (other.get_group("kernel.json"), other.get_file("kernel.cubin")) == (None, None)
    other.put_group("kernel.json", {"kernel.cubin": other.put(b"new", "kernel.cubin")})
    assert ImageCache("OTHER").get_group("kernel.json") == {
        "kernel.cubin": str(volume / "OTHER" / "kernel.cubin")
    }
    assert not (image / "OTHER").exists()
    (volume / "OTHER" / "kernel.cubin").write_bytes(b"ne")  # truncated
    assert (other.get_group("kernel.json"), other.get_file("kernel.cubin")) == (None, None)
