"""Arrivals of the past from range queries: gaps, nonsense and failures."""

import asyncio
import json
from dataclasses import replace

import httpx
import pytest

from tangram.shell.measure.history_reader import AGAIN_S, MOST_PER_ROUND, HistoryReader, rates
from tangram.shell.measure.prometheus import Prometheus, QueryFailed
from tangram.shell.settings import PrometheusSettings
from tests.support.fleet import intent


def matrix(*series):
    result = [{"metric": {}, "values": [[at, text] for at, text in values]} for values in series]
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}}).encode()


class Server:
    """Answers range queries, and counts them."""

    def __init__(self, body=None, status=200):
        self.body, self.status, self.forms = body, status, []
        settings = PrometheusSettings(url="http://prometheus:9090")
        self.prometheus = Prometheus(settings, transport=httpx.MockTransport(self.answer))
        self.now = 1000.0
        self.reader = HistoryReader(self.prometheus, lambda: self.now)

    def answer(self, request):
        assert request.url.path == "/api/v1/query_range"
        self.forms.append(dict(pair.split("=", 1) for pair in request.content.decode().split("&")))
        form = self.forms[-1]
        body = self.body if self.body is not None else matrix([(float(form["end"]), "2.5")])
        return httpx.Response(self.status, content=body)

    def read(self, *intents, at=1_000_030.0):
        async def run():
            await self.prometheus.refresh()
            await self.reader.read(intents, at)

        asyncio.run(run())


def test_the_last_hours_yesterday_and_last_week_are_read_in_whole_minutes():
    server, chat = Server(), intent("chat")

    server.read(chat)

    history = server.reader.of(chat.uid)
    assert history.end_s == 999_960.0 + 60.0 * (1_000_030 // 60 - 999_960 // 60)
    assert history.rates[-1] == 2.5
    assert history.rates[0] is None
    assert [period for period, _ in history.seasons] == [86_400.0, 604_800.0]
    assert len(server.forms) == 3
    assert {form["step"] for form in server.forms} == {"60"}


def test_it_is_read_again_after_an_hour_and_a_few_at_a_time():
    server = Server()
    many = [replace(intent(f"m{n}"), uid=f"u{n}") for n in range(MOST_PER_ROUND + 2)]

    server.read(*many)
    first = len(server.forms)
    server.read(*many)
    second = len(server.forms)
    server.read(*many)
    third = len(server.forms)
    server.now += AGAIN_S
    server.read(*many)

    assert (first, second, third) == (3 * MOST_PER_ROUND, 3 * len(many), 3 * len(many))
    assert len(server.forms) == third + 3 * MOST_PER_ROUND


def test_a_failure_keeps_the_last_history():
    server, chat = Server(), intent("chat")
    server.read(chat)
    before = server.reader.of(chat.uid)
    server.status, server.now = 503, server.now + AGAIN_S

    server.read(chat)

    assert server.reader.of(chat.uid) is before


def test_a_deleted_llm_deployment_is_forgotten():
    server, chat = Server(), intent("chat")
    server.read(chat)

    server.read()

    assert server.reader.of(chat.uid) is None


def test_values_that_cannot_be_are_gaps():
    values = [(60, "NaN"), (120, "+Inf"), (180, "-1"), (240, "1e300"), (300, "4")]
    assert rates(matrix(values)) == {300.0: 4.0}
    assert rates(matrix()) == {}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"status":"error"}',
        b"[" * 100_000,
        matrix([(1, "2")], [(1, "3")]),
        b'{"status":"success","data":{"resultType":"matrix","result":[{"values":[[1]]}]}}',
        b'{"status":"success","data":{"resultType":"vector","result":[]}}',
    ],
    ids=["empty", "list", "error", "deep", "two series", "short pair", "vector"],
)
def test_another_answer_is_a_failed_query(body):
    with pytest.raises(QueryFailed):
        rates(body)
