"""Vectors of small counts, packed into one integer each: one subtraction compares two of them."""

from collections.abc import Iterable

_BITS = 16  # of one count, the highest of them a guard


def pack(counts: Iterable[int]) -> int:
    """Return the vector of these counts, each below 2**15. Vectors add up like their counts."""
    return sum(count << _BITS * field for field, count in enumerate(counts))


def unit(field: int) -> int:
    """Return the vector that has a 1 at one field."""
    return 1 << _BITS * field


def guards(fields: int) -> int:
    """Return the guard bits of vectors of so many fields."""
    return sum(1 << _BITS * field + _BITS - 1 for field in range(fields))


def within(small: int, large: int, guard: int) -> bool:
    """Whether no count of `small` is above that of `large`: all guard bits survive."""
    return (large | guard) - small & guard == guard


def maximal(vectors: Iterable[int], guard: int, beside: Iterable[int] = ()) -> list[int]:
    """Return the distinct vectors that are within no other one and within none of `beside`.

    A vector can be within larger integers only: in descending order it has to be compared with the maximal
    ones that came before.
    """
    maximal_vectors = list(beside)
    first = len(maximal_vectors)
    for vector in sorted(set(vectors), reverse=True):
        if not any((other | guard) - vector & guard == guard for other in maximal_vectors):
            maximal_vectors.append(vector)
    return maximal_vectors[first:]
