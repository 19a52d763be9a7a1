import json
from pathlib import Path

import pytest

from tangram.sources.hub import open_hub
from tangram.sources.hub_errors import HubAccess
from tests.support.hub_server import Hub, hub_server

TINY = Path(__file__).resolve().parents[2] / "models" / "tangram-tiny"


@pytest.fixture
def hub():
    with hub_server() as server:
        yield server


@pytest.fixture(scope="session")
def tiny() -> dict[str, bytes]:
    """A whole checkpoint, as people push it: with files that no engine loads."""
    files = {path.name: path.read_bytes() for path in TINY.iterdir()}
    return files | {
        "modeling_tiny.py": b"raise SystemExit",
        "pytorch_model.bin": b"a pickle",
        "original/consolidated.safetensors": b"x" * 1000,
    }


@pytest.fixture
def opened(hub: Hub):
    """Open a repository of the hub; its files as they are pushed."""

    def open_(files: dict[str, bytes] | None = None, revision: str | None = None, **access):
        if files is not None:
            hub.repository().push(files)
        return open_hub("org/model", revision, HubAccess(hub.endpoint, **access))

    return open_


def shards(count: int, size: int = 3000) -> dict[str, bytes]:
    """Files of a checkpoint in shards; their tensors are no model's."""
    names = [f"model-{i:05}-of-{count:05}.safetensors" for i in range(1, count + 1)]
    weight_map = {f"tensor.{i}": name for i, name in enumerate(names)}
    files = {name: bytes([i % 251]) * size for i, name in enumerate(names)}
    return files | {
        "config.json": b"{}",
        "model.safetensors.index.json": json.dumps({"weight_map": weight_map}).encode(),
    }
