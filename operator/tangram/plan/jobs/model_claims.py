"""Claims of checkpoints: which to make, fill and delete. Pure.

A claim belongs to its namespace, not to one LLMDeployment: it outlives those that name its checkpoint. It is
deleted once none has named it, and no Deployment has mounted it, for UNUSED_S.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tangram.fleet import (
    Action,
    ApplyModelClaim,
    FinishInspection,
    Intent,
    ModelClaim,
    ModelClaimKey,
    ParsedIntent,
    RemoveModelClaim,
    StartFill,
)
from tangram.plan.jobs.inspections import retry_after_s

UNUSED_S = 3600.0


@dataclass(frozen=True, slots=True)
class ClaimUse:
    """The first LLMDeployment whose replicas mount a claim: its Job runs for it, with its Secret."""

    owner_uid: str
    secret: str


def model_claim_actions(
    claims: tuple[ModelClaim, ...],
    uses: Mapping[ModelClaimKey, ClaimUse],
    intents: tuple[ParsedIntent, ...],
    now: float,
) -> list[Action]:
    """Return what makes and fills the claims of `uses`, and what deletes others.

    `intents`: all LLMDeployments. While the spec of one is invalid, its namespace keeps all of its claims.
    """
    by_key = {claim.key: claim for claim in claims}
    actions: list[Action] = []
    for key, use in sorted(uses.items()):
        claim = by_key.get(key)
        if claim is None:
            actions.append(ApplyModelClaim(use.owner_uid, key))
        else:
            actions += _filled(claim, use, now)
    for claim in claims:
        if claim.key not in uses:
            actions += _left(claim, now, is_named=claim.is_mounted or _is_named(claim.key, intents))
    return actions


def _filled(claim: ModelClaim, use: ClaimUse, now: float) -> Iterator[Action]:
    """Yield what fills a claim that replicas mount, and records that it is full."""
    fill = claim.fill
    is_filled = claim.is_filled or (fill is not None and fill.is_complete)
    if claim.unused_since is not None or is_filled != claim.is_filled:
        yield ApplyModelClaim(use.owner_uid, claim.key, is_filled)
    if is_filled:
        return
    if fill is None:
        yield StartFill(use.owner_uid, claim.key, use.secret)
    elif fill.failure is not None and now >= fill.failure.at + retry_after_s(fill.failure):
        yield FinishInspection(use.owner_uid, claim.key.namespace, fill.job_name, fill.job_uid)


def _left(claim: ModelClaim, now: float, *, is_named: bool) -> Iterator[Action]:
    """Yield what records since when a claim is unused, or deletes it."""
    if is_named:
        if claim.unused_since is not None:
            yield ApplyModelClaim("", claim.key, claim.is_filled)
    elif claim.unused_since is None:
        yield ApplyModelClaim("", claim.key, claim.is_filled, now)
    elif now >= claim.unused_since + UNUSED_S:
        yield RemoveModelClaim("", claim.key.namespace, claim.name, claim.uid)


def _is_named(key: ModelClaimKey, intents: tuple[ParsedIntent, ...]) -> bool:
    return any(
        not isinstance(intent, Intent) or key.model_uri in (intent.model_uri, intent.next_model_uri)
        for intent in intents
        if intent.namespace == key.namespace
    )
