"""`tangram-engine inspect` tells the operator in 4096 bytes what a checkpoint is, or why it is none."""

import base64
import hashlib
import json
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from tangram_engine.__main__ import main
from tangram_engine.checkpoint import RefusalReason
from tangram_engine.inspect import refusal
from tests.support.bad_checkpoints import BAD_TEXT, Bad, write_parts

GOLDEN = Path(__file__).parents[1] / "contracts" / "inspect_golden.json"


@pytest.fixture
def model(served_model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(served_model, tmp_path / "model"))


def run(model: Path, log: Path | None, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, object]]:
    status = main(["inspect", "--model", str(model), *(["--termination-log", str(log)] if log else [])])
    text = capsys.readouterr().out
    assert len(text.encode()) <= 4096
    if log:
        assert log.read_text() == text.strip()
    return status, json.loads(text)


def test_facts_have_exactly_the_fields_of_the_contract(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, document = run(model, tmp_path / "log", capsys)
    golden = json.loads(GOLDEN.read_text())["accepted"]
    assert status == 0
    assert document["schema"] == golden["schema"]
    facts, expected = document["facts"], golden["facts"]
    assert isinstance(facts, dict)
    assert {key: type(value) for key, value in facts.items()} == {k: type(v) for k, v in expected.items()}


def test_the_golden_document_is_reproduced_from_the_model_it_describes(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, document = run(model, None, capsys)
    facts = document["facts"]
    assert isinstance(facts, dict)
    golden = json.loads(GOLDEN.read_text())["accepted"]["facts"]
    # The digest hangs on how the installed safetensors orders its header.
    assert {**facts, "digest": ""} == {**golden, "digest": ""}
    assert len(facts["digest"]) == len(golden["digest"]) == 64


@pytest.mark.parametrize("name", ["NotFound", "InvalidCheckpoint", "UnknownArchitecture"])
def test_refusals_look_as_the_golden_documents(
    name: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if name == "NotFound":
        (model / "config.json").unlink()
    elif name == "InvalidCheckpoint":
        weights = model / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1])
    else:
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps(config | {"architectures": ["BloomForCausalLM"]}))
    status, document = run(model, tmp_path / "log", capsys)
    golden = next(d for d in json.loads(GOLDEN.read_text())["refused"] if d["error"]["reason"] == name)
    assert status == (0 if "other" in golden else 3)
    assert document.keys() == golden.keys()
    error = document["error"]
    assert isinstance(error, dict)
    assert error.keys() == golden["error"].keys()
    assert error["reason"] == name


def with_config(model: Path, **changed: object) -> None:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | changed))


