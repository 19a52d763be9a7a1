"""Read load and latency of all LLMDeployments from Prometheus. A failure is a reading with a problem."""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import httpx
from pydantic_core import from_json

from tangram.fleet import Intent
from tangram.scaling import (
    FleetAnswers,
    FleetQuery,
    MetricsSubject,
    for_fleet,
    metrics_subject,
    sample_from,
)
from tangram.scaling.queries import VLLM_NAMES, Dialects
from tangram.shell.measure.history_reader import HistoryReader
from tangram.shell.measure.metrics_readings import Reading, Readings, defect
from tangram.shell.measure.prometheus import Prometheus, QueryFailed, QueryUnanswerable
from tangram.shell.settings import PrometheusSettings

log = logging.getLogger(__name__)

CONCURRENCY = 8
# How many groups of LLMDeployments a round may ask about, to find those whose series cannot be used.
NO_DIALECTS: Mapping[str, Dialects] = MappingProxyType({})
MAX_GROUPS = 32
MOST_ASKED_ALONE = 8
_MAX_WARNING_CHARS = 200
_ROWS_AT_ONCE = 2000  # of an answer, between which the event loop does other work: two milliseconds
_AT_ONCE = 8  # LLMDeployments whose samples are made at once
_END_OF_TIME_S = 1e11  # seconds since the epoch: the year 5138


_NOT_PROMETHEUS = (ValueError, KeyError, IndexError, TypeError, AttributeError)


class MetricsReader:
    """The latest reading per LLMDeployment UID."""

    def __init__(
        self,
        settings: PrometheusSettings,
        *,
        now: Callable[[], float],
        clock: Callable[[], float] = time.monotonic,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._settings, self._now, self._clock = settings, now, clock
        self._readings = Readings()
        self._intents: dict[str, Intent] = {}  # those of the present round, by UID
        self._built: dict[tuple[MetricsSubject, ...], tuple[FleetQuery, ...]] = {}  # of the last round
        self._asked_alone: set[str] = set()  # UIDs whose series made queries about others fail
        self._slots = asyncio.Semaphore(CONCURRENCY)
        self._parsing = asyncio.Lock()  # answers that come together are parsed in different turns of the loop
        self._prometheus = Prometheus(settings, transport=transport)
        self.histories = HistoryReader(
            Prometheus(settings, transport=transport), clock=clock, server_time=self.server_time
        )
        self._ahead_s: float | None = None  # of the clock of Prometheus; None: it did not answer last time

    def reading(self, intent: Intent) -> Reading:
        """Return the latest reading for the present objectives of `intent`."""
        return self._readings.of(intent)

    def server_time(self) -> float | None:
        """Return the present time of Prometheus, None if it did not answer in the last round."""
        return None if self._ahead_s is None else self._clock() + self._ahead_s

    def clear(self) -> None:
        """Forget all readings."""
        self._readings.clear()
        self._asked_alone.clear()
        self._built.clear()
        self.histories.clear()

    async def read(
        self,
        intents: tuple[Intent, ...],
        pods: Mapping[str, tuple[str, ...]],
        dialects: Mapping[str, Dialects] = NO_DIALECTS,
    ) -> None:
        """Query the metrics of all `intents`, and forget other readings.

        `pods` are the names of their pods, by UID of the LLMDeployment: series of other pods do not count.
        `dialects`: of these pods, where they are not those of vLLM alone.
        """
        self._intents = {intent.uid: intent for intent in intents}
        self._readings.retain(self._intents)
        self._asked_alone &= self._intents.keys()
        if not intents:
            return
        try:
            await self._prometheus.refresh()
            evaluated_at = await self._ask_time()
        except QueryFailed as error:
            self._ahead_s = None
            self._failed(self._intents, str(error))
            return
        self._ahead_s = evaluated_at - self._clock()
        await self._read_fleet(self._subjects(pods, dialects), evaluated_at)

    async def close(self) -> None:
        """Close all connections."""
        await self._prometheus.close()
        await self.histories.close()

    def _subjects(
        self, pods: Mapping[str, tuple[str, ...]], dialects: Mapping[str, Dialects]
    ) -> list[MetricsSubject]:
        subjects = []
        for uid, intent in self._intents.items():
            with self._readings.isolated(intent):
                subjects.append(
                    metrics_subject(
                        uid,
                        intent.namespace,
                        intent.served_name,
                        pods.get(uid, ()),
                        intent.objectives,
                        dialects.get(uid, VLLM_NAMES),
                    )
                )
        return subjects

    async def _ask_time(self) -> float:
        """Return the time of the Prometheus server, at which all queries are evaluated.

        The clock of the operator may be ahead, so that the newest samples would look stale, or behind, so
        that old samples would look fresh. In milliseconds, as queries carry it.
        """
        async with self._slots:
            value = scalar(await self._prometheus.query("time()", None))
        seconds = math.nan if value is None else float(value)
        if not 0 <= seconds < _END_OF_TIME_S:  # NaN fails here too
            raise QueryFailed(f"Prometheus returned {value!r} for its time")
        return round(seconds, 3)

    async def _read_fleet(self, subjects: list[MetricsSubject], evaluated_at: float) -> None:
        """Read all `subjects` by common queries.

        Where Prometheus cannot use their series together, each half is read, down to single LLMDeployments.
        Those that fail alone while others succeed are asked alone in the next round, until they succeed.
        """
        built, self._built = self._built, {}  # queries are the same again until pods or objectives change
        together = [subject for subject in subjects if subject.uid not in self._asked_alone]
        groups = [together, *([subject] for subject in subjects if subject.uid in self._asked_alone)]
        asked, failed_alone, succeeded = 0, set[str](), set[str]()
        while groups:
            group, asked = groups.pop(0), asked + 1
            uids = {subject.uid for subject in group}
            try:
                queries = built.get(tuple(group)) or self._queries(group)
                self._built[tuple(group)] = queries
                await self._read_group(group, queries, evaluated_at)
                succeeded |= uids
            except QueryUnanswerable as failure:
                if len(group) > 1 and asked + len(groups) + 2 <= MAX_GROUPS:
                    middle = len(group) // 2
                    groups += [group[:middle], group[middle:]]
                    continue
                self._failed(uids, str(failure))
                failed_alone |= uids if len(group) == 1 else set()
            except QueryFailed as failure:
                self._failed(uids, str(failure))
        self._asked_alone -= succeeded
        if succeeded and len(self._asked_alone | failed_alone) <= MOST_ASKED_ALONE:
            self._asked_alone |= failed_alone

    async def _read_group(
        self, subjects: list[MetricsSubject], queries: tuple[FleetQuery, ...], evaluated_at: float
    ) -> None:
        """Read `subjects` by common queries. Raises QueryFailed if one of the queries fails."""
        at, window_s, answers = self._now(), self._settings.window_seconds, FleetAnswers()
        outcomes = await asyncio.gather(*(self._ask(query, evaluated_at, answers) for query in queries))
        failures = [outcome for outcome in outcomes if outcome is not None]
        if failures:  # one that concerns Prometheus as a whole comes before those about series
            raise min(failures, key=lambda failure: isinstance(failure, QueryUnanswerable))
        for number, subject in enumerate(subjects):
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)  # renewals of the Lease come between
            with self._readings.isolated(self._intents[subject.uid]):
                sample = sample_from(answers.results(subject, window_s, evaluated_at), at)
                self._readings.take(self._intents[subject.uid], sample)

    def _queries(self, subjects: list[MetricsSubject]) -> tuple[FleetQuery, ...]:
        """Return the queries for `subjects`. A bug that one of them brings out is to concern no other."""
        try:
            return for_fleet(subjects, self._settings.window_seconds)
        except Exception as error:
            problem = defect(error)
            if any(self.reading(self._intents[s.uid]).problem != problem for s in subjects):
                log.exception("queries about %d LLMDeployments", len(subjects))
            raise QueryUnanswerable(problem) from error

    async def _ask(self, query: FleetQuery, evaluated_at: float, answers: FleetAnswers) -> QueryFailed | None:
        """Add the rows of one query to `answers`; return why that failed, if it did.

        Rows are added as they come: those of all queries together would be many objects at once.
        """
        try:
            async with self._slots:
                body = await self._prometheus.query(query.promql, evaluated_at)
            async with self._parsing:
                answer = vector(body)
                for begin in range(0, len(answer), _ROWS_AT_ONCE):
                    await asyncio.sleep(0)
                    answers.add(query, answer[begin : begin + _ROWS_AT_ONCE])
        except QueryFailed as failure:
            return failure
        except _NOT_PROMETHEUS:
            return QueryFailed("Prometheus answered with rows that are not its JSON")
        return None

    def _failed(self, uids: Iterable[str], problem: str) -> None:
        for uid in uids:
            self._readings.failed(self._intents[uid], problem)


