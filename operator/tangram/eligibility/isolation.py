"""An LLMDeployment for which a step raises stands still; the others are planned as if it did so by itself.

Each attempt plans the whole fleet from the start. A step that raises names its LLMDeployment, and the next
attempt leaves that one standing: no half-made decision of it is left in what the others get. An exception
that no step attributes is attributed by bisection over the LLMDeployments.
"""

import traceback
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from tangram.fleet import Fault, describe

Item = TypeVar("Item")
Result = TypeVar("Result")
Still = Mapping[str, Fault]  # LLMDeployments that stand still, by uid

UNATTRIBUTED = "plan"  # step of a fault that bisection found


class StepsFailed(Exception):
    """A step raised for these LLMDeployments."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = tuple(faults)
        super().__init__(
            "; ".join(f"{fault.step} of {fault.owner_uid}: {fault.error}" for fault in self.faults)
        )


def fault_of(uid: str, step: str, error: Exception) -> Fault:
    """Return the fault that `error` is, with its trace."""
    return Fault(uid, step, describe(error), "".join(traceback.format_exception(error)))


def for_each(
    step: str, items: Iterable[Item], uid_of: Callable[[Item], str], function: Callable[[Item], Result]
) -> list[Result]:
    """Return `function` of each item, in order. Raises `StepsFailed` with all items for which it raised."""
    found, faults = [], []
    for item in items:
        try:
            found.append(function(item))
        except Exception as error:  # noqa: BLE001 - attributed to its LLMDeployment, which then stands still
            faults.append(fault_of(uid_of(item), step, error))
    if faults:
        raise StepsFailed(faults)
    return found


def isolated(
    attempt: Callable[[Still], Result], uids: Iterable[str], given: Iterable[Fault] = ()
) -> tuple[Result, tuple[Fault, ...]]:
    """Return what `attempt` gives, and the faults of the LLMDeployments that it had to leave standing.

    `attempt` must be pure. `given` stand still from the beginning. Raises what `attempt` raises although
    every LLMDeployment stands still: then none of them is the cause.
    """
    everyone = tuple(dict.fromkeys(uids))
    still = {fault.owner_uid: fault for fault in sorted(given, reverse=True)}
    while True:
        try:
            return attempt(still), tuple(sorted(still.values()))
        except StepsFailed as failed:
            found = {fault.owner_uid: fault for fault in failed.faults}
            if not found.keys() - still.keys():
                raise
        except Exception as error:
            suspects = _culprits(attempt, [uid for uid in everyone if uid not in still], still, error)
            if not suspects:
                raise
            found = {uid: fault_of(uid, UNATTRIBUTED, error) for uid in suspects}
        still = still | {uid: fault for uid, fault in found.items() if uid not in still}


def _culprits(
    attempt: Callable[[Still], Result], suspects: list[str], still: Still, error: Exception
) -> list[str]:
    """Return LLMDeployments without which `attempt` raises nothing unattributed; none: it always does."""

    def passes(left_out: Iterable[str]) -> bool:
        try:
            attempt({**still, **{uid: Fault(uid, UNATTRIBUTED, describe(error)) for uid in left_out}})
        except StepsFailed:
            return True  # attributed: the next attempt deals with it
        except Exception:  # noqa: BLE001 - the same as before, or another that the next attempt meets
            return False
        return True

    def narrowed(group: list[str], out: frozenset[str]) -> list[str]:
        """Return a part of `group` that has to stand still; `group` and `out` together are enough."""
        if len(group) == 1:
            return group
        first, second = group[: len(group) // 2], group[len(group) // 2 :]
        for half in (first, second):
            if passes(out | set(half)):
                return narrowed(half, out)
        found = narrowed(first, out | set(second))
        return found + narrowed(second, out | set(found))

    return narrowed(suspects, frozenset()) if suspects and passes(suspects) else []
