"""The engine behind its HTTP server, measured by somebody else's client: SGLang's bench_serving.

    python -m benchmarks.outside_client [--concurrency 1 16] [--prompts 64] [--runs 3] [--json FILE]

The client comes from its package and runs in a virtual environment of its own in the cache folder. It streams
/v1/completions of a `tangram-engine serve` on a free loopback port and shares this machine's cores with it, so the
numbers are those of both together. Prompts are runs of token ids, turned into text; each run has others, so that the
prefix cache has little to answer (its share is printed). A run counts only if every request was answered in full and the engine's own counter
of generated tokens agrees with the client's.

Each cell is the median over the runs, with the lowest and the highest in brackets.

    TTFT    from sending a request to its first text
    ITL     between two pieces of text of one answer
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from e2e.cluster import paths
from e2e.cluster.apiserver import free_port
from e2e.cluster.base import REPOSITORY, ClusterError, run, tail, wait_until
from e2e.cluster.locks import locked

# The last release whose bench_serving starts without torch and the serving stack, hence --no-deps.
CLIENT = "sglang==0.5.3"
CLIENT_NEEDS = ("aiohttp", "numpy", "requests", "tqdm", "transformers>=5,<6", "pybase64", "IPython")
NAME = "tangram-tiny"
RUN_TIMEOUT_S = 600
COLUMNS = {
    "req/s": "request_throughput",
    "output tok/s": "output_throughput",
    "TTFT p50 ms": "median_ttft_ms",
    "TTFT p99 ms": "p99_ttft_ms",
    "ITL p50 ms": "median_itl_ms",
    "ITL p99 ms": "p99_itl_ms",
}


@dataclass(frozen=True)
class Load:
    prompts: int
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class Result:
    concurrency: int
    server_prompt_tokens: int  # over all runs; what the client's text became in the server's tokenizer
    server_cached_tokens: int  # of these, found in the prefix cache
    runs: dict[str, list[float]]  # column -> one value per run


def ensure_client() -> Path:
    """The client's interpreter; installed on first use, again when what it needs has changed."""
    home = paths.cache() / "outside-client"
    python, mark = home / "bin" / "python", home / "installed.txt"
    wanted = "\n".join((sys.version, CLIENT, *CLIENT_NEEDS))
    with locked(paths.cache() / "outside-client.lock", timeout_s=900):
        if not mark.exists() or mark.read_text() != wanted:
            print(f"installing {CLIENT} into {home}", file=sys.stderr)
            run([sys.executable, "-m", "venv", "--clear", home], timeout_s=120)
            install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            run([*install, "--no-deps", CLIENT], timeout_s=600)
            run([*install, *CLIENT_NEEDS], timeout_s=600)
            mark.write_text(wanted)
    return python


def client_versions(python: Path) -> dict[str, str]:
    names = [re.split("[=<>]", name)[0] for name in (CLIENT, *CLIENT_NEEDS)]
    code = "import json, sys; from importlib.metadata import version; print(json.dumps({n: version(n) for n in sys.argv[1:]}))"
    versions: dict[str, str] = json.loads(run([python, "-c", code, *names], timeout_s=60).stdout)
    return versions