def scalar(body: bytes) -> float | str | None:
    """Return the single number of a response, None for an empty vector. Raises QueryFailed."""
    kind, result = _parsed(body)
    try:
        if kind == "scalar":
            return _number(result[1])
        if kind != "vector" or len(result) > 1:
            raise QueryFailed("Prometheus answered with more than one number")
        return _number(result[0]["value"][1]) if result else None
    except _NOT_PROMETHEUS as error:
        raise QueryFailed("Prometheus answered with something that is not its JSON") from error


def vector(body: bytes) -> Sequence[Any]:
    """Return the rows of a response. Raises QueryFailed."""
    kind, result = _parsed(body)
    if kind != "vector" or not isinstance(result, list):
        raise QueryFailed("Prometheus answered with something that is no vector")
    return result


def _parsed(body: bytes) -> tuple[Any, Any]:
    """Return type and value of a result."""
    try:
        document = from_json(body, cache_strings="none")
        data = document["data"]
        if document["status"] != "success":
            raise QueryFailed("Prometheus reports an error")
        if document.get("warnings"):  # a remote store did not answer: a sum would be incomplete
            raise QueryUnanswerable(
                f"Prometheus answered in part: {str(document['warnings'])[:_MAX_WARNING_CHARS]}"
            )
        return data["resultType"], data["result"]
    except _NOT_PROMETHEUS as error:
        raise QueryFailed("Prometheus answered with something that is not its JSON") from error


def _number(value: object) -> str:
    if not isinstance(value, str) or len(value) > 64:
        raise TypeError("a sample value is a short string")
    float(value)
    return value
