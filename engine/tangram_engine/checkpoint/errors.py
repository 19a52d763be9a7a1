"""The one error a checkpoint can cause, with the reason the operator shows as a condition."""

from enum import StrEnum


class RefusalReason(StrEnum):
    """Why a checkpoint cannot be served; a closed set that the operator knows."""

    NOT_FOUND = "NotFound"
    INVALID = "InvalidCheckpoint"
    UNKNOWN_ARCHITECTURE = "UnknownArchitecture"


class CheckpointError(Exception):
    """A person's error: the message names the file and says what to do."""

    def __init__(self, reason: RefusalReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}"


def invalid(message: str) -> CheckpointError:
    """Shorthand for the most frequent reason."""
    return CheckpointError(RefusalReason.INVALID, message)


def not_found(message: str) -> CheckpointError:
    """Shorthand for a file or directory that is not there."""
    return CheckpointError(RefusalReason.NOT_FOUND, message)
