"""The real port of each process, attacked with hundreds of sockets: what it holds, and that probes answer."""

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

from e2e.cluster.apiserver import free_port
from tests.support.engine_process import engine_process, eventually
from tests.support.served_model import write_model

DESCRIPTORS = 400  # the limit of each attacked process
FLOOD = """
import socket, sys, time
held = []
while True:
    began = time.monotonic()
    for _ in range(35):
        client = socket.socket()
        client.setblocking(False)
        try:
            client.connect(("127.0.0.1", int(sys.argv[1])))
        except BlockingIOError:
            pass
        held.append(client)
    while len(held) > 300:
        held.pop(0).close()
    time.sleep(max(0.01 - (time.monotonic() - began), 0))
"""
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
ENDLESS_HEAD = b"GET / HTTP/1.1\r\nHost: x\r\n" + b"a: %s\r\n" % (b"b" * 8000) * 30
SLOW_BODY = HEAD + b"Content-Length: 99\r\n\r\n{"
SPARE_DESCRIPTORS = 32  # accepted and not yet booked, closed and not yet freed, and the process's own
MIB = 1 << 20


@dataclass
class Target:
    """A process to attack: its port, and the paths that must answer all the while."""

    pid: int
    port: int
    log: Path
    paths: tuple[str, ...]
    connections: int  # at most

    def status(self, field: str) -> int:
        return int(Path(f"/proc/{self.pid}/status").read_text().split(f"{field}:")[1].split()[0])

    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    def get(self, path: str) -> bytes:
        """The whole answer on a connection of its own, as a kubelet asks."""
        with socket.create_connection(("127.0.0.1", self.port), 30) as client:
            client.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            received = b""
            while data := client.recv(1 << 16):
                received += data
        return received

    def answers(self) -> bool:
        try:
            return self.get(self.paths[0]).startswith(b"HTTP/1.1 200 ")
        except OSError:
            return False


@contextmanager
def limited(command: list[str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process with few descriptors."""
    command = ["bash", "-c", f'ulimit -n {DESCRIPTORS}; exec "$@"', "bash", *command]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait(10)


class APIServer(BaseHTTPRequestHandler):
    """Knows that the CRD is installed, and fails at everything else."""

    def do_GET(self) -> None:
        found = self.path.startswith("/apis/tangram.dev/v1alpha1") and self.path.count("/") == 3
        body = json.dumps({"resources": [{"name": "llmdeployments"}]} if found else {}).encode()
        self.send_response(200 if found else 503)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass


@contextmanager
def broken_cluster(folder: Path) -> Iterator[Path]:
    """The kubeconfig of an API server that serves nothing: operator and agent open their ports."""
    with ThreadingHTTPServer(("127.0.0.1", 0), APIServer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "x",
            "clusters": [{"name": "x", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
            "users": [{"name": "x", "user": {"token": "x"}}],
            "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
        }
        (folder / "kubeconfig").write_text(yaml.safe_dump(config))
        yield folder / "kubeconfig"
        server.shutdown()


@contextmanager
def operator(folder: Path, port_name: str, *paths: str) -> Iterator[Target]:
    ports = {"metricsPort": free_port(), "probePort": free_port()}
    lease = {"leaderElection": {"namespace": "default"}}
    settings = {"engineImage": "x", "listenHost": "127.0.0.1"} | ports | lease
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    command = [sys.executable, "-P", "-m", "tangram", "--config", "config.yaml", "--kubeconfig", "kubeconfig"]
    with broken_cluster(folder), limited(command, folder) as process:
        yield Target(process.pid, ports[port_name], folder / "log", paths, 32 + 16)


@contextmanager
def operator_probes(folder: Path) -> Iterator[Target]:
    with operator(folder, "probePort", "/livez") as target:
        yield target


@contextmanager
def operator_metrics(folder: Path) -> Iterator[Target]:
    with operator(folder, "metricsPort", "/metrics") as target:
        yield target


@contextmanager
def agent(folder: Path) -> Iterator[Target]:
    port = free_port()
    command = [sys.executable, "-P", "-m", "tangram.partition.agent", "--node-name", "node-a"]
    command += ["--kubeconfig", "kubeconfig", "--metrics-port", str(port), "--interval-s", "3600"]
    with broken_cluster(folder), limited(command, folder) as process:
        yield Target(process.pid, port, folder / "log", ("/metrics",), 32 + 16)


@contextmanager
def engine(folder: Path) -> Iterator[Target]:
    model = write_model(folder / "model")
    flags = ("--max-connections", "64")
    with engine_process(model, folder / "log", *flags, fake={}) as server:
        yield Target(server.process.pid, server.port, server.log, ("/health", "/ready", "/metrics"), 64 + 32)


def hold(stack: ExitStack, port: int, count: int, raw: bytes) -> None:
    """Hold connections that have sent `raw`, as far as the process took it."""
    for _ in range(count):
        client = stack.enter_context(socket.socket())
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(10)
        client.connect(("127.0.0.1", port))
        client.setblocking(False)
        try:
            client.send(raw)
        except OSError:
            continue


@pytest.mark.slow
@pytest.mark.parametrize("start", [operator_probes, operator_metrics, agent, engine])
def test_hundreds_of_hostile_sockets_hold_little_and_probes_answer(
    start: Callable[[Path], Iterator[Target]], tmp_path: Path
) -> None:
    with ExitStack() as stack:
        target = stack.enter_context(start(tmp_path))
        eventually(target.answers, "the port is open", 30)
        descriptors, memory = target.descriptors(), target.status("VmRSS")
        unread = b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n" % target.paths[-1].encode() * 200
        hold(stack, target.port, 100, SLOW_BODY)  # takes every place of the engine
        for raw in (b"", ENDLESS_HEAD, unread, b"GET /", b"\x16\x03\x01" * 100):
            hold(stack, target.port, 60, raw)
        flood = subprocess.Popen([sys.executable, "-c", FLOOD, str(target.port)])
        stack.callback(flood.wait, 10)
        stack.callback(flood.kill)
        most = 0
        for _ in range(4):
            for path in target.paths:
                assert target.get(path).startswith(b"HTTP/1.1 200 ")
            most = max(most, target.descriptors())
        assert most - descriptors <= target.connections + SPARE_DESCRIPTORS
        assert (target.status("VmHWM") - memory) << 10 < 64 * MIB
        assert "accept" not in target.log.read_text()
        assert target.log.stat().st_size < 20_000
