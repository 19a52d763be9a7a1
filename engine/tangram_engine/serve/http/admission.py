"""How many bytes of request bodies are held before their requests are understood.

Connections and headers are bounded below, by `tangram_http`; sequences later, once a body says how many there
are (see `lifecycle`).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .errors import unavailable

TOKEN_BYTES = 36  # of an id in a list; in a body it can have 2
DECODED_BYTES = 16  # of a character that is decoded: as text, as JSON in pieces, and as JSON
LOGPROB_BYTES = 200  # of a token or alternative: as objects, and as JSON without the token itself
FREE_BODY_BYTES = 64 << 10  # of each body: small requests are served while large ones fill the limit


class BodyBytes:
    """Bytes of request bodies in flight, from their arrival to the end of their request."""

    def __init__(self, limit: int, refused: Callable[[str], None]) -> None:
        self.limit = limit
        self._refused = refused
        self.in_flight = 0  # bytes beyond the free part of each body

    @contextmanager
    def hold(self) -> Iterator["HeldBytes"]:
        """Room for one body, given back at the end of the context."""
        held = HeldBytes(self)
        try:
            yield held
        finally:
            self.in_flight -= held.charged

    def charge(self, count: int) -> None:
        """Take more bytes. Raises APIError (503) when there is no room."""
        if self.in_flight + count > self.limit:
            self._refused("max_body_bytes")
            raise unavailable(
                f"The server holds {self.limit} bytes of large bodies, which is its limit. Please retry.",
                "too_many_body_bytes",
                close=True,
            )
        self.in_flight += count


class HeldBytes:
    """What one body holds."""

    def __init__(self, bodies: BodyBytes) -> None:
        self._bodies = bodies
        self._size = 0
        self.charged = 0

    @property
    def most(self) -> int:
        """Bytes that all bodies together may hold."""
        return self._bodies.limit

    def add(self, count: int) -> None:
        """Book bytes that arrived. Raises APIError (503) when there is no room for them."""
        self._size += count
        more = max(self._size - FREE_BODY_BYTES, 0) - self.charged
        self._bodies.charge(more)
        self.charged += more
