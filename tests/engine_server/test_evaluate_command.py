"""`tangram-engine evaluate` tells the operator in 4096 bytes what a quantised format costs, or why not."""

import json
import shutil
from pathlib import Path

import pytest

from tangram.api import parse_evaluation
from tangram.fleet import EvaluationKey, EvaluationReport
from tangram_engine.__main__ import main

ROOT = Path(__file__).parents[2]


@pytest.fixture
def model(served_model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(served_model, tmp_path / "model"))


def run(capsys: pytest.CaptureFixture[str], *flags: object, quantize: str = "int4") -> tuple[int, dict]:
    status = main(["evaluate", "--quantize", quantize, "--device", "cpu", *map(str, flags)])
    text = capsys.readouterr().out
    assert len(text.encode()) <= 4096
    return status, json.loads(text)


@pytest.mark.parametrize("quantize", ["fp8", "int4"])
def test_the_operator_reads_the_report_of_the_bundled_model(
    quantize: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = tmp_path / "report.json", tmp_path / "log"
    flags = ("--model", ROOT / "models" / "tangram-tiny", "--tokens", 300)

    status, document = run(capsys, *flags, "-o", files[0], "--termination-log", files[1], quantize=quantize)

    assert status == 0
    found = document["evaluation"]
    assert [json.loads(file.read_text()) for file in files] == [document, document]
    assert (found["format"], found["tokens"], found["text"]) == (quantize, 300, "built-in")
    assert found.get("groupSize") == (128 if quantize == "int4" else None)
    key = EvaluationKey("ns", "image:///m", found["digest"], "L4", quantize)
    report = parse_evaluation(files[1].read_text(), key, "engine:1", "gpu", 0.0)
    assert isinstance(report, EvaluationReport)
    assert report.tokens == 300
    assert 0.7 < report.top1_agreement <= 1
    assert report.kl_mean > 0


def test_a_text_of_ones_own_is_named_by_its_hash(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text"
    text.write_text("Hello there, 世界. " * 40)

    status, document = run(capsys, "--model", model, "--text", text, "--tokens", 64)

    assert status == 0
    assert document["evaluation"]["text"].startswith("sha256:")
    assert document["evaluation"]["tokens"] == 64


@pytest.mark.parametrize(
    ("raw", "reason", "message"),
    [
        (None, "NotFound", "No such file"),
        (b"", "InvalidCheckpoint", "empty"),
        (b"\xff" * 100, "InvalidCheckpoint", "not UTF-8 at byte 0"),
        (b"Hi.", "InvalidCheckpoint", "at least 32 are needed"),
    ],
)
def test_a_text_that_says_too_little_is_refused(
    raw: bytes | None,
    reason: str,
    message: str,
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = tmp_path / "text"
    if raw is not None:
        text.write_bytes(raw)

    status, document = run(capsys, "--model", model, "--text", text)

    assert status == 3
    assert document["error"]["reason"] == reason
    assert message in document["error"]["message"]


@pytest.mark.parametrize(("missing", "reason"), [("", "NotFound"), ("config.json", "NotFound")])
def test_a_checkpoint_that_cannot_be_served_is_refused(
    missing: str, reason: str, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(model) if not missing else (model / missing).unlink()

    status, document = run(capsys, "--model", model)

    assert (status, document["error"]["reason"]) == (3, reason)


def test_a_report_that_cannot_be_written_is_an_error_of_the_command_line(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "nowhere" / "report.json"
    flags = ["--model", str(model), "--device", "cpu", "--tokens", "32", "-o", str(file)]

    status = main(["evaluate", "--quantize", "fp8", *flags])

    assert status == 2
    assert "--output" in capsys.readouterr().err


def test_too_little_memory_says_so_and_is_not_tried_again(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from tangram_engine.evaluate import compare

    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(compare, "_hidden", full)
    status, document = run(capsys, "--model", model)

    assert (status, document["error"]["reason"]) == (3, "OutOfMemory")
    assert "a larger GPU or slice" in document["error"]["message"]
