"""What bounds the memory of request bodies, and the time until they are complete."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """Limits of one body, and of all that are being read."""

    body_bytes: int = 16 << 20
    bytes_in_flight: int = 128 << 20
    seconds: float = 60.0

    def __post_init__(self) -> None:
        """Raise `ValueError` where a body that is allowed could never be read."""
        if not 0 < self.body_bytes <= self.bytes_in_flight:
            raise ValueError(f"a body of {self.body_bytes} bytes is none of {self.bytes_in_flight} in flight")


class BodyMemory:
    """The bytes of all bodies that are being read."""

    def __init__(self, limit: int) -> None:
        self.limit, self.in_flight = limit, 0

    def take(self, count: int) -> bool:
        """Take room for so many bytes; False where there is none."""
        if self.in_flight + count > self.limit:
            return False
        self.in_flight += count
        return True

    def give_back(self, count: int) -> None:
        """Give room back."""
        self.in_flight -= count
