"""Servers for the tests: one shared over the fake engine, others started where a test needs its own."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.engine_process import EngineProcess, engine_process
from tests.support.served_model import write_model

Start = Callable[..., EngineProcess]


@pytest.fixture(scope="session")
def served_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("served") / "model")


@pytest.fixture(scope="module")
def server(served_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    """Shared by a module; every test leaves it idle."""
    log = tmp_path_factory.mktemp("server") / "log"
    with engine_process(served_model, log, fake={"step_seconds": 0.002}) as running:
        yield running
        assert running.process.poll() is None, log.read_text()


@pytest.fixture
def start(served_model: Path, tmp_path: Path) -> Iterator[Start]:
    """Start a server of one's own: start("--flag", "value", step_seconds=0.1)."""
    with ExitStack() as stack:

        def begin(*flags: str, model: Path = served_model, **behaviour: Any) -> EngineProcess:
            return stack.enter_context(engine_process(model, tmp_path / "log", *flags, fake=behaviour))

        yield begin
