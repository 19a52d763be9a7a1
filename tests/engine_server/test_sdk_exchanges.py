"""Requests as the official SDKs send them get the answers that these have read: see benchmarks/clients."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.dialect_servers import repeating_server
from tests.support.engine_process import EngineProcess
from tests.support.exchanges import read_events, without_chance

RECORDED = json.loads((Path(__file__).parent / "sdk_exchanges.json").read_text())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    with repeating_server(tmp_path_factory.mktemp("exchanges")) as running:
        yield running


def test_each_answer_is_the_one_that_the_sdk_has_read(server: EngineProcess) -> None:
    assert len(RECORDED["exchanges"]) > 15
    for exchange in RECORDED["exchanges"]:  # in their order: cached tokens are counted
        name = f"{exchange['path']} {exchange['name']}"
        answer = server.post(exchange["path"], exchange["request"], headers=exchange["headers"])
        assert answer.status_code == exchange["status"], name
        stream = isinstance(exchange["answer"], list)
        got = read_events(answer.text) if stream else answer.json()
        assert without_chance(got) == exchange["answer"], name
