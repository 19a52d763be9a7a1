"""Frames on a stream of bytes: a 4-byte big-endian length, and a body of so many bytes."""

import struct

_LENGTH = struct.Struct(">I")


def frame(body: bytes) -> bytes:
    """Return the frame of a body."""
    return _LENGTH.pack(len(body)) + body


class FrameReader:
    """Cuts a stream into the bodies of frames, however the bytes arrive. `limit`: bytes of a body."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Return all bodies completed by `data`, in order. Raises ValueError on a length over the limit."""
        self._buffer += data
        bodies: list[bytes] = []
        start = 0
        while len(self._buffer) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, start)
            if length > self._limit:
                raise ValueError(f"a frame of {length} bytes is over the limit of {self._limit}")
            begin = start + _LENGTH.size
            if len(self._buffer) < begin + length:
                break
            start = begin + length
            with memoryview(self._buffer) as view:
                bodies.append(bytes(view[begin:start]))
        del self._buffer[:start]
        return bodies
