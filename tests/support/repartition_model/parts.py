"""What follows from one part of a state, computed once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from tests.support.repartition_model.layouts import LawBroken

FAULT, CHANGE, TAMPER, DELAY = 1, 2, 4, 8  # what a step uses up, or is
T = TypeVar("T")


class Part(NamedTuple):
    """What a step adds to a state, whatever the rest of the state is."""

    name: str
    delta: int
    changed: int = 0  # number of the objects that it changes
    uses: int = 0


@dataclass
class Memory:
    """Results by key, broken laws among them."""

    results: dict[object, object] = field(default_factory=dict)

    def get(self, key: object, compute: Callable[..., T], *arguments: object) -> T:
        """Return what was computed for a key."""
        found = self.results.get(key)
        if found is None:
            try:
                found = compute(*arguments)
            except LawBroken as error:
                found = error
            self.results[key] = found
        if isinstance(found, LawBroken):
            raise found.with_traceback(None)
        return found  # type: ignore[return-value]
