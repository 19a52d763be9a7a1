"""A Prometheus that a test starts, stops and fills with samples of the past by remote write."""

import os
import struct
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from shutil import rmtree

import httpx
import pytest

from e2e.cluster import packages
from e2e.cluster.apiserver import free_port
from e2e.cluster.base import ClusterError

Labels = tuple[tuple[str, str], ...]
Series = Mapping[Labels, Mapping[float, float]]
"""Values by seconds since the epoch, by labels; the name of the metric is `__name__`."""


class RealPrometheus:
    """One process on one port; its data stay when it ends."""

    def __init__(self, folder: Path) -> None:
        try:
            self._program = packages.need("prometheus")
        except ClusterError as missing:
            pytest.fail(f"these tests need prometheus: {missing}", pytrace=False)
        self._data, self._config = folder / "data", folder / "prometheus.yml"
        self._config.write_text("{}")
        self._process: subprocess.Popen[bytes] | None = None
        self._address = f"127.0.0.1:{free_port()}"
        self.url = f"http://{self._address}"

    def start(self) -> None:
        """Start, and return when queries are answered."""
        self._process = subprocess.Popen(
            (
                *(str(self._program), f"--config.file={self._config}", f"--storage.tsdb.path={self._data}"),
                *(f"--web.listen-address={self._address}", "--web.enable-remote-write-receiver"),
            ),
            env={**os.environ, **packages.environment()},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 60
        while not self._is_ready():
            assert self._process.poll() is None, "prometheus has ended"
            assert time.monotonic() < deadline, "prometheus is not ready"
            time.sleep(0.05)

    def stop(self) -> None:
        """Stop, if it runs."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None

    def lose_data(self) -> None:
        """Remove all samples of a stopped process."""
        assert self._process is None
        rmtree(self._data)

    def write(self, series: Series) -> None:
        """Add samples. Those of a series are newer than what it has."""
        body = _snappy(b"".join(_field(1, _time_series(*one)) for one in series.items()))
        headers = {
            "Content-Encoding": "snappy",
            "Content-Type": "application/x-protobuf",
            "X-Prometheus-Remote-Write-Version": "0.1.0",
        }
        answer = httpx.post(f"{self.url}/api/v1/write", content=body, headers=headers, trust_env=False)
        assert answer.status_code == 204, answer.text

    def _is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/-/ready", trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False


def _time_series(labels: Labels, values: Mapping[float, float]) -> bytes:
    """Return a TimeSeries of Prometheus' remote write protocol (protobuf)."""
    named = (_field(1, _field(1, name.encode()) + _field(2, text.encode())) for name, text in sorted(labels))
    samples = (
        _field(2, b"\x09" + struct.pack("<d", value) + b"\x10" + _varint(round(at * 1000)))
        for at, value in sorted(values.items())
    )
    return b"".join((*named, *samples))


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _snappy(content: bytes) -> bytes:
    """Return a block of snappy that holds `content` as it is."""
    parts = (content[begin : begin + 65536] for begin in range(0, len(content), 65536))
    return _varint(len(content)) + b"".join(_literals(parts))


def _literals(parts: Iterable[bytes]) -> Iterator[bytes]:
    for part in parts:
        yield bytes((61 << 2,)) + struct.pack("<H", len(part) - 1) + part
