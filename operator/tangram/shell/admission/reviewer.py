"""Answers one review within a second, in kopf's thread: a refusal, or warnings.

The mirrors and the placements belong to the operator's event loop: they are asked there.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from tangram.admission import (
    NO_ANSWER,
    RefusedField,
    Review,
    object_warnings,
    refusal,
)
from tangram.kube.client import ApiError
from tangram.shell.admission.reviewed_cluster import ReviewedCluster
from tangram.shell.decide.worker import WorkerFailed

log = logging.getLogger(__name__)

ANSWER_S = 1.0  # less than timeoutSeconds of the chart's webhook

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ReviewAnswer:
    """What kubectl prints: an error, or warnings."""

    refused: RefusedField | None = None
    warnings: tuple[str, ...] = ()
    outcome: str = "admitted"  # admitted, refused, late, failed


class Reviewer:
    """Answers reviews. An error of the operator itself refuses nothing: it is counted and logged."""

    def __init__(
        self, cluster: ReviewedCluster, loop: asyncio.AbstractEventLoop, count: Callable[[str], None]
    ) -> None:
        """`loop` is that of `cluster`."""
        self._cluster, self._loop, self._count = cluster, loop, count

    async def answer(self, review: Review) -> ReviewAnswer:
        """Return the answer, after ANSWER_S at the latest."""
        try:
            answer = await self._answer(review)
        except Exception:
            log.exception("no answer to the review of %s %s", review.plural, review.name)
            answer = ReviewAnswer(outcome="failed")
        self._count(answer.outcome)
        return answer

    async def _answer(self, review: Review) -> ReviewAnswer:
        warnings: tuple[str, ...] = ()
        try:
            async with asyncio.timeout(ANSWER_S):
                objects = await self._ask(self._cluster.objects(review))
                refused = refusal(review, objects)
                if refused is not None and refused.rests_on:
                    objects = await self._ask(self._cluster.current(objects, refused.rests_on))
                    refused = refusal(review, objects)
                if refused is not None:
                    return ReviewAnswer(refused, outcome="refused")
                warnings = object_warnings(review, objects)
                warnings += await self._ask(self._cluster.placement_warnings(review))
        except TimeoutError:
            return ReviewAnswer(None, (*warnings, NO_ANSWER), "late")
        except (ApiError, WorkerFailed) as failure:
            log.warning("half an answer to the review of %s %s: %s", review.plural, review.name, failure)
            return ReviewAnswer(None, (*warnings, NO_ANSWER), "late")
        return ReviewAnswer(None, warnings)

    async def _ask(self, question: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(question, self._loop))
