"""A bound on the log: of lines of one kind some are written, and the others are counted.

A client that causes an error a thousand times a second would otherwise fill the disk of the node with traces
of one defect. Lines are of one kind if logger, level and template are equal. A line without arguments has no
template: its kind is its first line without numbers, and the kinds of a logger are bounded, so that random
texts share one. The operator and the engine each have this module, because neither imports the other.
"""

import logging
import math
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO

BURST = 300  # lines of a kind at once: a round may have one for each of hundreds of objects
PER_SECOND = 1.0  # lines of a kind after that
REPORT_S = 60.0  # from the first line that is not written to the line with their number
MOST_KINDS = 50  # of one logger
MOST_LOGGERS = 200
_TEMPLATE_CHARS = 200
_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\d+")
_LEFT_OUT = "%d more of this kind were not written: %s"
_Key = tuple[str, int, str]


@dataclass(slots=True)
class _LimitedLogKind:
    """The lines of one kind: a token bucket, and how many were not written."""

    lines: float = BURST  # that may be written now
    at: float = 0.0
    left_out: int = 0
    left_out_since: float = 0.0

    def admits(self, now: float) -> bool:
        """Return whether one more line may be written, and count it."""
        self.lines = min(BURST, self.lines + PER_SECOND * (now - self.at))
        self.at = now
        if self.lines >= 1:
            self.lines -= 1
            return True
        if not self.left_out:
            self.left_out_since = now
        self.left_out += 1
        return False

    def is_forgotten(self, now: float) -> bool:
        """Return whether a new kind would admit no more."""
        return not self.left_out and self.lines + PER_SECOND * (now - self.at) >= BURST


class LimitedLogHandler(logging.StreamHandler[TextIO]):
    """Writes to a stream within the limits of each kind, and the number of lines that were not written.

    The numbers come with the next line of any kind, once REPORT_S have passed, and at the end.
    """

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(sys.stderr if stream is None else stream)
        self._clock = clock
        self._kinds: dict[str, dict[_Key, _LimitedLogKind]] = {}  # by logger
        self._with_left_out: dict[_Key, _LimitedLogKind] = {}
        self._report_at = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, or count it. logging calls this under the handler's lock."""
        now = self._clock()
        if self._with_left_out and now >= self._report_at:
            self._report(now - REPORT_S)
        key, kind = self._kind(record, now)
        if kind.admits(now):
            super().emit(record)
        else:
            if not self._with_left_out:
                self._report_at = now + REPORT_S
            self._with_left_out[key] = kind

    def close(self) -> None:
        """Write the numbers that are left."""
        self.acquire()
        try:
            self._report(math.inf)
        finally:
            self.release()
        super().close()

    def _kind(self, record: logging.LogRecord, now: float) -> tuple[_Key, _LimitedLogKind]:
        name = record.name if record.name in self._kinds or len(self._kinds) < MOST_LOGGERS else ""
        kinds = self._kinds.setdefault(name, {})
        key = (name, record.levelno, _template(record))
        if key not in kinds and len(kinds) >= MOST_KINDS:
            for old in [old for old, kind in kinds.items() if kind.is_forgotten(now)]:
                del kinds[old]
            if len(kinds) >= MOST_KINDS:
                key = (name, record.levelno, "")  # one for each level of the logger
        return key, kinds.setdefault(key, _LimitedLogKind(at=now))

    def _report(self, since: float) -> None:
        """Write the number of each kind of which lines have been left out since then, or longer."""
        due = [key for key, kind in self._with_left_out.items() if kind.left_out_since <= since]
        for key in due:
            name, level, template = key
            kind = self._with_left_out.pop(key)
            counted = kind.left_out, template or "several texts"
            kind.left_out = 0
            super().emit(logging.LogRecord(name or "root", level, __file__, 0, _LEFT_OUT, counted, None))
        oldest = (kind.left_out_since for kind in self._with_left_out.values())
        self._report_at = min(oldest, default=0.0) + REPORT_S


def _template(record: logging.LogRecord) -> str:
    text = str(record.msg)
    if record.args:
        return text[:_TEMPLATE_CHARS]
    first_line = text[:_TEMPLATE_CHARS].partition("\n")[0]
    return _NUMBERS.sub("#", first_line)
