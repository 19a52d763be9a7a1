"""Errors of one LLMDeployment in one planning round that only a bug explains."""

from dataclasses import dataclass

MOST_CHARACTERS = 300


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """A step of a planning round that raised for one LLMDeployment, which is left as it is."""

    owner_uid: str
    step: str  # a `RoundStep`, or a step of the shell: status | write ...
    error: str  # type and message of the exception, bounded
    trace: str = ""  # of the exception; empty where another process logged it


def describe(error: BaseException) -> str:
    """Return type and message of an exception, bounded, for conditions and logs."""
    return f"{type(error).__name__}: {error}"[:MOST_CHARACTERS]
