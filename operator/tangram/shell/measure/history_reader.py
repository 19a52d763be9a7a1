"""Read the arrivals of past hours, of yesterday and of last week from Prometheus, by LLMDeployment.

This is a task of its own, with connections of its own: no reading of metrics waits for a range query. A
failure leaves the history as it is: the law then knows what it has seen itself.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Iterable
from typing import Any

from pydantic_core import from_json

from tangram.fleet import Intent
from tangram.kube.retry_delays import RetrySchedule
from tangram.scaling.outlook.load_history import MOST_BINS, STEP_S, LoadHistory, from_samples
from tangram.scaling.queries import for_history
from tangram.scaling.sample import MOST_REQUESTS
from tangram.shell.measure.prometheus import Prometheus, QueryFailed

log = logging.getLogger(__name__)

AHEAD_S = 7200.0  # of yesterday, after the time of day that it is now
SEASONS_S = (86_400.0, 604_800.0)
AGAIN_S = 3600.0  # until it is read again: the coming hours of yesterday move on
RETRY_DELAYS_S = (60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, AGAIN_S)  # after failures in a row
IDLE_S = 2.0  # pause where no history is due


class HistoryReader:
    """The load histories that Prometheus holds, by UID, one LLMDeployment read after the other."""

    def __init__(
        self,
        prometheus: Prometheus,
        *,
        clock: Callable[[], float],
        server_time: Callable[[], float | None],
    ) -> None:
        """`server_time` returns the present time of Prometheus, None while it does not answer readings."""
        self._prometheus, self._clock, self._server_time = prometheus, clock, server_time
        self._histories: dict[str, LoadHistory] = {}
        self._read_at: dict[str, float] = {}  # of the last success
        self._retries = RetrySchedule(RETRY_DELAYS_S)
        self._problems: dict[str, str] = {}  # of the last attempt

    def of(self, uid: str) -> LoadHistory | None:
        """Return the history that was read last, None if there is none."""
        return self._histories.get(uid)

    def clear(self) -> None:
        """Forget all: every history is due."""
        self._retain(set())

    async def run(self, intents: Callable[[], Iterable[Intent]], idle_s: float = IDLE_S) -> None:
        """Read histories when they are due, until cancelled.

        `intents` returns the present LLMDeployments, none while another operator leads.
        """
        while True:
            if not await self.read_next(intents()):
                await asyncio.sleep(idle_s)

    async def read_next(self, intents: Iterable[Intent]) -> bool:
        """Read the history that is due and was read the longest ago; return whether there was one.

        Histories of other LLMDeployments are forgotten.
        """
        by_uid = {intent.uid: intent for intent in intents}
        self._retain(by_uid.keys())
        server_time, due = self._server_time(), [uid for uid in by_uid if self._is_due(uid)]
        if server_time is None or not due:
            return False
        await self._attempt(by_uid[min(due, key=self._last_read)], server_time)
        return True

    async def close(self) -> None:
        """Close all connections."""
        await self._prometheus.close()

    def _last_read(self, uid: str) -> float:
        return self._read_at.get(uid, -math.inf)

    def _is_due(self, uid: str) -> bool:
        now = self._clock()
        return now - self._last_read(uid) >= AGAIN_S and not self._retries.blocked(uid, now)

    def _retain(self, uids: Iterable[str]) -> None:
        remaining = set(uids)
        for by_uid in (self._histories, self._read_at, self._problems):
            for uid in by_uid.keys() - remaining:
                by_uid.pop(uid)
        self._retries.retain(remaining)

    async def _attempt(self, intent: Intent, server_time: float) -> None:
        """Read one history. A failure, and so a defect, delays this LLMDeployment alone."""
        uid, name = intent.uid, f"{intent.namespace}/{intent.name}"
        try:
            self._histories[uid] = await self._read_one(intent, server_time)
        except Exception as error:  # noqa: BLE001 - logged, a defect with its trace
            self._retries.record_failure(uid, self._clock())
            if self._problems.get(uid) != str(error):
                is_defect = not isinstance(error, QueryFailed)
                log.warning("load history of %s: %s", name, error, exc_info=error if is_defect else None)
            self._problems[uid] = str(error)
            return
        self._read_at[uid] = self._clock()
        self._retries.record_success(uid)
        self._problems.pop(uid, None)

    async def _read_one(self, intent: Intent, server_time: float) -> LoadHistory:
        """Read the last hours and the seasons, three range queries at a time."""
        await self._prometheus.refresh()
        end_s = math.floor(server_time / STEP_S) * STEP_S
        promql = for_history(intent.namespace, intent.served_name, intent.name, STEP_S)
        season_bins = MOST_BINS + round(AHEAD_S / STEP_S)
        outcomes = await asyncio.gather(
            self._range(promql, end_s, MOST_BINS),
            *(self._range(promql, end_s - period_s + AHEAD_S, season_bins) for period_s in SEASONS_S),
            return_exceptions=True,  # so that none goes on when another has failed
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        recent, *seasons = (outcome for outcome in outcomes if isinstance(outcome, LoadHistory))
        known = (
            (period_s, season)
            for period_s, season in zip(SEASONS_S, seasons, strict=True)
            if any(rate is not None for rate in season.rates)
        )
        return LoadHistory(end_s, recent.rates, STEP_S, tuple(known))

    async def _range(self, promql: str, end_s: float, bins: int) -> LoadHistory:
        start_s = end_s - (bins - 1) * STEP_S
        body = await self._prometheus.query_range(promql, start_s, end_s, STEP_S)
        return from_samples(rates(body), end_s, bins)


def rates(body: bytes) -> dict[float, float]:
    """Return the values of the one series of a range query by time, {} without one. Raises QueryFailed.

    A value that no engine reaches, NaN and infinity are gaps.
    """
    try:
        document = from_json(body)
        if document["status"] != "success" or document["data"]["resultType"] != "matrix":
            raise QueryFailed("Prometheus answered a range query with something else")
        result: list[Any] = document["data"]["result"]
        if len(result) > 1:
            raise QueryFailed("Prometheus answered with more than one series")
        values = result[0]["values"] if result else ()
        return {
            float(at): rate for at, text in values if 0 <= (rate := float(text)) <= MOST_REQUESTS / STEP_S
        }
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise QueryFailed("Prometheus answered with something that is not its JSON") from error
