"""The smallest edit of one LLMDeployment with which every replica gets a device; a plan confirms each."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from tangram.admission.planned_review import PlannedReview
from tangram.eligibility.reasons import Reason
from tangram.eligibility.shapes.evaluation_reports import reports, reports_by_checkpoint
from tangram.fleet import Intent, MIGPolicy, Objective, Shape
from tangram.plan.explanation.sufficient_settings import sufficient_settings
from tangram.plan.fleet_input.fleet import read_fleet
from tangram.plan.offers.assessment import assessment
from tangram.plan.offers.node_offers import offers

MOST_PLANS = 5  # for edits that are tried
_MOST_SETTINGS = 2  # edits of objectives and limits among them
_ROUNDING = 1e-6  # of cents
_FIELDS = {  # of a request: the field of the intent, and its path
    "ttft_ms": ("ttft", "objectives.ttft.milliseconds"),
    "tpot_ms": ("tpot", "objectives.tpot.milliseconds"),
    "max_model_len": ("max_model_len", "engine.maxModelLen"),
    "max_running": ("max_running_requests", "engine.maxRunningRequests"),
}


@dataclass(frozen=True, slots=True)
class SufficientEdit:
    """An edit with which every replica gets a device."""

    text: str  # with FIELD VALUE, or without FIELD
    shape: Shape
    replicas: int
    price_per_hour: float  # of all of them


def sufficient_edit(
    planned: PlannedReview, intent: Intent, expired: Callable[[], bool]
) -> SufficientEdit | None:
    """Return the first of a few edits that serves `intent`, the smallest first; None: none of them does."""
    for text, edited in islice(_edits(planned, intent), MOST_PLANS):
        if expired():
            return None
        decision = planned.decision_with(edited)
        cost, replicas = decision.price_per_hour, decision.placed
        is_served = decision.placed_reason == Reason.PLACED and 0 < replicas == decision.desired
        if is_served and decision.shape is not None:
            budget = f"{math.ceil(cost * 100 - _ROUNDING) / 100:.2f}"
            return SufficientEdit(text.format(budget=budget), decision.shape, replicas, cost)
    return None


def _edits(planned: PlannedReview, intent: Intent) -> Iterator[tuple[str, Intent]]:
    """Yield edits as (text, edited): looser objectives and limits, then less strict placement."""
    facts, snapshot = planned.decision.facts, planned.fleet.snapshot
    if facts is not None and planned.decision.shape is None:
        by_checkpoint = reports_by_checkpoint(reports(snapshot))
        assessed = assessment(
            intent, facts, offers(read_fleet(snapshot)), by_checkpoint, (), snapshot.runtimes
        )
        settings = () if isinstance(assessed, str) else sufficient_settings(assessed)
        for _, changes in islice(settings, _MOST_SETTINGS):
            yield _with_settings(intent, changes)
    if intent.budget_per_hour is not None:
        yield "with placement.budgetPerHour {budget}", replace(intent, budget_per_hour=None)
    if intent.mig is not MIGPolicy.ALLOWED:
        yield "with placement.mig Allowed", replace(intent, mig=MIGPolicy.ALLOWED)
    if intent.denied_skus:
        yield "without placement.deniedSKUs", replace(intent, denied_skus=())
    if intent.allowed_skus:
        yield "without placement.allowedSKUs", replace(intent, allowed_skus=())
    if intent.pools:
        yield "without placement.pools", replace(intent, pools=())


def _with_settings(intent: Intent, changes: Mapping[str, float]) -> tuple[str, Intent]:
    """Return the intent with changed fields of its request, rounded as the API takes them, and their text."""
    edited: dict[str, Any] = {}
    texts = []
    for field, value in changes.items():
        name, path = _FIELDS[field]
        whole = math.ceil(value)
        before = getattr(intent, name)
        edited[name] = replace(before, milliseconds=whole) if isinstance(before, Objective) else whole
        texts.append(f"{path} {whole}")
    return f"with {' and '.join(texts)}", replace(intent, **edited)
