"""Arrivals of the past from range queries: gaps, nonsense and failures; and readings that do not wait."""

import asyncio
import json
from dataclasses import replace

import httpx
import pytest

from tangram.shell.measure.history_reader import AGAIN_S, RETRY_DELAYS_S, HistoryReader, rates
from tangram.shell.measure.metrics_reader import MetricsReader
from tangram.shell.measure.prometheus import Prometheus, QueryFailed
from tangram.shell.settings import PrometheusSettings
from tests.support import grouped_answers
from tests.support.fleet import intent

CHAT, OTHER = intent("chat"), replace(intent("other"), uid="uid-other")


def matrix(*series):
    result = [{"metric": {}, "values": [[at, text] for at, text in values]} for values in series]
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}}).encode()


class Server:
    """Answers range queries, and counts them."""

    def __init__(self, body=None, status=200):
        self.body, self.status, self.forms, self.defects = body, status, [], set()
        self.settings = PrometheusSettings(url="http://prometheus:9090", timeout_seconds=0.1)
        self.now, self.time = 1000.0, 1_000_030.0
        self.reader = HistoryReader(
            Prometheus(self.settings, transport=httpx.MockTransport(self.answer)),
            clock=lambda: self.now,
            server_time=lambda: self.time,
        )

    def answer(self, request):
        assert request.url.path == "/api/v1/query_range"
        self.forms.append(dict(pair.split("=", 1) for pair in request.content.decode().split("&")))
        form = self.forms[-1]
        if any(name in form["query"] for name in self.defects):
            raise ZeroDivisionError
        body = self.body if self.body is not None else matrix([(float(form["end"]), "2.5")])
        return httpx.Response(self.status, content=body)

    def read(self, *intents):
        """Read all that is due; return how many LLMDeployments that were."""

        async def run():
            count = 0
            while await self.reader.read_next(intents):
                count += 1
            return count

        return asyncio.run(run())


def test_the_last_hours_yesterday_and_last_week_are_read_in_whole_minutes():
    server = Server()

    server.read(CHAT)

    history = server.reader.of(CHAT.uid)
    assert history.end_s == 999_960.0 + 60.0 * (1_000_030 // 60 - 999_960 // 60)
    assert history.rates[-1] == 2.5
    assert history.rates[0] is None
    assert [period for period, _ in history.seasons] == [86_400.0, 604_800.0]
    assert len(server.forms) == 3
    assert {form["step"] for form in server.forms} == {"60"}


def test_a_history_is_read_at_once_and_again_after_an_hour():
    server = Server()
    many = [replace(intent(f"m{n}"), uid=f"u{n}") for n in range(6)]

    assert server.read(*many) == 6
    server.now += AGAIN_S - 1
    assert server.read(*many) == 0
    server.now += 1
    assert server.read(*many) == 6


def test_a_new_leader_reads_all_histories():
    server = Server()
    server.read(CHAT)

    server.reader.clear()

    assert server.read(CHAT) == 1


def test_no_history_is_read_while_prometheus_does_not_answer_readings():
    server = Server()
    server.time = None

    assert server.read(CHAT) == 0


def test_a_failure_keeps_the_last_history():
    server = Server()
    server.read(CHAT)
    before = server.reader.of(CHAT.uid)
    server.status, server.now = 503, server.now + AGAIN_S

    server.read(CHAT)

    assert server.reader.of(CHAT.uid) is before


def test_failures_are_repeated_after_a_minute_and_then_ever_later_up_to_an_hour():
    server, delays = Server(status=503), []
    server.read(CHAT)

    for _ in range(9):
        begin = server.now
        while not server.read(CHAT):
            server.now += 10
        delays.append(server.now - begin)

    assert delays == [*RETRY_DELAYS_S, AGAIN_S, AGAIN_S]
    assert delays[0] == 60
    assert delays == sorted(delays)


def test_a_success_ends_the_back_off():
    server = Server(status=503)
    for _ in range(3):
        server.read(CHAT)
        server.now += AGAIN_S
    server.status = 200
    server.read(CHAT)
    server.status, server.now = 503, server.now + AGAIN_S
    server.read(CHAT)

    server.now += RETRY_DELAYS_S[0]

    assert server.read(CHAT) == 1


def test_a_defect_about_one_llmdeployment_delays_that_one_alone():
    server = Server()
    server.defects = {"other"}

    server.read(OTHER, CHAT)

    assert server.reader.of(CHAT.uid) is not None
    server.now += RETRY_DELAYS_S[0]
    assert server.read(OTHER, CHAT) == 1


def test_a_deleted_llm_deployment_is_forgotten():
    server = Server()
    server.read(CHAT)

    server.read()

    assert server.reader.of(CHAT.uid) is None


def test_nothing_is_kept_of_llmdeployments_that_come_and_go():
    server = Server()
    for number in range(20):
        server.status = 503 if number % 2 else 200
        server.read(replace(intent(f"m{number}"), uid=f"u{number}"))

    server.read()

    kept = [value for value in vars(server.reader).values() if isinstance(value, dict) and value]
    assert kept == []
    assert server.reader._retries.next_due(server.now) is None


class HangingRanges:
    """Answers instant queries at once, and range queries never."""

    def __init__(self):
        self.rounds, self.hanging, self.most, self.ended = 0, 0, 0, 0
        self.four_rounds = asyncio.Event()

    async def __call__(self, request):
        if request.url.path == "/api/v1/query_range":
            self.hanging += 1
            self.most = max(self.most, self.hanging)
            try:
                await asyncio.Event().wait()
            finally:
                self.hanging, self.ended = self.hanging - 1, self.ended + 1
        if request.content.startswith(b"query=time"):
            self.rounds += 1
            if self.rounds == 4:
                self.four_rounds.set()
            return httpx.Response(200, json=grouped_answers.answer([{"metric": {}, "value": [0, "100"]}]))
        return httpx.Response(200, json=grouped_answers.answer([]))


async def test_readings_go_on_while_range_queries_hang():
    server, many = HangingRanges(), [replace(intent(f"m{n}"), uid=f"u{n}") for n in range(9)]
    settings = PrometheusSettings(url="http://prometheus:9090", timeout_seconds=60)
    reader = MetricsReader(settings, now=lambda: 100.0, transport=httpx.MockTransport(server))
    histories = asyncio.create_task(reader.histories.run(lambda: many, idle_s=0))

    async with asyncio.timeout(30):
        while not server.four_rounds.is_set():
            await reader.read(tuple(many), {one.uid: (f"{one.name}-1-a",) for one in many})
            await asyncio.sleep(0)

    assert server.hanging == server.most == 3
    histories.cancel()
    with pytest.raises(asyncio.CancelledError):
        await histories
    assert (server.hanging, server.ended) == (0, 3)
    await reader.close()


async def test_a_history_that_hangs_ends_at_the_timeout_and_the_next_is_read():
    server, many = HangingRanges(), [CHAT, OTHER]
    settings = PrometheusSettings(url="http://prometheus:9090", timeout_seconds=0.05)
    prometheus = Prometheus(settings, transport=httpx.MockTransport(server))
    histories = HistoryReader(prometheus, clock=lambda: 0.0, server_time=lambda: 100.0)

    async with asyncio.timeout(30):
        assert await histories.read_next(many)
        assert await histories.read_next(many)
        assert not await histories.read_next(many)

    assert (server.most, server.ended) == (3, 6)
    await histories.close()


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
