"""Record what a real vLLM does: `python -m benchmarks.runtimes.truth --python VENV/bin/python`.

It starts `vllm serve` (a build for CPUs) with the words that Tangram renders, sends requests to the tiny model,
and records routes, version, metrics page and what becomes of a stream after SIGTERM. The records stand in
tests/data/runtimes, and tests compare the stand-in and the parser with them. `make runtime-truth` installs the
engine first, which takes 6 GB.
"""

import argparse
import contextlib
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tangram.runtimes.holes import Hole, filled
from tangram.scaling.queries import TPOT_BUCKETS, TTFT_BUCKETS

ROOT = Path(__file__).resolve().parents[2]
RECORDS = ROOT / "tests" / "data" / "runtimes"
MODEL = ROOT / "models" / "tangram-tiny"
SPEC = ROOT / "charts" / "tangram" / "files" / "runtimes" / "vllm.yaml"
SERVED_NAME = "tiny"
PORT = 18_766
START_S, REQUEST_S = 900.0, 120.0
# Of the CPU build: room for the cache in GiB, and threads that are not bound to cores.
CPU_VARIABLES = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
DRAIN_S = 60
STREAMS, TOKENS = 8, 240  # that run at SIGTERM
EDGES = {Hole.TTFT_EDGES: (*TTFT_BUCKETS, 0.8), Hole.TPOT_EDGES: (*TPOT_BUCKETS, 0.033)}


def words(drain_s: int) -> list[str]:
    """Return the command line that Tangram renders, for the tiny model on a CPU."""
    values: dict[Hole, str | tuple[str, ...]] = {
        Hole.MODEL_PATH: str(MODEL),
        Hole.SERVED_NAME: SERVED_NAME,
        Hole.PORT: str(PORT),
        Hole.MAX_MODEL_LEN: "256",
        Hole.MAX_RUNNING_REQUESTS: "8",
        Hole.MAX_BATCHED_TOKENS: "512",
        Hole.MEMORY_SHARE: "0.90",
        Hole.TENSOR_PARALLEL: "1",
        Hole.DRAIN_SECONDS: str(drain_s),
        **{hole: json.dumps(sorted(edges)) for hole, edges in EDGES.items()},
    }
    arguments = yaml.safe_load(SPEC.read_text(encoding="utf-8"))["arguments"]
    return [word for part in arguments for word in filled(part, values)]


def name_package(python: Path) -> None:
    """Give the CPU build the name by which its command asks for its version."""
    (found,) = python.parents[1].glob("lib/python*/site-packages/vllm_cpu-*.dist-info")
    version = found.name.removeprefix("vllm_cpu-").removesuffix(".dist-info")
    alias = found.with_name(f"vllm-{version}+cpu.dist-info")
    if alias.exists():
        return
    shutil.copytree(found, alias)
    lines = (alias / "METADATA").read_text(encoding="utf-8").splitlines()
    named = {"Name": "vllm", "Version": f"{version}+cpu"}
    changed = [f"{key}: {named[key]}" if (key := line.partition(":")[0]) in named else line for line in lines]
    (alias / "METADATA").write_text("\n".join(changed) + "\n", encoding="utf-8")


@contextmanager
def server(python: Path, drain_s: int, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run the server; kill it in the end."""
    environment = os.environ | CPU_VARIABLES | {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    command = [str(python.with_name("vllm")), "serve", *words(drain_s), "--enforce-eager"]
    with (
        log.open("wb") as output,
        subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def get(path: str) -> tuple[int, bytes]:
    """Return status and body of a route; status 0: it is not reached."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{PORT}{path}", timeout=REQUEST_S) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, b""
    except OSError:
        return 0, b""


def complete(
    tokens: int, *, stream: bool, begun: threading.Event | None = None, timeout_s: float = REQUEST_S
) -> str:
    """Return the body of the answer to one request, as far as it came; `begun` is set at its first line."""
    body = {"model": SERVED_NAME, "prompt": "Once upon a time", "max_tokens": tokens, "ignore_eos": True}
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=timeout_s)
    lines: list[bytes] = []
    with contextlib.suppress(OSError, http.client.HTTPException), contextlib.closing(connection):
        text = json.dumps(body | {"stream": stream})
        connection.request("POST", "/v1/completions", text, {"Content-Type": "application/json"})
        for line in connection.getresponse():
            lines.append(line)
            if begun is not None:
                begun.set()
    return b"".join(lines).decode()


def wait_ready(process: subprocess.Popen[bytes]) -> float:
    """Return the seconds until the health route answers. Raises TimeoutError."""
    began = time.monotonic()
    while get("/health")[0] != 200:
        if process.poll() is not None or time.monotonic() - began > START_S:
            raise TimeoutError(f"the server did not start; status {process.returncode}")
        time.sleep(0.5)
    return time.monotonic() - began


def after_sigterm(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    """Return what becomes of running streams and of a new request once the server gets SIGTERM."""
    bodies: list[str] = []
    begun = [threading.Event() for _ in range(STREAMS)]
    streams = [
        threading.Thread(target=lambda event=event: bodies.append(complete(TOKENS, stream=True, begun=event)))
        for event in begun
    ]
    for stream in streams:
        stream.start()
    for event in begun:
        event.wait(REQUEST_S)
    process.send_signal(signal.SIGTERM)
    at = time.monotonic()
    time.sleep(1.0)
    health, new = get("/health")[0], complete(1, stream=False, timeout_s=5.0)
    for stream in streams:
        stream.join(REQUEST_S)
    status = process.wait(REQUEST_S)
    return {
        "streams": STREAMS,
        "streams_ended": sum(body.rstrip().endswith("data: [DONE]") for body in bodies),
        "streams_finished": sum(body.count("data: {") >= TOKENS for body in bodies),
        "new_request_answered": bool(new),
        "health": health,
        "exit_status": status,
        "seconds_until_exit": round(time.monotonic() - at, 1),
    }


def record(python: Path, folder: Path) -> dict[str, Any]:
    """Run the server twice, with and without time to drain, and return what it did."""
    log = folder / "server.log"
    with server(python, DRAIN_S, log) as process:
        first = get("/health")[0]
        start_s = wait_ready(process)
        for stream in (True, True, False):
            complete(16, stream=stream)
        _, page = get("/metrics")
        version = json.loads(get("/version")[1])["version"]
        routes = sorted(json.loads(get("/openapi.json")[1])["paths"])
        drained = after_sigterm(process)
    with server(python, 0, log) as process:
        wait_ready(process)
        cut = after_sigterm(process)
    (RECORDS / f"vllm-{version}.metrics").write_bytes(page)
    return {
        "engine": "vLLM",
        "version": version,
        "build": "CPU, from PyPI",
        "words": words(DRAIN_S)[1:],
        "health_while_it_starts": first,
        "start_seconds": round(start_s, 1),
        "routes": routes,
        "sigterm": {"with_shutdown_timeout": drained, "without": cut},
    }


def main(arguments: list[str] | None = None) -> int:
    """Record, and write the files."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.runtimes.truth", description=__doc__)
    parser.add_argument("--python", type=Path, required=True, help="interpreter of an environment with vLLM")
    parser.add_argument("--logs", type=Path, default=Path("build"))
    options = parser.parse_args(arguments)
    options.logs.mkdir(parents=True, exist_ok=True)
    RECORDS.mkdir(parents=True, exist_ok=True)
    name_package(options.python.absolute())
    found = record(options.python.absolute(), options.logs)
    text = json.dumps(found, indent=1, sort_keys=True) + "\n"
    (RECORDS / f"vllm-{found['version']}.json").write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
