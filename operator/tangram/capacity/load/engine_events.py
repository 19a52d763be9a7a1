"""What the clients of a replica receive while it runs, with the instants, in their order."""

from collections import deque
from enum import IntEnum
from typing import NamedTuple


class EngineEventKind(IntEnum):
    """What happened: the meaning of the other fields of an event."""

    FIRST_TOKEN = 0
    TOKEN_GAPS = 1
    FINISHED = 2


class EngineEvent(NamedTuple):
    """One event of a replica."""

    at: float
    kind: EngineEventKind
    request: int  # id of the request; of TOKEN_GAPS the number of gaps
    seconds: float = 0.0  # of TOKEN_GAPS: the length of each gap


class EngineEvents:
    """The events that no observer has read yet, in the order of time."""

    def __init__(self) -> None:
        self.unread: deque[EngineEvent] = deque()

    def until(self, at: float) -> list[EngineEvent]:
        """Return the unread events up to `at`. An event of the step in flight may be later, and stays."""
        events, unread = [], self.unread
        while unread and unread[0].at <= at:
            events.append(unread.popleft())
        return events
