"""Asks Prometheus about every LLMDeployment. A failure is a reading with a problem, never an exception."""

import asyncio
import json
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import httpx

from tangram.fleet import Intent, Objectives, describe
from tangram.scaling import RejectedSample, Sample, queries
from tangram.shell.settings import PrometheusSettings

log = logging.getLogger(__name__)

MAX_ANSWER_BYTES = 2**20  # one number is asked for; anything longer is not an answer to our query
CONCURRENCY = 8
_MOST_TOLD = 200
_END_OF_TIME_S = 1e11  # seconds since the epoch: the year 5138


class QueryFailed(Exception):  # becomes the problem of a reading
    """Prometheus gave no usable answer to one query."""


@dataclass(frozen=True, slots=True)
class SampleQuery:
    """What a sample answers; it says nothing about another."""

    served_name: str
    objectives: Objectives

    @classmethod
    def of(cls, intent: Intent) -> "SampleQuery":
        """Return what is asked about `intent`."""
        return cls(intent.served_name, intent.objectives)


@dataclass(frozen=True, slots=True)
class Reading:
    """The last good sample, however old, and why newer ones failed."""

    sample: Sample | None = None
    problem: str = ""
    question: SampleQuery | None = None


class MetricsReader:
    """The latest reading per LLMDeployment UID."""

    def __init__(
        self,
        settings: PrometheusSettings,
        *,
        now: Callable[[], float],
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._settings, self._now = settings, now
        self._readings: dict[str, Reading] = {}
        self._slots = asyncio.Semaphore(CONCURRENCY)
        self._client = httpx.AsyncClient(
            base_url=settings.url.rstrip("/") + "/",
            timeout=settings.timeout_seconds,
            transport=transport,
            trust_env=False,
            follow_redirects=False,
        )

    def reading(self, intent: Intent) -> Reading:
        """Return the latest reading of what `intent` asks for now."""
        known = self._readings.get(intent.uid)
        if known is None:
            return Reading()
        if known.question != SampleQuery.of(intent):
            return Reading(
                None, "the objectives or the served name changed; the next query asks for the new ones"
            )
        return known

    def newest_at(self) -> float | None:
        """Return when the newest good sample was taken, in seconds since the epoch."""
        return max((r.sample.at for r in self._readings.values() if r.sample and not r.problem), default=None)

    def clear(self) -> None:
        """Forget all readings (another operator may have acted since)."""
        self._readings.clear()

    async def read(self, intents: tuple[Intent, ...], pods: Mapping[str, tuple[str, ...]]) -> None:
        """Ask about all `intents`; forget what is no longer there.

        `pods` are the names of their replicas' pods, by UID of the LLMDeployment: no other series counts.
        """
        for gone in self._readings.keys() - {intent.uid for intent in intents}:
            del self._readings[gone]
        if not intents:
            return
        try:
            evaluated_at = await self._server_time()
        except QueryFailed as error:
            for intent in intents:
                self._failed(intent, str(error))
            return
        await asyncio.gather(
            *(self._isolated(intent, pods.get(intent.uid, ()), evaluated_at) for intent in intents)
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    async def _isolated(self, intent: Intent, pods: tuple[str, ...], evaluated_at: float) -> None:
        """Read one; a bug that it brings out is its problem, and no reading of another is lost."""
        try:
            await self._read_one(intent, pods, evaluated_at)
        except Exception as error:
            problem = f"its metrics could not be read ({describe(error)}); please report this"
            if self.reading(intent).problem != problem:
                log.exception("metrics of %s/%s", intent.namespace, intent.name)
            self._failed(intent, problem)

    async def _server_time(self) -> float:
        """Return the present time of the Prometheus server, at which all queries of a reading are evaluated.

        The operator's own clock may be ahead (then the newest samples would seem stale, or lie beyond what
        Prometheus looks back) or behind (then old samples would seem fresh).
        """
        answer = await self._ask("time()", None)
        seconds = math.nan if answer is None else float(answer)
        if not 0 <= seconds < _END_OF_TIME_S:  # NaN fails here too
            raise QueryFailed(f"Prometheus returned {answer!r} for its time")
        return seconds

    async def _read_one(self, intent: Intent, pods: tuple[str, ...], evaluated_at: float) -> None:
        question = SampleQuery.of(intent)
        window_s = self._settings.window_seconds
        try:
            asked = queries.for_deployment(
                intent.namespace, question.served_name, pods, question.objectives, window_s
            )
            at = self._now()
            answers = await asyncio.gather(*(self._ask(promql, evaluated_at) for promql in asked.values()))
        except (QueryFailed, ValueError) as error:
            self._failed(intent, str(error))
            return
        sample = queries.sample_from(dict(zip(asked, answers, strict=True)), at)
        if isinstance(sample, RejectedSample):
            self._failed(intent, sample.reason)
            return
        self._readings[intent.uid] = Reading(sample, "", question)

    def _failed(self, intent: Intent, problem: str) -> None:
        before = self.reading(intent)
        if before.problem != problem:
            log.warning("metrics of %s/%s: %s", intent.namespace, intent.name, problem)
        self._readings[intent.uid] = Reading(before.sample, problem, SampleQuery.of(intent))

    async def _ask(self, promql: str, at: float | None) -> float | str | None:
        async with self._slots:
            try:
                return scalar(await self._fetch(promql, at))
            except httpx.HTTPError as error:
                raise QueryFailed(f"Prometheus does not answer ({type(error).__name__})") from error

    async def _fetch(self, promql: str, at: float | None) -> bytes:
        """POST a query (a GET would put it into the URL, which proxies cut) and read a bounded answer."""
        form = {"query": promql, "timeout": f"{self._settings.timeout_seconds:g}s"}
        if at is not None:
            form["time"] = f"{at:.3f}"
        async with self._client.stream("POST", "api/v1/query", data=form) as response:
            body = bytearray()
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > MAX_ANSWER_BYTES:
                    raise QueryFailed(f"Prometheus answered with more than {MAX_ANSWER_BYTES} bytes")
            if response.status_code != 200:
                raise QueryFailed(f"Prometheus answered {response.status_code}")
            return bytes(body)


def scalar(body: bytes) -> float | str | None:
    """Return the one number of an answer, None for an empty vector. Raises QueryFailed."""
    try:
        document = json.loads(body)
        data = document["data"]
        result = data["result"]
        if document["status"] != "success":
            raise QueryFailed("Prometheus reports an error")
        if document.get("warnings"):  # a store behind it did not answer: the sum lacks its part
            raise QueryFailed(f"Prometheus answered in part: {str(document['warnings'])[:_MOST_TOLD]}")
        if data["resultType"] == "scalar":
            return _number(result[1])
        if data["resultType"] != "vector" or len(result) > 1:
            raise QueryFailed("Prometheus answered with more than one number")
        return _number(result[0]["value"][1]) if result else None
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
        raise QueryFailed("Prometheus answered with something that is not its JSON") from error


def _number(value: object) -> str:
    if not isinstance(value, str) or len(value) > 64:
        raise TypeError("a sample value is a short string")
    float(value)
    return value
