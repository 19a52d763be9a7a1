"""When a GPU on which an operation failed is tried again, and when it is quarantined.

All of it is computed from the status, which holds the failures so far, and so survives a restart. A person
ends a quarantine by removing it from the status.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from tangram.api.gpu_node import AttemptsStatus, QuarantineStatus
from tangram.api.llm_deployment.status import MAX_TEXT
from tangram.partition.status.times import api_time, parse_api_time

FAILURES_BEFORE_QUARANTINE = 5  # in a row
FIRST_BACK_OFF_S, LONGEST_BACK_OFF_S = 10.0, 300.0
_LONGEST_NAME = 64  # of an error
LOST, REPEATED = "GPULost", "RepeatedFailure"  # reasons of a quarantine


@dataclass(frozen=True, slots=True)
class OperationFailure:
    """An operation on a GPU that failed, or a GPU that could not be observed."""

    tried: str  # what was tried: create-instance 3g.40gb@4 of GPU-...
    error: str  # its name: IN_USE
    message: str  # what went wrong: nvmlGpuInstanceDestroy: IN_USE (19)
    code: int | None = None  # as NVML numbers it
    is_retryable: bool = True  # it may succeed later without a reset or a person
    is_lost: bool = False  # the GPU fell off the bus


@dataclass(frozen=True, slots=True)
class GPURecord:
    """What the status of a node records of the failures on one GPU."""

    attempts: AttemptsStatus | None = None
    quarantine: QuarantineStatus | None = None

    def may_be_changed(self, now: datetime) -> bool:
        """Whether an operation on the GPU may begin now."""
        return self.quarantine is None and not self.is_backing_off(now)

    def is_backing_off(self, now: datetime) -> bool:
        """Whether the next attempt is due later."""
        return self.back_off_left_s(now) is not None

    def back_off_left_s(self, now: datetime) -> float | None:
        """Return the seconds until the next attempt; None where it is due, or none is. One further away than
        any back-off was written by another clock, and is due.
        """
        due = parse_api_time(self.attempts.next_try) if self.attempts else None
        left_s = None if due is None else (due - now).total_seconds()
        return left_s if left_s is not None and 0 < left_s <= LONGEST_BACK_OFF_S else None


def after_success(former: GPURecord) -> GPURecord:
    """Return the record after an operation that succeeded: the failures before it no longer count."""
    return GPURecord(quarantine=former.quarantine)


def failed_attempts(
    former: AttemptsStatus | None,
    failure: OperationFailure,
    now: datetime,
    first_s: float = FIRST_BACK_OFF_S,
) -> AttemptsStatus:
    """Return the attempts after a failure; without a next one where it is lost or there were too many.

    `first_s`: the back-off after the first failure.
    """
    count = (former.count if former else 0) + 1
    ends = failure.is_lost or count >= FAILURES_BEFORE_QUARANTINE
    return AttemptsStatus(
        count=count,
        code=failure.code,
        error=failure.error[:_LONGEST_NAME] or "UNKNOWN",
        message=f"{failure.tried} failed: {failure.message}"[:MAX_TEXT],
        next_try=None if ends else api_time(now + timedelta(seconds=back_off_s(count, failure, first_s))),
    )


def after_failure(gpu: str, former: GPURecord, failure: OperationFailure, now: datetime) -> GPURecord:
    """Return the record after a failure: a back-off, or a quarantine. A quarantine is never replaced."""
    if former.quarantine is not None:
        return former
    attempts = failed_attempts(former.attempts, failure, now)
    is_last = attempts.next_try is None
    return GPURecord(attempts, _quarantine(gpu, attempts, failure, now) if is_last else None)


def back_off_s(count: int, failure: OperationFailure, first_s: float = FIRST_BACK_OFF_S) -> float:
    """Return the seconds until the next attempt: doubled by each failure, within a bound; the bound at once
    where only a reset or a person helps.
    """
    if not failure.is_retryable:
        return LONGEST_BACK_OFF_S
    return min(LONGEST_BACK_OFF_S, first_s * 2.0 ** min(count - 1, 16))


def _quarantine(
    gpu: str, attempts: AttemptsStatus, failure: OperationFailure, now: datetime
) -> QuarantineStatus:
    if failure.is_lost:
        message = f"the GPU fell off the bus: {failure.message}"
    else:
        message = f"{attempts.count} attempts in a row failed; the last: {attempts.message}"
    return QuarantineStatus(
        uuid=gpu,
        reason=LOST if failure.is_lost else REPEATED,
        message=message[:MAX_TEXT],
        since=api_time(now),
    )
