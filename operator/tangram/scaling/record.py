"""The part of the scaling memory that the status records, so that a new operator process goes on from there.

It is small and written rarely: what a violation or a late replica taught. Timers are not recorded. Another
version or a person may have written the block, so it is read field by field, and impossible values are
dropped.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tangram.fleet import ProvisionedLoad
from tangram.scaling.capacity_correction import LEAST_SHARE, MOST_SHARE
from tangram.scaling.outlook.load_misses import MissedRequests
from tangram.scaling.outlook.miss_curve import MOST_SPREAD
from tangram.scaling.outlook.replica_capacity import CapacityCorrection
from tangram.scaling.outlook.tenth_steps import nearest_step
from tangram.scaling.state import CapacityMemory, EvidenceMemory, ScalingMemory, SupplyMemory

# Field of `status.placement`, in milliseconds: not repeated in `status.scaling`.
PREDICTED_TPOT = "predictedTPOTMilliseconds"
_MOST_REPLICAS = 2**31 - 1
_MOST_SECONDS = 86_400.0
_MOST_LOAD = 1e7
_MOST_RECORDED_SPREAD = 10.0  # former versions allowed more than MOST_SPREAD
_DIGITS = 3
# What a recorded share of misses counts as. The requests are the fewest that it is recorded of.
_RECORDED_REQUESTS, _RECORDED_S = 1000.0, 3600.0
_LEAST_UNAVOIDABLE = _LEAST_MISSED = 0.001


def record(memory: ScalingMemory) -> dict[str, Any]:
    """Return the block `status.scaling`; {} where nothing was learned. Decimals are strings, as in CRDs."""
    block: dict[str, Any] = {}
    for name, value in (
        ("violatedRequestsPerSecond", memory.evidence.violated_rate),
        ("violatedRunningRequests", memory.evidence.violated_load),
        ("startSeconds", memory.supply.start_s),
    ):
        if value is not None:
            block[name] = _decimal(value)
    correction, missed = memory.capacity.correction, memory.capacity.missed
    step = nearest_step(correction.trusted_share)
    if step != 1:  # coarse, because it moves a little each minute, and each change is a write
        block["trustedShare"] = _decimal(step, 2)
    if correction.load_spread:
        block["loadSpread"] = f"{correction.load_spread:.1f}"
    if memory.provisioned is not None:  # in steps that last: see `outlook.load_steps`
        block["provisionedRequestsPerSecond"] = _decimal(memory.provisioned.requests_per_second)
        block["provisionedPromptTokens"] = _decimal(memory.provisioned.prompt_tokens)
        block["provisionedAnswerTokens"] = _decimal(memory.provisioned.answer_tokens)
        block["provisionedTrustedShare"] = _decimal(memory.provisioned.trusted_share)
    unavoidable = correction.unavoidable_share
    if unavoidable >= _LEAST_UNAVOIDABLE:
        block["unavoidableShare"] = _decimal(nearest_step(unavoidable), 2)
    if missed.requests >= _RECORDED_REQUESTS:
        share = missed.misses / missed.requests
        block["missedShare"] = _decimal(nearest_step(max(share, _LEAST_MISSED)), 2)
    if memory.evidence.ttft_reachable is not None:
        block["ttftReachable"] = memory.evidence.ttft_reachable
    if memory.evidence.tpot_reachable is not None:
        block["tpotReachable"] = memory.evidence.tpot_reachable
    if memory.supply.written_off:
        block["lateReplicas"] = memory.supply.written_off
    if memory.supply.failed_orders:
        block["failedOrders"] = memory.supply.failed_orders
    return block | {"learnedUnder": memory.subject} if block else {}


def recalled(block: Mapping[str, Any]) -> ScalingMemory:
    """Return the memory that `block` records. Never raises, whatever the block holds."""
    supply = SupplyMemory(
        written_off=_count(block.get("lateReplicas")),
        failed_orders=_count(block.get("failedOrders")),
    )
    evidence = EvidenceMemory(idle_tpot_ms=_positive(block.get(PREDICTED_TPOT), _MOST_SECONDS))
    subject = block.get("learnedUnder")
    if not isinstance(subject, str):  # it may have been learned under anything
        return ScalingMemory(supply=supply, evidence=evidence)
    return ScalingMemory(
        subject=subject,
        supply=replace(supply, start_s=_positive(block.get("startSeconds"), _MOST_SECONDS)),
        evidence=replace(
            evidence,
            violated_rate=_positive(block.get("violatedRequestsPerSecond"), _MOST_LOAD),
            violated_load=_positive(block.get("violatedRunningRequests"), _MOST_LOAD),
            ttft_reachable=_flag(block.get("ttftReachable")),
            tpot_reachable=_flag(block.get("tpotReachable")),
        ),
        capacity=_capacity(block),
        provisioned=_provisioned(block),
    )


def _capacity(block: Mapping[str, Any]) -> CapacityMemory:
    correction = CapacityCorrection(
        max(_positive(block.get("trustedShare"), MOST_SHARE) or 1.0, LEAST_SHARE),
        round(min(_positive(block.get("loadSpread"), _MOST_RECORDED_SPREAD) or 0.0, MOST_SPREAD), 1),
        _positive(block.get("unavoidableShare"), 1.0) or 0.0,
    )
    share = _positive(block.get("missedShare"), 1.0)
    missed = MissedRequests()
    if share is not None:
        missed = missed.counted(_RECORDED_REQUESTS, share, _RECORDED_S)
    return CapacityMemory(correction, prior=correction, missed=missed)


def _provisioned(block: Mapping[str, Any]) -> ProvisionedLoad | None:
    names = ("RequestsPerSecond", "PromptTokens", "AnswerTokens", "TrustedShare")
    numbers = [_positive(block.get(f"provisioned{name}"), _MOST_LOAD) for name in names]
    rate, prompt, answer, share = (None if number is None else nearest_step(number) for number in numbers)
    if rate is None or prompt is None or answer is None or share is None:
        return None
    return ProvisionedLoad(rate, prompt, answer, min(share, 1.0))


def _decimal(value: float, digits: int = _DIGITS) -> str:
    """So many significant digits, never in exponent form."""
    places = max(0, digits - 1 - math.floor(math.log10(value))) if value > 0 else 0
    return f"{value:.{min(places, 12)}f}"


def _positive(value: object, most: float) -> float | None:
    if not isinstance(value, str) or len(value) > 32:
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if 0 < number <= most else None  # NaN and infinity fail here too


def _flag(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def _count(value: object) -> int:
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_REPLICAS
    return value if isinstance(value, int) and is_count else 0