class Server:
    """A running engine; asked without any proxy that the environment may name."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.process, self.log = process, log
        self.url = f"http://127.0.0.1:{port}"
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def ready(self) -> bool:
        if self.process.poll() is not None:
            raise ClusterError(f"the engine ended:\n{tail(self.log.read_text(errors='replace'))}")
        try:
            with self._opener.open(f"{self.url}/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    def counter(self, name: str) -> int:
        with self._opener.open(f"{self.url}/metrics", timeout=5) as answer:
            text = answer.read().decode()
        return sum(int(float(line.split()[-1])) for line in text.splitlines() if line.startswith(f"{name}{{"))


@contextmanager
def engine(model: Path) -> Iterator[Server]:
    """`tangram-engine serve` until the block ends, however it ends."""
    port = free_port()
    command = [
        sys.executable,
        "-P",
        "-m",
        "tangram_engine",
        "serve",
        "--model",
        model,
        "--served-model-name",
        NAME,
    ]
    command += ["--host", "127.0.0.1", "--port", str(port), "--drain-seconds", "0"]
    with tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch) / "engine.log"
        with log.open("wb") as sink:
            process = subprocess.Popen(list(map(str, command)), stdout=sink, stderr=sink)
        try:
            server = Server(process, port, log)
            wait_until("the engine's readiness", server.ready, timeout_s=120)
            yield server
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def measure(
    server: Server, python: Path, model: Path, load: Load, concurrency: int, seed: int
) -> dict[str, float]:
    """One run of the client. Raises ClusterError unless client and server agree that all was answered."""
    before = server.counter("vllm:generation_tokens_total")
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch) / "result.jsonl"
        # fmt: off
        command = [
            python, "-m", "sglang.bench_serving", "--backend", "sglang-oai", "--base-url", server.url,
            "--model", NAME, "--tokenizer", model, "--dataset-name", "random-ids",
            "--random-input-len", load.input_tokens, "--random-output-len", load.output_tokens,
            "--random-range-ratio", 1, "--num-prompts", load.prompts, "--max-concurrency", concurrency,
            "--warmup-requests", 0, "--seed", seed, "--disable-tqdm", "--output-file", output,
        ]
        # fmt: on
        offline = {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", "HF_HUB_OFFLINE": "1"}
        done = run(list(map(str, command)), timeout_s=RUN_TIMEOUT_S, env=offline, cwd=Path(scratch))
        if not output.exists():
            raise ClusterError(f"the client wrote no result:\n{tail(done.stdout + done.stderr)}")
        result: dict[str, float] = json.loads(output.read_text())
    counted = server.counter("vllm:generation_tokens_total") - before
    wanted = load.prompts * load.output_tokens
    if not result["completed"] == load.prompts or not result["total_output_tokens"] == counted == wanted:
        raise ClusterError(
            f"{load.prompts} requests of {load.output_tokens} tokens were sent; the client saw {result['completed']} "
            f"with {result['total_output_tokens']} tokens, the engine made {counted}"
        )
    return result


def measure_all(options: argparse.Namespace, python: Path) -> list[Result]:
    load = Load(options.prompts, options.input_tokens, options.output_tokens)
    results = []
    with engine(options.model) as server:
        for place, concurrency in enumerate(options.concurrency):
            names = ("vllm:prompt_tokens_total", "vllm:prompt_tokens_cached_total")
            before = [server.counter(name) for name in names]
            values: dict[str, list[float]] = {title: [] for title in COLUMNS}
            for number in range(options.runs):
                seed = place * options.runs + number
                one = measure(server, python, options.model, load, concurrency, seed)
                for title, key in COLUMNS.items():
                    values[title].append(one[key])
            prompt, cached = (server.counter(name) - old for name, old in zip(names, before, strict=True))
            results.append(Result(concurrency, prompt, cached, values))
    return results


def table(results: list[Result]) -> Iterator[str]:
    yield f"{'concurrency':<13}" + "".join(f"{title:>27}" for title in COLUMNS)
    for result in results:
        cells = [
            f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"
            for values in result.runs.values()
        ]
        yield f"{result.concurrency:<13}" + "".join(f"{cell:>27}" for cell in cells)
    for result in results:
        share = result.server_cached_tokens / result.server_prompt_tokens
        yield (
            f"concurrency {result.concurrency}: the engine counted {result.server_prompt_tokens} prompt tokens "
            f"over {len(next(iter(result.runs.values())))} runs, {share:.0%} of them from its prefix cache"
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model", type=lambda text: Path(text).absolute(), default=REPOSITORY / "models" / NAME
    )
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--prompts", type=int, default=64, help="requests per run")
    parser.add_argument("--input-tokens", type=int, default=64)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    try:
        python = ensure_client()
        setting = {
            "model": options.model.name,
            "prompts": options.prompts,
            "input tokens": options.input_tokens,
            "output tokens": options.output_tokens,
            "runs": options.runs,
            "tangram": version("tangram-operator"),
            "torch": version("torch"),
            **client_versions(python),
            "python": platform.python_version(),
            "machine": platform.machine(),
            "cores": os.cpu_count(),
            "threads": os.environ.get("OMP_NUM_THREADS", "default"),
        }
        print(", ".join(f"{name} {value}" for name, value in setting.items()))
        results = measure_all(options, python)
    except ClusterError as error:
        print(error, file=sys.stderr)
        return 1
    print("\n".join(table(results)))
    if options.json:
        document = setting | {"results": [asdict(result) for result in results]}
        options.json.write_text(json.dumps(document, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
