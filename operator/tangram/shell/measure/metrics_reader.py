"""Read load and latency of each LLMDeployment from Prometheus. A failure is a reading with a problem."""

import asyncio
import json
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import httpx

from tangram.fleet import Intent, Objectives, describe
from tangram.scaling import RejectedSample, Sample, queries, sample_from
from tangram.shell.measure.prometheus import Prometheus, QueryFailed
from tangram.shell.settings import PrometheusSettings

log = logging.getLogger(__name__)

CONCURRENCY = 8
_MAX_WARNING_CHARS = 200
_END_OF_TIME_S = 1e11  # seconds since the epoch: the year 5138


Subject = tuple[str, Objectives]
"""What a sample is about: the served name and the objectives."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The last good sample of any age, and why newer queries failed. It counts for its subject alone."""

    sample: Sample | None = None
    problem: str = ""
    subject: Subject | None = None


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
        self._prometheus = Prometheus(settings, transport=transport)

    def reading(self, intent: Intent) -> Reading:
        """Return the latest reading for the present objectives of `intent`."""
        reading = self._readings.get(intent.uid)
        if reading is None:
            return Reading()
        if reading.subject != _subject(intent):
            return Reading(
                None, "the objectives or the served name changed; the next query asks for the new ones"
            )
        return reading

    def newest_at(self) -> float | None:
        """Return when the newest good sample was taken, in seconds since the epoch."""
        return max((r.sample.at for r in self._readings.values() if r.sample and not r.problem), default=None)

    def clear(self) -> None:
        """Forget all readings."""
        self._readings.clear()

    async def read(self, intents: tuple[Intent, ...], pods: Mapping[str, tuple[str, ...]]) -> None:
        """Query the metrics of all `intents`, and forget other readings.

        `pods` are the names of their pods, by UID of the LLMDeployment: series of other pods do not count.
        """
        for uid in self._readings.keys() - {intent.uid for intent in intents}:
            del self._readings[uid]
        if not intents:
            return
        try:
            await self._prometheus.refresh()
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
        await self._prometheus.close()

    async def _isolated(self, intent: Intent, pods: tuple[str, ...], evaluated_at: float) -> None:
        """Read one LLMDeployment. A bug becomes the problem of its reading and affects no other."""
        try:
            await self._read_one(intent, pods, evaluated_at)
        except Exception as error:
            problem = f"its metrics could not be read ({describe(error)}); please report this"
            if self.reading(intent).problem != problem:
                log.exception("metrics of %s/%s", intent.namespace, intent.name)
            self._failed(intent, problem)

    async def _server_time(self) -> float:
        """Return the time of the Prometheus server, at which all queries are evaluated.

        The clock of the operator may be ahead, so that the newest samples would look stale, or behind, so
        that old samples would look fresh.
        """
        value = await self._query("time()", None)
        seconds = math.nan if value is None else float(value)
        if not 0 <= seconds < _END_OF_TIME_S:  # NaN fails here too
            raise QueryFailed(f"Prometheus returned {value!r} for its time")
        return seconds

    async def _read_one(self, intent: Intent, pods: tuple[str, ...], evaluated_at: float) -> None:
        window_s = self._settings.window_seconds
        try:
            promql = queries.for_deployment(
                intent.namespace, intent.served_name, pods, intent.objectives, window_s
            )
            at = self._now()
            values = await asyncio.gather(*(self._query(text, evaluated_at) for text in promql.values()))
        except (QueryFailed, ValueError) as error:
            self._failed(intent, str(error))
            return
        sample = sample_from(dict(zip(promql, values, strict=True)), at)
        if isinstance(sample, RejectedSample):
            self._failed(intent, sample.reason)
            return
        self._readings[intent.uid] = Reading(sample, "", _subject(intent))

    def _failed(self, intent: Intent, problem: str) -> None:
        before = self.reading(intent)
        if before.problem != problem:
            log.warning("metrics of %s/%s: %s", intent.namespace, intent.name, problem)
        self._readings[intent.uid] = Reading(before.sample, problem, _subject(intent))

    async def _query(self, promql: str, at: float | None) -> float | str | None:
        async with self._slots:
            return scalar(await self._prometheus.query(promql, at))


def _subject(intent: Intent) -> Subject:
    return intent.served_name, intent.objectives


def scalar(body: bytes) -> float | str | None:
    """Return the single number of a response, None for an empty vector. Raises QueryFailed."""
    try:
        document = json.loads(body)
        data = document["data"]
        result = data["result"]
        if document["status"] != "success":
            raise QueryFailed("Prometheus reports an error")
        if document.get("warnings"):  # a remote store did not answer: the sum is incomplete
            raise QueryFailed(
                f"Prometheus answered in part: {str(document['warnings'])[:_MAX_WARNING_CHARS]}"
            )
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
