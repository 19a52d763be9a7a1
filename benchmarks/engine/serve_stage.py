"""The HTTP server under one client, and continuous batching of `transformers` on the same requests."""

import asyncio
import importlib.util
import json
import os
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from functools import partial
from pathlib import Path

import torch

from benchmarks.engine.baseline_stage import large
from benchmarks.engine.bench_rows import BenchmarkRow, MeasuredValue, Unavailable
from benchmarks.engine.engine_adapter import (
    greedy_request,
    random_prompts,
    run_until_idle,
    serve_options,
    write_config,
)
from benchmarks.engine.setting import ROOT, Setting
from benchmarks.engine.stream_client import StreamTimes, streams

NEEDED = ("aiohttp", "msgspec", "prometheus_client", "tokenizers", "jinja2", "llguidance")
NAME = "random"
OFFLINE = (64, 200)  # requests and tokens of the comparison without a server


def rows(setting: Setting) -> list[BenchmarkRow]:
    """The rows of the stage."""
    sizes, server = setting.sizes, EngineServer(setting)
    prompt, answer = sizes.served
    found = [BenchmarkRow("server ready", 240, server.start)]
    found += [
        BenchmarkRow(
            f"{clients} streams, {prompt}/{answer}", 120, partial(serve, setting=setting, server=server, clients=clients),
            f"{sizes.large.name} serving 1000/1000" if clients == 256 else None,
        )
        for clients in sizes.clients
    ]  # fmt: skip
    return [
        *found,
        BenchmarkRow("server ends", 60, server.stop),
        BenchmarkRow("offline, this engine", 120, partial(offline, setting=setting)),
        BenchmarkRow("offline, transformers", 240, partial(transformers_offline, setting=setting)),
    ]


