"""The engine on one GPU, in short stages: GPU time is rare.

    python benchmarks/engine/gpu.py --stage probe baseline --seconds 240 -o DIR
    python benchmarks/engine/gpu.py --stage probe baseline kernels model serve --tiny      the same code on a CPU

    probe       versions; read and copy bandwidth, bf16 and scaled products, the cost of a kernel in a CUDA graph
    baseline    the engine as it is: ids equal to the CPU's, decode, prefill, profile, memory against its model
    kernels     each kernel: correct, its time beside the wire's, other tile sizes
    model       the ladder from plain torch to asynchronous steps; fp8 and int4; nano-vllm's 256 requests
    serve       the HTTP server under one client, and continuous batching of `transformers` beside it
    replay      recorded arrivals over HTTP, at several speeds

Needs the repository and torch, and what the engine itself imports (numpy, msgspec, safetensors); a row that needs
more is skipped with a line where it is missing. `--seconds` bounds each stage. DIR/STAGE.json is written after each
row; behind a row that breaks the CUDA context, hangs or keeps the memory of an engine, the process starts again. The
table comes last.

Measured numbers stand beside predictions.json, which was written before; OFF marks rows that miss by a quarter.
"""

import argparse
import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[2]
# The repository is not installed where it is measured; and this folder, which a script finds its modules in first,
# is not where modules are to be found by their short names.
if __name__ == "__main__":
    sys.path[:1] = []
sys.path[:0] = [path for path in (str(ROOT), str(ROOT / "engine")) if path not in sys.path]

from benchmarks.engine.bench_rows import (  # noqa: E402
    BenchmarkRow,
    MeasuredValue,
    ResultFile,
    Unavailable,
    run_rows,
    table,
)

if TYPE_CHECKING:
    from benchmarks.engine.setting import Setting

STAGES = ("probe", "baseline", "kernels", "model", "serve", "replay")


def main() -> int:
    options = _options()
    if options.tiny:
        os.environ.update(
            {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
        )  # before torch and Triton are imported
    if options.worker:
        return work(options)
    return supervise(options)


def supervise(options: argparse.Namespace) -> int:
    """Run the stages in a process of their own, again behind each row that it does not survive; print the table."""
    paths = [options.output / f"{stage}.json" for stage in options.stage]
    if not options.resume:
        for path in paths:
            path.unlink(missing_ok=True)
    known = -1
    while subprocess.call([sys.executable, *sys.argv, "--worker"]):
        before, known = known, sum(len(ResultFile(path).results) for path in paths)
        if known == before:
            print("the rows make no progress any more")
            break
        print("starting again behind the last row", flush=True)
    files = [ResultFile(path) for path in paths]
    for stage, file in zip(options.stage, files, strict=True):
        print(f"\n== {stage}: {file.title}")
        print("\n".join(table(file.results)), flush=True)
    return int(not all(r.status in ("ok", "skipped") for file in files for r in file.results))


def work(options: argparse.Namespace) -> int:
    """Run the rows; 3 asks for a new process, because each call of a broken CUDA context fails."""
    from benchmarks.engine.setting import Setting  # noqa: PLC0415  (imports torch)

    setting = Setting.of_this_machine(tiny=options.tiny)
    print(setting.title, flush=True)
    for stage in options.stage:
        file = ResultFile(options.output / f"{stage}.json")
        file.title = setting.title
        chosen = [
            row for row in stage_rows(stage, setting) if not any(word in row.name for word in options.skip)
        ]
        if not run_rows(chosen, file, options.seconds, setting.predictions, setting.broken):
            return 3
        setting.close()
    return 0


def stage_rows(stage: str, setting: "Setting") -> list[BenchmarkRow]:
    """The rows of a stage; one row with the error where the engine cannot be imported here."""
    try:
        rows: list[BenchmarkRow] = importlib.import_module(f"benchmarks.engine.{stage}_stage").rows(setting)
    except ImportError as error:
        cause = str(error)

        def fail(_seconds: float) -> MeasuredValue:
            raise Unavailable(cause)

        return [BenchmarkRow(f"import of {stage}", 10, fail)]
    return rows


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--stage", nargs="+", choices=STAGES, required=True)
    parser.add_argument("--seconds", type=float, default=240.0, help="of each stage")
    parser.add_argument("--tiny", action="store_true", help="tiny shapes on the CPU: does the code run?")
    parser.add_argument(
        "--skip", action="append", default=[], metavar="WORD", help="rows with this in their name"
    )
    parser.add_argument("--resume", action="store_true", help="keep the rows that DIR holds")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "build" / "gpu", metavar="DIR")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