@pytest.mark.parametrize(
    "changed",
    [
        {"architectures": ["Olmo2ForCausalLM"]},
        {"quantization_config": {"quant_method": "awq", "bits": 4}},
        {"hidden_act": "gelu"},
    ],
)
def test_a_checkpoint_for_other_runtimes_is_reported_with_its_config(
    changed: dict[str, object], model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with_config(model, auto_map={"AutoModel": "evil.Model"}, **changed)
    status, document = run(model, tmp_path / "log", capsys)

    other = document["other"]
    assert isinstance(other, dict)
    config = json.loads(zlib.decompress(base64.b64decode(other["config"])))
    assert status == 0
    assert changed.items() <= config.items()
    assert "auto_map" not in config
    assert other["weightBytes"] == 115_328
    assert len(other["digest"]) == 64
    assert "error" in document


@pytest.mark.parametrize("fault", ["pickled", "truncated", "missing shard", "too long a config", "no config"])
def test_files_that_no_runtime_should_load_are_refused_for_all(
    fault: str, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with_config(model, architectures=["Olmo2ForCausalLM"])
    weights = model / "model.safetensors"
    if fault == "pickled":
        weights.rename(model / "pytorch_model.bin")
    elif fault == "truncated":
        weights.write_bytes(weights.read_bytes()[:6])
    elif fault == "missing shard":
        weights.unlink()
        index = {"weight_map": {"a": "model-00001-of-00001.safetensors"}}
        (model / "model.safetensors.index.json").write_text(json.dumps(index))
    elif fault == "too long a config":
        with_config(model, noise=[hashlib.sha256(bytes([n])).hexdigest() for n in range(200)])
    else:
        (model / "config.json").write_text("[]")
    status, document = run(model, None, capsys)

    assert status == 3
    assert "other" not in document


@pytest.mark.parametrize("letter", ["a", "\n", "é", "\U0001f600", "\ud800"])
def test_any_message_fits_the_termination_log(letter: str) -> None:
    document = refusal(RefusalReason.INVALID, letter * 5000)
    assert len(document["error"]["message"]) <= 1000
    assert document["error"][
        "message"
    ].encode()  # no half of a surrogate pair, which the operator cannot store
    assert len(json.dumps(document, separators=(",", ":"))) <= 4096


def test_a_model_without_tokenizer_is_refused(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (model / "tokenizer.json").unlink()
    status, document = run(model, None, capsys)
    assert (status, document["error"]["reason"]) == (3, "NotFound")  # type: ignore[index]


@pytest.mark.parametrize(("content", "status"), [("[PAD]", 0), ("Hello", 3)])
def test_a_token_beyond_the_embedding_is_refused_only_where_every_prompt_may_have_it(
    content: str, status: int, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary |= {f"filler{i}": i for i in range(max(vocabulary.values()) + 1, 320)} | {content: 320}
    tokenizer["added_tokens"].append({**tokenizer["added_tokens"][0], "id": 320, "content": content})
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    actual, document = run(model, None, capsys)
    assert actual == status
    if status:
        assert "token id 320; config.json's vocab_size is 320" in document["error"]["message"]  # type: ignore[index]


@pytest.mark.parametrize("bad", BAD_TEXT.values(), ids=BAD_TEXT)
def test_a_bad_tokenizer_or_template_ends_in_a_report(
    bad: Bad, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad.spoil(model)
    status, document = run(model, tmp_path / "log", capsys)
    error = document["error"]
    assert isinstance(error, dict)
    assert (status, error["reason"]) == (3, bad.reason)
    assert bad.says in error["message"]


def test_headers_that_need_more_memory_than_the_job_has_end_in_a_report(model: Path) -> None:
    keys = [f'"{i}":0' for i in range(700_000)]
    write_parts(model / "model.safetensors", ("{" + ",".join(keys) + "}").encode(), b"")
    # In a process of its own, as in the Job: this one may hold enough memory that earlier tests have freed.
    program = (
        "import sys; from tangram_engine import inspect; from pathlib import Path; "
        "inspect.MEMORY_LIMIT = 64 << 20; sys.exit(inspect.inspect(Path(sys.argv[1]), None))"
    )
    done = subprocess.run([sys.executable, "-c", program, model], capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    assert "more than 64 MiB of memory" in json.loads(done.stdout)["error"]["message"]


def test_a_defect_of_the_program_ends_in_a_report_that_is_retried(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(directory: Path) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr("tangram_engine.inspect.read_checkpoint", fails)
    status, document = run(model, None, capsys)
    assert status == 1
    assert document["error"] == {"reason": "InspectionFailed", "message": "RuntimeError: a defect"}


def test_argument_errors_exit_with_two(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["inspect"], ["inspect", "--modle", "x"], [], ["serve", "--model", "x"]):
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert caught.value.code == 2
    assert "usage" in capsys.readouterr().err


def test_inspect_never_imports_torch(model: Path) -> None:
    code = (
        "import sys; from tangram_engine.__main__ import main; status = main(sys.argv[1:]);"
        "assert 'torch' not in sys.modules; sys.exit(status)"
    )
    subprocess.run([sys.executable, "-c", code, "inspect", "--model", str(model)], check=True, timeout=60)


def test_a_termination_log_that_cannot_be_written_is_an_argument_error(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", "--model", str(model), "--termination-log", str(tmp_path / "no" / "log")]) == 2
    assert "termination-log" in capsys.readouterr().err