class EngineServer:
    """`tangram-engine serve` as a child process; it ends with the stage at the latest."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    def start(self, seconds: float) -> MeasuredValue:
        """Start it and wait until it is ready."""
        missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
        if missing:
            raise Unavailable(f"not installed: {', '.join(missing)}")
        begin = time.monotonic()
        self._setting.engines.close()
        log = self._setting.scratch / "server.log"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        path = os.pathsep.join(filter(None, (str(ROOT / "engine"), os.environ.get("PYTHONPATH"))))
        with log.open("wb") as sink:
            self._process = subprocess.Popen(
                self._command(), stdout=sink, stderr=sink, env=os.environ | {"PYTHONPATH": path}
            )
        self._setting.closers.append(self._end)
        while not self._ready():
            if self._process.poll() is not None:
                raise RuntimeError(f"the server ended: {log.read_text(errors='replace')[-2000:]}")
            if time.monotonic() - begin > 0.9 * seconds:
                self._end()
                raise RuntimeError(f"the server is not ready: {log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.05)
        return MeasuredValue(time.monotonic() - begin, "s")

    def _command(self) -> list[str]:
        setting = self._setting
        sizes = setting.sizes
        directory = write_config(setting.scratch / "served", sizes.large, sizes.max_model_len)
        write_tokenizer(directory, sizes.large.vocabulary)
        command = [sys.executable, "-P", "-m", "tangram_engine", "serve", "--model", str(directory)]
        command += ["--served-model-name", NAME, "--host", "127.0.0.1", "--port", str(self.port)]
        return command + serve_options(large(setting), max(sizes.clients), setting.device)

    def _ready(self) -> bool:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"http://127.0.0.1:{self.port}/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    def running(self) -> bool:
        """Whether there is a server to ask."""
        return self._process is not None and self._process.poll() is None

    def stop(self, _seconds: float) -> MeasuredValue:
        """End it, by force if need be: the next rows want its memory."""
        if self._process is None:
            raise Unavailable("no server runs")
        begin = time.monotonic()
        status = self._end()
        return MeasuredValue(time.monotonic() - begin, "s", {"status": status})

    def _end(self) -> int | None:
        process, self._process = self._process, None
        if process is None:
            return None
        process.terminate()
        try:
            return process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()


def write_tokenizer(directory: Path, vocabulary: int) -> None:
    """A tokenizer with a word for each id, so that each token is a piece of text."""
    words = {f"w{number:x} ": number for number in range(vocabulary)}
    model = {"type": "WordLevel", "vocab": words, "unk_token": "w0 "}
    text = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None}
    text |= {"pre_tokenizer": None, "post_processor": None, "decoder": {"type": "Fuse"}, "model": model}
    (directory / "tokenizer.json").write_text(json.dumps(text))


def serve(_seconds: float, setting: Setting, server: EngineServer, clients: int) -> MeasuredValue:
    """Output tokens per second of streams that all begin at once, from the first byte sent to the last received."""
    if not server.running():
        raise Unavailable("no server runs")
    prompt, answer = setting.sizes.served
    prompts = random_prompts(clients, prompt, setting.sizes.large.vocabulary, seed=clients)
    begin = time.perf_counter()
    times: list[StreamTimes] = asyncio.run(streams(server.port, NAME, prompts, answer))
    spent = time.perf_counter() - begin
    pauses = sorted(pause for one in times for pause in one.pauses) or [0.0]
    details = {
        "TTFT ms p50": 1e3 * statistics.median(one.first for one in times),
        "TTFT ms worst": 1e3 * max(one.first for one in times),
        "ITL ms p50": 1e3 * pauses[len(pauses) // 2],
        "ITL ms p99": 1e3 * pauses[int(0.99 * (len(pauses) - 1))],
        "seconds": spent,
    }
    return MeasuredValue(sum(one.tokens for one in times) / spent, "tok/s", details)


def _offline_work(setting: Setting) -> tuple[list[list[int]], int]:
    requests, tokens = (3, 4) if setting.tiny else OFFLINE
    prompts = random_prompts(requests, setting.sizes.served[0], setting.sizes.large.vocabulary, seed=7)
    return prompts, tokens


def offline(_seconds: float, setting: Setting) -> MeasuredValue:
    """The requests that `transformers` gets in the next row."""
    prompts, tokens = _offline_work(setting)
    engine = setting.engines.get(large(setting))
    begin = time.perf_counter()
    run_until_idle(
        engine, [greedy_request(f"offline {n}", prompt, tokens) for n, prompt in enumerate(prompts)]
    )
    return MeasuredValue(len(prompts) * tokens / (time.perf_counter() - begin), "tok/s")


def transformers_offline(_seconds: float, setting: Setting) -> MeasuredValue:
    """Continuous batching of `transformers` with random weights of the same shape, greedy."""
    if importlib.util.find_spec("transformers") is None:
        raise Unavailable("not installed: transformers")
    import transformers  # noqa: PLC0415

    setting.engines.close()
    sizes, shape = setting.sizes, setting.sizes.large
    directory = write_config(setting.scratch / "theirs", shape, sizes.max_model_len)
    config = transformers.AutoConfig.from_pretrained(directory)
    dtype = torch.bfloat16 if setting.device.type == "cuda" else torch.float32
    with torch.device(setting.device):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    if not hasattr(model, "generate_batch"):
        raise Unavailable("this transformers has no continuous batching")
    prompts, tokens = _offline_work(setting)
    generation = transformers.GenerationConfig(
        max_new_tokens=tokens, do_sample=False, eos_token_id=-1, pad_token_id=0, use_cuda_graph=False
    )
    run = partial(model.generate_batch, generation_config=generation, progress_bar=False, warmup=False)
    if not setting.tiny:
        run(prompts[:2])  # what it compiles and allocates first
    begin = time.perf_counter()
    answers = run(prompts)
    spent = time.perf_counter() - begin
    made = sum(len(answer.generated_tokens) for answer in answers.values())
    if made != len(prompts) * tokens:
        raise RuntimeError(f"{made} tokens were made, {len(prompts) * tokens} were asked for")
    details = {"transformers": transformers.__version__, "tokens": made, "asked for": len(prompts) * tokens}
    return MeasuredValue(made / spent, "tok/s", details)
