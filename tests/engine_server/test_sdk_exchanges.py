"""Requests as the official SDKs send them have the answers that the SDKs have read: see tests/clients."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.dialect_servers import repeating_server
from tests.support.engine_process import EngineProcess

RECORDED = json.loads((Path(__file__).parent / "sdk_exchanges.json").read_text())
IDS = {"id", "item_id", "call_id", "request_id"}
TIMES = {"created_at", "completed_at"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    with repeating_server(tmp_path_factory.mktemp("exchanges")) as running:
        yield running


def without_chance(value: Any, ids: dict[str, int]) -> Any:
    """The same with ids by their order and without times: equal ids stay equal."""
    if isinstance(value, list):
        return [without_chance(item, ids) for item in value]
    if not isinstance(value, dict):
        return value
    plain = {}
    for name, item in value.items():
        if name in IDS and isinstance(item, str):
            plain[name] = ids.setdefault(item, len(ids))
        else:
            plain[name] = item is not None if name in TIMES else without_chance(item, ids)
    return plain


def events(text: str) -> list[Any]:
    found = []
    for event in text.strip().split("\n\n"):
        name, data = event.split("\n")
        value = json.loads(data.removeprefix("data: "))
        assert name == f"event: {value['type']}"
        found.append(value)
    return found


def test_each_answer_is_the_one_that_the_sdk_has_read(server: EngineProcess) -> None:
    assert len(RECORDED["exchanges"]) > 15
    for exchange in RECORDED["exchanges"]:  # in their order: cached tokens are counted
        name = f"{exchange['path']} {exchange['name']}"
        answer = server.post(exchange["path"], exchange["request"], headers=exchange["headers"])
        assert answer.status_code == exchange["status"], name
        stream = isinstance(exchange["answer"], list)
        got = events(answer.text) if stream else answer.json()
        assert without_chance(got, {}) == without_chance(exchange["answer"], {}), name
