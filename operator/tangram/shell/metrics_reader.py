"""Asks Prometheus about every LLMDeployment. A failure is a reading with a problem, never an exception."""

import asyncio
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass

import httpx

from tangram.fleet import Intent, describe
from tangram.scaling import Objectives, RejectedSample, Sample, queries
from tangram.shell.settings import PrometheusSettings

log = logging.getLogger(__name__)

MAX_ANSWER_BYTES = 2**20  # one number is asked for; anything longer is not an answer to our query
CONCURRENCY = 8


class QueryFailed(Exception):  # becomes the problem of a reading
    """Prometheus gave no usable answer to one query."""


@dataclass(frozen=True, slots=True)
class Question:
    """What a sample answers; it says nothing about another."""

    served_name: str
    objectives: Objectives

    @classmethod
    def of(cls, intent: Intent) -> "Question":
        """Return what is asked about `intent`."""
        return cls(intent.served_name, Objectives(intent.ttft, intent.tpot))


@dataclass(frozen=True, slots=True)
class Reading:
    """The last good sample, however old, and why newer ones failed."""

    sample: Sample | None = None
    problem: str = ""
    question: Question | None = None


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
        if known.question != Question.of(intent):
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

    async def read(self, intents: tuple[Intent, ...]) -> None:
        """Ask about all `intents`; forget what is no longer there."""
        for gone in self._readings.keys() - {intent.uid for intent in intents}:
            del self._readings[gone]
        await asyncio.gather(*(self._isolated(intent) for intent in intents))

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    async def _isolated(self, intent: Intent) -> None:
        """Read one; a bug that it brings out is its problem, and no reading of another is lost."""
        try:
            await self._read_one(intent)
        except Exception as error:
            problem = f"its metrics could not be read ({describe(error)}); please report this"
            if self.reading(intent).problem != problem:
                log.exception("metrics of %s/%s", intent.namespace, intent.name)
            self._failed(intent, problem)

    async def _read_one(self, intent: Intent) -> None:
        question = Question.of(intent)
        window_s = self._settings.window_seconds
        try:
            asked = queries.for_deployment(
                intent.namespace, question.served_name, question.objectives, window_s
            )
            at = self._now()
            answers = await asyncio.gather(*(self._ask(promql, at) for promql in asked.values()))
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
        self._readings[intent.uid] = Reading(before.sample, problem, Question.of(intent))

    async def _ask(self, promql: str, at: float) -> float | str | None:
        async with self._slots:
            try:
                return scalar(await self._fetch(promql, at))
            except httpx.HTTPError as error:
                raise QueryFailed(f"Prometheus does not answer ({type(error).__name__})") from error

    async def _fetch(self, promql: str, at: float) -> bytes:
        """POST a query (a GET would put it into the URL, which proxies cut) and read a bounded answer."""
        form = {"query": promql, "time": f"{at:.3f}", "timeout": f"{self._settings.timeout_seconds:g}s"}
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
