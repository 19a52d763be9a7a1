"""API keys: which files are taken, and that another file is in force soon, without a restart."""

import hashlib
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from aiohttp.test_utils import make_mocked_request

from tangram_engine.serve.api_keys import MAX_FILE_BYTES, MAX_KEYS, APIKeyFileError, APIKeys
from tangram_engine.serve.app import count_early_refusal
from tangram_engine.serve.http.errors import unavailable
from tangram_engine.serve.metrics import EngineMetrics
from tests.support.engine_process import EngineProcess, engine_process, eventually

LIMITS = "an API key is 8 to 512 bytes without blanks or control characters"


class Volume:
    """A Secret's volume as the kubelet writes it: a link to a link to a folder that is replaced whole."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0
        self.keys = folder / "api-keys"

    def write(self, content: bytes | None) -> Path:
        self._count += 1
        version = self._folder / f"..{self._count}"
        version.mkdir()
        if content is not None:
            (version / self.keys.name).write_bytes(content)
        link = self._folder / "..data_tmp"
        link.symlink_to(version.name)
        link.replace(self._folder / "..data")
        if not self.keys.is_symlink():
            self.keys.symlink_to(f"..data/{self.keys.name}")
        return self.keys


def read(path: Path) -> APIKeys:
    return APIKeys(path, EngineMetrics("tiny"))


def metric(metrics: EngineMetrics, name: str) -> float | None:
    return metrics.registry.get_sample_value(f"tangram_engine_{name}", {"model_name": "tiny", "engine": "0"})


@pytest.mark.parametrize(
    "text",
    [
        b"secret-one\nsecret-two\n",
        b"secret-one\r\nsecret-two",
        b"\xef\xbb\xbfsecret-one\n\n  # another\n\tsecret-two  \n",
        b"secret-two\nsecret-one\nsecret-two\n" + b"#" * 5000,
    ],
)
def test_a_key_a_line_beside_blank_lines_and_comments(text: bytes, tmp_path: Path) -> None:
    keys = read(Volume(tmp_path).write(text))

    assert keys.accepts(b"secret-one")
    assert keys.accepts(b"secret-two")
    for wrong in (b"", b"#", b"# another", b"secret-on", b"secret-one\n", b"\xef\xbb\xbfsecret-one"):
        assert not keys.accepts(wrong)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"", "holds no API key"),
        (b"\n # none yet\n", "holds no API key"),
        (b"secret-one\nshort\n", f"line 2: {LIMITS}"),
        (b"secret-one # of a client\n", f"line 1: {LIMITS}"),
        (b'{\n  "key": "secret-one"\n}', f"line 1: {LIMITS}"),
        ("secret-one\n".encode("utf-16"), f"line 1: {LIMITS}"),
        (b"s" * 513, f"line 1: {LIMITS}"),
        (b"".join(b"secret-%d\n" % at for at in range(100, 101 + MAX_KEYS)), "at most 128 are taken"),
        (b"secret-one\n" * (MAX_FILE_BYTES // 11 + 1), "is larger than 64 KiB"),
    ],
)
def test_a_file_that_is_no_list_of_keys_is_refused_without_its_text(
    text: bytes, problem: str, tmp_path: Path
) -> None:
    with pytest.raises(APIKeyFileError) as refused:
        read(Volume(tmp_path).write(text))

    assert problem in str(refused.value)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda path: None, "No such file or directory"),
        (Path.mkdir, "Is a directory"),
        (os.mkfifo, "is not a file"),
    ],
    ids=["missing", "folder", "fifo"],
)
def test_what_is_no_file_is_refused_at_once(
    make: Callable[[Path], None], problem: str, tmp_path: Path
) -> None:
    make(tmp_path / "keys")

    with pytest.raises(APIKeyFileError, match=problem):
        read(tmp_path / "keys")


def test_the_keys_of_another_file_replace_those_before(tmp_path: Path) -> None:
    volume = Volume(tmp_path)
    keys = read(volume.write(b"secret-one\nsecret-two\n"))

    volume.write(b"secret-two\nsecret-three\n")
    keys.look()

    accepted = [key for key in (b"secret-one", b"secret-two", b"secret-three") if keys.accepts(key)]
    assert accepted == [b"secret-two", b"secret-three"]


def test_a_file_written_in_place_is_read_again_and_one_that_stays_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "keys"
    path.write_bytes(b"secret-one\n")
    keys = read(path)
    path.write_bytes(b"secret-2nd\n")
    os.utime(path, ns=(1, 1))
    keys.look()
    assert keys.accepts(b"secret-2nd")
    assert not keys.accepts(b"secret-one")

    monkeypatch.setattr(APIKeys, "_read_again", lambda self: pytest.fail("read for nothing"))
    keys.look()


@pytest.mark.parametrize("bad", [None, b"", b"secret one\n"], ids=["missing", "empty", "invalid"])
def test_a_file_that_cannot_be_used_leaves_the_keys_in_force_and_is_told_once(
    bad: bytes | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    volume, metrics = Volume(tmp_path), EngineMetrics("tiny")
    keys = APIKeys(volume.write(b"secret-one\nsecret-two\n"), metrics)
    assert (metric(metrics, "api_keys"), metric(metrics, "api_key_file_refused")) == (2, 0)

    volume.write(bad)
    for _ in range(3):
        keys.look()
    assert keys.accepts(b"secret-one")
    assert (metric(metrics, "api_keys"), metric(metrics, "api_key_file_refused")) == (2, 1)
    errors = [record.message for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 1
    assert "the 2 API keys read before stay in force" in errors[0]

    volume.write(b"secret-three\n")
    keys.look()
    assert not keys.accepts(b"secret-one")
    assert keys.accepts(b"secret-three")
    assert (metric(metrics, "api_keys"), metric(metrics, "api_key_file_refused")) == (1, 0)
    assert "secret" not in caplog.text


def test_no_key_is_kept_but_its_digest(tmp_path: Path) -> None:
    keys = read(Volume(tmp_path).write(b"secret-one\n"))

    assert "secret" not in repr(vars(keys))
    assert repr(hashlib.sha256(b"secret-one").digest()) in repr(vars(keys))


def test_keys_rotate_while_the_server_runs(served_model: Path, tmp_path: Path) -> None:
    volume = Volume(tmp_path / "keys")
    (tmp_path / "keys").mkdir()
    path = volume.write(b"secret-old\n")

    def answers(server: EngineProcess, key: str) -> int:
        body = {"model": "tiny", "prompt": "the", "max_tokens": 1}
        headers = {"Authorization": f"Bearer {key}"}
        return server.post("/v1/completions", body, headers=headers).status_code

    with ExitStack() as stack:
        server = stack.enter_context(
            engine_process(
                served_model, tmp_path / "log", "--api-key-file", str(path), "--drain-seconds", "0", fake={}
            )
        )
        assert (answers(server, "secret-old"), answers(server, "secret-new")) == (200, 401)
        volume.write(b"secret-new\n")
        eventually(lambda: answers(server, "secret-new") == 200, "the new key is in force", 5)
        assert answers(server, "secret-old") == 401
        assert server.metric("tangram:requests_received_total") == 2  # each key once: the rest had no key

        volume.write(b"")
        name = "tangram_engine_api_key_file_refused"
        eventually(lambda: server.metric(name) == 1, "the empty file is noticed", 5)
        assert answers(server, "secret-new") == 200
        pages = server.get("/metrics").text + server.log.read_text()
        server.terminate()
        assert server.wait() == 0

    assert "secret" not in pages + server.log.read_text()


@pytest.mark.parametrize(
    ("path", "key", "counted"),
    [
        ("/v1/completions", "secret-one", 1),
        ("/v1/chat/completions", "secret-one", 1),
        ("/v1/completions", "secret-none", 0),
        ("/tokenize", "secret-one", 0),
    ],
)
def test_a_request_refused_before_routing_counts_with_a_valid_key_alone(
    path: str, key: str, counted: int, tmp_path: Path
) -> None:
    metrics = EngineMetrics("tiny")
    file = Volume(tmp_path).write(b"secret-one\n")
    count = count_early_refusal(metrics, APIKeys(file, metrics))
    request = make_mocked_request("POST", path, headers={"Authorization": f"Bearer {key}"})

    count(request, unavailable("full", "too_many_connections"))

    labels = {"model_name": "tiny", "engine": "0"}
    value = metrics.registry.get_sample_value
    assert value("tangram:requests_received_total", labels) == counted
    rejected = labels | {"reason": "too_many_connections"}
    assert value("tangram:requests_rejected_total", rejected) == counted


def test_without_keys_a_server_ends_at_once_and_says_why(served_model: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tangram_engine", "serve", "--model", str(served_model)]
    flags = ["--served-model-name", "tiny", "--port", "0", "--api-key-file", str(tmp_path / "none")]

    done = subprocess.run([*command, *flags], capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 2
    assert done.stderr.endswith(f"--api-key-file: {tmp_path / 'none'}: No such file or directory\n")
    assert "Traceback" not in done.stderr
