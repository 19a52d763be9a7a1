"""Faults of single LLMDeployments: one whose step raises is left as it is, and the others are planned.

Each attempt plans the whole fleet from the start, so no half-made decision about a faulted LLMDeployment
reaches the others. A step that raises names its LLMDeployment, and the next attempt leaves that one as it is:
`plan/decision_draft.py` gives it the reason `NotJudged` and no action. An exception that no step
attributes is attributed by bisection over the LLMDeployments.
"""

import traceback
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import TypeVar

from tangram.fleet import Fault, describe

Item = TypeVar("Item")
Result = TypeVar("Result")
Faulted = Mapping[str, Fault]  # LLMDeployments that are left as they are, by uid


class RoundStep(StrEnum):
    """A step of a planning round that may raise for one LLMDeployment. The shell takes READ and SCALE."""

    READ = "read"
    SCALE = "scale"
    MODEL = "model"
    ASSESSMENT = "judge"
    BACK_OFF = "back_off"
    LIMIT = "limit"
    TARGET = "target"
    PLACE = "place"
    UNATTRIBUTED = "plan"  # found by bisection


class StepsFailed(Exception):
    """A step raised for these LLMDeployments."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = tuple(faults)
        super().__init__("; ".join(f"{f.step} of {f.owner_uid}: {f.error}" for f in self.faults))


def fault_of(uid: str, step: RoundStep, error: Exception) -> Fault:
    """Return the fault for `error`, with its trace."""
    return Fault(uid, step, describe(error), "".join(traceback.format_exception(error)))


def for_each(
    step: RoundStep, items: Iterable[Item], uid_of: Callable[[Item], str], function: Callable[[Item], Result]
) -> list[Result]:
    """Return `function` of each item, in order. Raises `StepsFailed` with all items for which it raised."""
    results, faults = [], []
    for item in items:
        try:
            results.append(function(item))
        except Exception as error:  # noqa: BLE001 - attributed to its LLMDeployment
            faults.append(fault_of(uid_of(item), step, error))
    if faults:
        raise StepsFailed(faults)
    return results


def isolated(
    attempt: Callable[[Faulted], Result], uids: Iterable[str], observed: Iterable[Fault] = ()
) -> tuple[Result, tuple[Fault, ...]]:
    """Return the result of `attempt`, and the faults of the LLMDeployments that it left as they are.

    `attempt` must be pure. `observed` faults are there from the beginning. Raises what `attempt` raises even
    though every LLMDeployment is left as it is: then none of them is the cause.
    """
    uids = tuple(dict.fromkeys(uids))
    faulted = {fault.owner_uid: fault for fault in sorted(observed, reverse=True)}
    while True:
        try:
            return attempt(faulted), tuple(sorted(faulted.values()))
        except StepsFailed as failed:
            new = {fault.owner_uid: fault for fault in failed.faults}
            if not new.keys() - faulted.keys():
                raise
        except Exception as error:
            culprits = _culprits(attempt, [uid for uid in uids if uid not in faulted], faulted, error)
            if not culprits:
                raise
            new = {uid: fault_of(uid, RoundStep.UNATTRIBUTED, error) for uid in culprits}
        faulted = new | faulted


def _culprits(
    attempt: Callable[[Faulted], Result], suspects: list[str], faulted: Faulted, error: Exception
) -> list[str]:
    """Return LLMDeployments without which `attempt` raises nothing unattributed; none: it always raises."""

    def passes(left_out: Iterable[str]) -> bool:
        try:
            attempt({**faulted, **{uid: fault_of(uid, RoundStep.UNATTRIBUTED, error) for uid in left_out}})
        except StepsFailed:
            return True  # attributed: the next attempt deals with it
        except Exception:  # noqa: BLE001 - the same as before, or another that the next attempt meets
            return False
        return True

    def narrowed(group: list[str], left_out: frozenset[str]) -> list[str]:
        """Return a part of `group` to leave out; leaving out all of `group` and `left_out` suffices."""
        if len(group) == 1:
            return group
        first, second = group[: len(group) // 2], group[len(group) // 2 :]
        for half in (first, second):
            if passes(left_out | set(half)):
                return narrowed(half, left_out)
        culprits = narrowed(first, left_out | set(second))
        return culprits + narrowed(second, left_out | set(culprits))

    return narrowed(suspects, frozenset()) if suspects and passes(suspects) else []
