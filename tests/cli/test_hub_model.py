"""`--model hf://…`: what a person's machine reads of a hub."""

import json
from pathlib import Path

import pytest

from tangram.cli.main import main
from tests.sources.conftest import TINY
from tests.support.hub_server import Hub, hub_server


@pytest.fixture
def hub(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "none"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with hub_server() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
        yield server


def size(capsys, model: str | Path, *options: str) -> dict:
    assert (
        main(
            [
                "size",
                "--model",
                str(model),
                "--sku",
                "l4",
                "--input",
                "100",
                "--output",
                "50",
                "-o",
                "json",
                *options,
            ]
        )
        == 0
    )
    document = json.loads(capsys.readouterr().out)
    return {"rows": document["rows"], "parameters": document["model"]["parameters"]}


def refusal(capsys, model: str) -> str:
    assert main(["size", "--model", model]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


def test_a_model_of_a_hub_is_sized_as_its_directory_is(hub: Hub, capsys):
    hub.repository().push({path.name: path.read_bytes() for path in TINY.iterdir()})
    assert size(capsys, "hf://org/model") == size(capsys, TINY)
    stored = [headers["range"] for place, _, headers in hub.requests if place == "store"]
    assert stored == ["bytes=0-131071"]


def test_a_revision_is_the_one_that_is_read(hub: Hub, capsys):
    files = {path.name: path.read_bytes() for path in TINY.iterdir()}
    hub.repository().push(files)
    hub.repository().push({"README.md": b""}, branch="v2")
    assert "org/model@" in refusal(capsys, "hf://org/model@v2")
    assert "has no config.json" in refusal(capsys, "hf://org/model@v2")
    size(capsys, "hf://org/model@main")


def test_the_token_of_the_person_is_used(hub: Hub, capsys, monkeypatch):
    hub.repository().push({path.name: path.read_bytes() for path in TINY.iterdir()})
    hub.repository().is_gated = True
    hub.tokens.add("hf_mine")
    assert "is gated: accept its terms" in refusal(capsys, "hf://org/model")
    monkeypatch.setenv("HF_TOKEN", "hf_mine")
    size(capsys, "hf://org/model")


@pytest.mark.parametrize("model", ["hf://org", "hf://org/model/folder", "hf://org/mo del", "hf://"])
def test_what_is_no_repository_is_refused(capsys, model):
    assert f"tangram: --model: '{model}' must be hf://organisation/name" in refusal(capsys, model)


def test_a_shard_that_is_missing_is_named(hub: Hub, capsys):
    weights = {"weight_map": {"model.embed_tokens.weight": "model-00001-of-00002.safetensors"}}
    hub.repository().push(
        {
            "config.json": (TINY / "config.json").read_bytes(),
            "model.safetensors.index.json": json.dumps(weights).encode(),
            "model-00002-of-00002.safetensors": (2).to_bytes(8, "little") + b"{}",
        }
    )
    assert "names model-00001-of-00002.safetensors, which is not there" in refusal(capsys, "hf://org/model")
