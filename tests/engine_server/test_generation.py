"""Tokens of a request reach its sink in the call that hands them over, and wait while it has enough."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tangram_engine.messages import EngineInfo, TokenOutput
from tangram_engine.sample.params import SamplingParams
from tangram_engine.schedule.request import Request
from tangram_engine.serve.answers.deltas import Delta
from tangram_engine.serve.client import EngineDied
from tangram_engine.serve.generation import Generation, Hold
from tangram_engine.serve.http.errors import APIError
from tangram_engine.serve.metrics import EngineMetrics

INFO = EngineInfo(16, 64, 512, 8, 512, 320, "float32", "fake", 0.0, 0.0)


class Client:
    """Takes requests and aborts, and does nothing about them."""

    def __init__(self) -> None:
        self.waiting: set[str] = set()

    def submit(self, request: Request, receiver: Any) -> None:
        self.waiting.add(request.id)

    def abort(self, request_id: str) -> None:
        self.waiting.discard(request_id)


class Sink:
    """Keeps what it is given; holds after every batch while `holds` is set."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.ready = asyncio.Event()
        self.holds = False
        self.failure: Exception | None = None

    def put(self, deltas: list[Delta]) -> Hold:
        if self.failure is not None:
            raise self.failure
        self.texts.append("".join(delta.text for delta in deltas))
        return self._hold if self.holds else None

    async def _hold(self) -> None:
        await self.ready.wait()


@pytest.fixture
async def parts() -> tuple[Client, Sink, Generation, asyncio.Task[None]]:
    """A generation of two answers that runs and has no token yet."""
    client, sink, metrics = Client(), Sink(), EngineMetrics("tiny")
    metrics.engine_ready(INFO)
    requests = [Request(name, (5,), SamplingParams(max_tokens=9), 0.0, b"") for name in "ab"]
    tools: Any = SimpleNamespace(
        decode=lambda ids, skip_special_tokens: "".join(map(chr, ids)),
        drops=lambda token, skip_special_tokens: False,
    )
    generation = Generation(
        client,  # type: ignore[arg-type]
        metrics, tools, requests, n=2, stops=(), skip_special_tokens=True,
    )  # fmt: skip
    task = asyncio.create_task(generation.run(sink.put))
    await asyncio.sleep(0)
    return client, sink, generation, task


def token(name: str, letter: str, finish: str | None = None) -> TokenOutput:
    return TokenOutput(name, ord(letter), None, (), finish, 0, 0.0, 0)


Parts = tuple[Client, Sink, Generation, "asyncio.Task[None]"]


async def test_what_arrives_together_is_put_together_without_waking_a_task(parts: Parts) -> None:
    client, sink, generation, task = parts
    generation.receive([token("a", "x"), token("b", "y")], 1.0)
    generation.receive([token("a", "z", "length")], 2.0)
    assert sink.texts == ["xy", "z"]  # nothing was awaited
    generation.receive([token("b", "!", "length")], 3.0)
    await task
    assert sink.texts == ["xy", "z", "!"]
    assert not client.waiting


async def test_while_the_sink_holds_tokens_wait_and_come_together_later(parts: Parts) -> None:
    _, sink, generation, task = parts
    sink.holds = True
    for at, letter in enumerate("abc"):
        generation.receive([token("a", letter)], float(at))
        await asyncio.sleep(0)
    generation.receive([token("a", "d", "length"), token("b", "e", "length")], 9.0)
    assert sink.texts == ["a"]
    sink.ready.set()
    await task
    assert sink.texts == ["a", "bcde"]


async def test_tokens_that_came_before_the_engine_died_are_put(parts: Parts) -> None:
    client, sink, generation, task = parts
    sink.holds = True
    generation.receive([token("a", "x")], 1.0)
    generation.receive([token("a", "y")], 2.0)
    generation.lose(EngineDied("The engine process failed."))
    sink.ready.set()
    with pytest.raises(APIError) as error:
        await task
    assert (error.value.status, error.value.code) == (503, "engine_died")
    assert sink.texts == ["x", "y"]
    assert not client.waiting


async def test_a_failure_ends_the_request_and_not_its_caller(parts: Parts) -> None:
    client, sink, generation, task = parts
    sink.failure = ConnectionResetError("the client has left")
    generation.receive([token("a", "x")], 1.0)  # from the loop that serves all others
    with pytest.raises(ConnectionResetError):
        await task
    assert not client.waiting
    generation.receive([token("b", "x")], 2.0)
    assert sink.texts == []


async def test_a_grammar_in_which_nothing_can_follow_is_the_clients_error(parts: Parts) -> None:
    client, _, generation, task = parts
    generation.receive([token("a", "x", "grammar")], 1.0)
    with pytest.raises(APIError) as failed:
        await task
    assert (failed.value.status, failed.value.code) == (400, "grammar_error")
    assert client.waiting == {"a"}  # which the engine has ended


async def test_leaving_aborts_what_still_runs(parts: Parts) -> None:
    client, _, generation, task = parts
    generation.receive([token("a", "x", "length")], 1.0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not client.waiting
