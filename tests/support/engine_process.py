"""A server process for tests: started on a free loopback port, waited for, always ended by its id."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from e2e.cluster.apiserver import free_port

ROOT = Path(__file__).parents[2]


def _request(method: str, url: str, **options: Any) -> httpx.Response:
    # Without verify=False, every client would load the certificate store, which takes longer than most tests.
    with httpx.Client(timeout=30, trust_env=False, verify=False) as client:  # noqa: S501
        return client.request(method, url, **options)


def eventually(check: Callable[[], Any], what: str, seconds: float = 10.0) -> Any:
    """The first truthy result of `check`, asked again and again for `seconds` of a quiet machine."""
    seconds *= 3  # this one may be busy
    deadline = time.monotonic() + seconds
    while True:
        result = check()
        if result:
            return result
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.01)


@dataclass
class EngineProcess:
    """A running server and how to talk to it."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path
    name: str = "tiny"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def get(self, path: str) -> httpx.Response:
        return _request("GET", self.url + path)

    def post(self, path: str, body: Any = None, **options: Any) -> httpx.Response:
        if body is not None:
            options["json"] = body
        return _request("POST", self.url + path, **options)

    def complete(self, prompt: Any, **fields: Any) -> httpx.Response:
        return self.post("/v1/completions", {"model": self.name, "prompt": prompt, **fields})

    def chat(self, *texts: str, **fields: Any) -> httpx.Response:
        messages = [{"role": "user", "content": text} for text in texts]
        return self.post("/v1/chat/completions", {"model": self.name, "messages": messages, **fields})

    @contextmanager
    def stream(self, prompt: str, **fields: Any) -> Iterator[Iterator[str]]:
        """Lines of a streamed completion, as they arrive."""
        body = {"model": self.name, "prompt": prompt, "stream": True, **fields}
        with (
            httpx.Client(timeout=30, trust_env=False, verify=False) as client,  # noqa: S501
            client.stream("POST", self.url + "/v1/completions", json=body) as response,
        ):
            assert response.status_code == 200, response.read()
            yield response.iter_lines()

    def ready(self) -> bool:
        try:
            return self.get("/ready").status_code == 200
        except httpx.TransportError:
            assert self.process.poll() is None, self.log.read_text()
            return False

    def metric(self, name: str, **labels: str) -> float:
        """The sum of all samples of that name that carry these labels."""
        return sum(
            sample.value
            for family in text_string_to_metric_families(self.get("/metrics").text)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def quiet(self) -> bool:
        """Whether no request is left anywhere and every KV block is free."""
        names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
        return all(self.metric(name) == 0 for name in names)

    def children(self) -> list[int]:
        """Process ids of our own child processes that run the engine."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                    command = (entry / "cmdline").read_bytes()
                except OSError:
                    continue
                if parent == self.process.pid and b"spawn_main" in command:
                    found.append(int(entry.name))
        return found

    def processor_seconds(self) -> float:
        """Return what the server's own process has taken, without the engine."""
        stat = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def wait(self, seconds: float = 15.0) -> int:
        return self.process.wait(seconds)


def launch(
    model: Path, log: Path, fake: dict[str, Any] | None, *flags: str, program: str = "tangram_engine"
) -> EngineProcess:
    """Start a server (over the fake engine when a behaviour is given) without waiting for it."""
    port = free_port()
    serve = ["serve", "--model", str(model), "--served-model-name", "tiny", "--host", "127.0.0.1"]
    serve += ["--port", str(port), *flags]
    if fake is None:
        command = [sys.executable, "-m", program, *serve]
    else:
        command = [sys.executable, "-m", "tests.support.fake_server", json.dumps(fake), *serve]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}:{ROOT / 'engine'}"}
    with log.open("wb") as sink:
        process = subprocess.Popen(command, cwd=log.parent, env=environment, stdout=sink, stderr=sink)
    return EngineProcess(process, port, log)


@contextmanager
def engine_process(
    model: Path,
    log: Path,
    *flags: str,
    fake: dict[str, Any] | None = None,
    program: str = "tangram_engine",
) -> Iterator[EngineProcess]:
    """A ready server; killed at the end if it is still there."""
    server = launch(model, log, fake, *flags, program=program)
    try:
        eventually(server.ready, "server ready", 60)
        yield server
    finally:
        if server.process.poll() is None:
            server.process.kill()
        server.process.wait(10)
