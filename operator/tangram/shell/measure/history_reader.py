"""Read the arrivals of past hours, of yesterday and of last week from Prometheus, by LLMDeployment.

A failure leaves the history as it is: the law then knows what it has seen itself.
"""

import logging
import math
from collections.abc import Callable, Iterable
from typing import Any

from pydantic_core import from_json

from tangram.fleet import Intent
from tangram.scaling.outlook.load_history import MOST_BINS, STEP_S, LoadHistory, from_samples
from tangram.scaling.queries import for_history
from tangram.scaling.sample import MOST_REQUESTS
from tangram.shell.measure.prometheus import Prometheus, QueryFailed

log = logging.getLogger(__name__)

AHEAD_S = 7200.0  # of yesterday, after the time of day that it is now
SEASONS_S = (86_400.0, 604_800.0)
AGAIN_S = 3600.0  # until it is read again: the coming hours of yesterday move on
MOST_PER_ROUND = 4


class HistoryReader:
    """The load histories that Prometheus holds, by UID."""

    def __init__(self, prometheus: Prometheus, now: Callable[[], float]) -> None:
        self._prometheus, self._now = prometheus, now
        self._histories: dict[str, LoadHistory] = {}
        self._asked_at: dict[str, float] = {}

    def of(self, uid: str) -> LoadHistory | None:
        """Return the history that was read last, None if there is none."""
        return self._histories.get(uid)

    def clear(self) -> None:
        """Forget all."""
        self._histories.clear()
        self._asked_at.clear()

    async def read(self, intents: Iterable[Intent], evaluated_at: float) -> None:
        """Read the histories that are due, a few per round. `evaluated_at`: the time of Prometheus."""
        by_uid = {intent.uid: intent for intent in intents}
        for uid in self._asked_at.keys() - by_uid.keys():
            del self._asked_at[uid]
            self._histories.pop(uid, None)
        now = self._now()
        due = [uid for uid in by_uid if not 0 <= now - self._asked_at.get(uid, -math.inf) < AGAIN_S]
        for uid in sorted(due, key=lambda uid: self._asked_at.get(uid, -math.inf))[:MOST_PER_ROUND]:
            self._asked_at[uid] = now
            try:
                self._histories[uid] = await self._read_one(by_uid[uid], evaluated_at)
            except QueryFailed as error:
                log.warning("load history of %s/%s: %s", by_uid[uid].namespace, by_uid[uid].name, error)
            except Exception:  # a defect concerns one LLMDeployment, and no reading
                log.exception("load history of %s/%s", by_uid[uid].namespace, by_uid[uid].name)

    async def _read_one(self, intent: Intent, evaluated_at: float) -> LoadHistory:
        end_s = math.floor(evaluated_at / STEP_S) * STEP_S
        promql = for_history(intent.namespace, intent.served_name, intent.name, STEP_S)
        recent = await self._range(promql, end_s, MOST_BINS)
        seasons = []
        for period_s in SEASONS_S:
            last_s = end_s - period_s + AHEAD_S
            season = await self._range(promql, last_s, MOST_BINS + round(AHEAD_S / STEP_S))
            if any(rate is not None for rate in season.rates):
                seasons.append((period_s, season))
        return LoadHistory(end_s, recent.rates, STEP_S, tuple(seasons))

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
