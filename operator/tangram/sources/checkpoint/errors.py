"""The one error of a source, with the reason that the condition ModelReady shows."""

from enum import StrEnum


class SourceReason(StrEnum):
    """Why a checkpoint cannot be had; a closed set that the operator knows."""

    NOT_FOUND = "NotFound"
    INVALID = "InvalidCheckpoint"
    ACCESS_DENIED = "AccessDenied"
    UNREACHABLE = "SourceUnreachable"
    CHANGED = "SourceChanged"
    NO_SPACE = "NoSpace"


class SourceError(Exception):
    """What a source or the disk refuses: one sentence that says what to do.

    `is_transient`: the same read may succeed soon. `retry_after_s`: not before that.
    """

    def __init__(
        self, reason: SourceReason, message: str, *, is_transient: bool = False, retry_after_s: float = 0.0
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.is_transient = is_transient
        self.retry_after_s = retry_after_s


def unreachable(message: str, retry_after_s: float = 0.0) -> SourceError:
    """Return the error of a read that may succeed soon."""
    return SourceError(SourceReason.UNREACHABLE, message, is_transient=True, retry_after_s=retry_after_s)


def invalid(message: str) -> SourceError:
    """Return the error of a repository that is no checkpoint which an engine can load."""
    return SourceError(SourceReason.INVALID, message)


def changed(message: str) -> SourceError:
    """Return the error of bytes that are not those of the pinned revision."""
    return SourceError(SourceReason.CHANGED, message)
