"""The part of an answer that was asked for, and when a read is repeated. Pure."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from tangram.sources.checkpoint.errors import SourceError

ATTEMPTS = 6  # in a row that bring no byte
_LONGEST_PAUSE_S = 30.0


def asked_part(chunks: Iterable[bytes], skipped: int, wanted: int) -> Iterator[bytes]:
    """Yield `wanted` bytes of an answer behind the first `skipped` ones, or fewer where it ends earlier."""
    for chunk in chunks:
        piece = chunk[skipped : skipped + wanted]
        skipped = max(0, skipped - len(chunk))
        wanted -= len(piece)
        if piece:
            yield piece
        if wanted <= 0:
            return


@dataclass(slots=True)
class Retries:
    """Reads of one file in a row that brought no byte; `pause` waits before the next one."""

    pause: Callable[[float], None]
    stopped: Callable[[], bool]  # whether another file has failed
    failed: int = 0

    def after(self, error: SourceError, *, progressed: bool) -> None:
        """Wait until the read may be repeated. Raises `error` where it may not."""
        self.failed = 1 if progressed else self.failed + 1
        if not error.is_transient or self.failed >= ATTEMPTS or self.stopped():
            raise error
        self.pause(max(error.retry_after_s, min(2.0**self.failed, _LONGEST_PAUSE_S)))
