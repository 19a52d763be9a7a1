"""Fills an image's kernel cache for Llama-3.1-8B and starts engines that use it; prints JSON.

    image_cache_script.py FOLDER

A process of its own, because the test run interprets kernels, and one for each start, because a process
compiles a kernel once. They are forked from one that has imported torch.
"""

import json
import os
import sys
from multiprocessing import get_context
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "requirements"))
IMAGE_CACHE = "tangram_engine.kernels.image_cache:ImageCache"
PLAIN_CACHE = "triton.runtime.cache:FileCacheManager"
os.environ["TRITON_CACHE_MANAGER"] = PLAIN_CACHE  # read when the engine's kernels are imported

import compile_kernels  # noqa: E402
import torch  # noqa: E402
from simulated_gpu import simulated_gpu  # noqa: E402

from tangram_engine.run import load  # noqa: E402, F401

MODEL = "Llama-3.1-8B"
compile_kernels.MULTIPROCESSORS = {90: (132,)}  # enough for what this looks at


def fill(image, model):
    os.environ["TRITON_CACHE_DIR"] = image
    compiled, _ = compile_kernels.start_engines(90, [model], ("bf16", "int4"))
    compile_kernels.strip(Path(image))
    return sorted(compiled)


def start(image, volume, model, form):
    os.environ |= {
        "TRITON_CACHE_MANAGER": IMAGE_CACHE, "TANGRAM_IMAGE_CACHE": image, "TRITON_CACHE_DIR": volume
    }  # fmt: skip
    compiled, found = compile_kernels.start_engines(90, [model], (form,))
    return {"compiled": sorted(compiled), "found": sorted(found)}


def forked(function, *arguments):
    with get_context("fork").Pool(1) as pool:
        return pool.apply(function, arguments)


def main() -> None:
    image, volume = (str(Path(sys.argv[1], name)) for name in ("image", "volume"))
    (model,) = compile_kernels.configs(ROOT / "operator/tangram/catalog/models.yaml", [MODEL])
    with simulated_gpu(90, 132):
        torch.zeros(2, device="cuda").add(1)  # torch imports what fake tensors need
    seen = {"filled": forked(fill, image, model)}
    files = sorted(str(path) for path in Path(image).rglob("*"))
    seen |= {form: forked(start, image, volume, model, form) for form in ("bf16", "int4")}
    other = model | {"vocab_size": 32000}
    seen["another model"] = forked(start, image, volume, other, "bf16")
    seen["image unchanged"] = files == sorted(str(path) for path in Path(image).rglob("*"))
    seen["files"] = sorted({path.suffix for path in Path(image).rglob("*") if path.is_file()})
    seen["in the volume"] = sorted(path.name for path in Path(volume).rglob("*.cubin"))
    json.dump(seen, sys.stdout)


if __name__ == "__main__":
    main()
