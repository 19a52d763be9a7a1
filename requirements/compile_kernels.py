"""Runs inside an image build: compiles the kernels with which the engine starts, for GPUs that are not there.

    compile_kernels.py FOLDER --catalog models.yaml [--architectures 80 90 ...] [--models NAME ...]

Starts the engine on a simulated GPU of each architecture, for each model in each format: the kernels of its
warm-up land in FOLDER, a cache of Triton's, under the keys that a start on such a GPU looks for. What lies
there already is not compiled again. One layer stands for all, as they are alike.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch

ARCHITECTURES = (80, 86, 89, 90, 100, 103, 120)
MODELS = (
    *("Llama-3.2-1B", "Llama-3.2-3B", "Llama-3.1-8B", "Llama-3.1-70B"),
    *(
        "Qwen2.5-0.5B",
        "Qwen2.5-1.5B",
        "Qwen2.5-3B",
        "Qwen2.5-7B",
        "Qwen2.5-14B",
        "Qwen2.5-32B",
        "Qwen2.5-72B",
    ),
    *("Qwen3-0.6B", "Qwen3-1.7B", "Qwen3-4B", "Qwen3-8B", "Qwen3-14B", "Qwen3-32B"),
)
FORMATS = ("bf16", "fp8", "int4")
# Of the largest GPU; then of MIG slices or small GPUs, where int4 shares out inputs otherwise.
MULTIPROCESSORS = {
    80: (108, 42, 14),
    86: (84, 28),
    89: (142, 58),
    90: (132, 60, 16),
    100: (148, 72, 18),
    103: (148, 72, 18),
    120: (188, 84, 46),
}
KEPT = (".json", ".cubin")  # what a hit in Triton's cache needs


def main(arguments: Sequence[str]) -> int:
    """Fill the folder; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--catalog", type=Path, required=True)
    parser.add_argument("--architectures", nargs="*", type=int, choices=ARCHITECTURES, default=ARCHITECTURES)
    parser.add_argument("--models", nargs="*", help="names in the catalog; without any, those of MODELS")
    parser.add_argument("--formats", nargs="*", choices=FORMATS, help="without any, all")
    chosen = parser.parse_args(arguments)
    try:
        models = configs(chosen.catalog, chosen.models or MODELS)
    except KeyError as name:
        parser.error(f"the catalog has no model {name}: --models takes its names, such as {MODELS[0]}")
    os.environ |= {
        "TRITON_CACHE_DIR": str(chosen.folder),
        "TRITON_CACHE_MANAGER": "triton.runtime.cache:FileCacheManager",
    }
    for architecture in chosen.architectures:
        begin = time.time()
        compiled, found = start_engines(architecture, models, chosen.formats or FORMATS)
        counts = f"{len(compiled)} compiled, {len(found)} found"
        print(f"sm_{architecture}: {counts}, {time.time() - begin:.0f} s", flush=True)
    print(f"{strip(chosen.folder) / 1e6:.1f} MB")
    return 0


def configs(catalog: Path, names: Sequence[str]) -> list[dict[str, Any]]:
    """config.json of the models that the operator's catalog has under these names. Raises KeyError."""
    import yaml  # noqa: PLC0415  (the tests start engines without a catalog)

    models = yaml.safe_load(catalog.read_text())["models"]
    return [models[name]["config"] for name in names]


def start_engines(
    architecture: int, models: Sequence[dict[str, Any]], formats: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Start the engine with each model in each format: names of kernels compiled, and of those found."""
    import triton  # noqa: PLC0415  (reads the environment)
    from triton.runtime._async_compile import AsyncCompileMode  # noqa: PLC0415

    compiled: list[str] = []
    found: list[str] = []

    def note(*, src: Any, cache_hit: bool, **_: Any) -> None:
        (found if cache_hit else compiled).append(src.name)

    triton.knobs.compilation.listener = note
    with ThreadPoolExecutor(os.cpu_count()) as threads, AsyncCompileMode(threads):
        for model in models:
            for form in formats:
                sizes = MULTIPROCESSORS[architecture]
                for multiprocessors in sizes if form == "int4" else sizes[:1]:
                    start_engine(architecture, multiprocessors, model, form)
    return compiled, found


def start_engine(architecture: int, multiprocessors: int, model: dict[str, Any], form: str) -> None:
    """Start the engine on a simulated GPU. `form`: bf16, or what the weights are quantised to."""
    from simulated_gpu import simulated_gpu  # noqa: PLC0415

    from tangram_engine.config import DUMMY, EngineConfig  # noqa: PLC0415
    from tangram_engine.kernels import tiles  # noqa: PLC0415
    from tangram_engine.quantize import formats  # noqa: PLC0415
    from tangram_engine.run import graphs  # noqa: PLC0415
    from tangram_engine.run.load import load  # noqa: PLC0415

    tiles.hardware.cache_clear()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(model | {"num_hidden_layers": 1}))
        config = EngineConfig(
            Path(folder),
            device="cuda",
            load_format=DUMMY,
            quantize=None if form == "bf16" else form,
            max_model_len=1024,
            max_num_batched_tokens=256,
            kv_cache_bytes=1 << 30,
        )
        with (
            simulated_gpu(architecture, multiprocessors),
            patch.object(formats, "CHUNK", 1 << 62),  # no weight takes memory: all of a matrix at once
            patch.object(graphs, "WARM_UP_RUNS", 0),  # of libraries
        ):
            load(config)


def strip(folder: Path) -> int:
    """Remove what no start reads: intermediate code, and its names in the lists of files. Bytes that stay."""
    for group in folder.glob("*/__grp__*.json"):
        files = json.loads(group.read_bytes())["child_paths"]
        kept = {name: path for name, path in files.items() if name.endswith(KEPT)}
        group.write_text(json.dumps({"child_paths": kept}))
        for path in files.keys() - kept.keys():
            Path(files[path]).unlink()
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
