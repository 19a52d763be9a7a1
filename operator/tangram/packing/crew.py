"""The nouns of a transition on its way: one demand and how many of it there are, and one way to go on."""

import math
from dataclasses import dataclass

from tangram.packing.seats import Seat

Cost = tuple[int, int, int, Seat]  # restarts, detours, drains, of which goal


@dataclass(frozen=True, slots=True)
class Way:
    """How to free a wanted place: who goes where, who has to stop. Smaller is better."""

    restarts: int
    detours: int
    drains: int
    goal: Seat
    moves: tuple[tuple[Seat, Seat | None, bool], ...]  # (who, spare place or None, before it is replaced)

    @property
    def cost(self) -> Cost:
        """What is compared."""
        return self.restarts, self.detours, self.drains, self.goal


@dataclass(slots=True)
class Crew:
    """One demand on its way."""

    minimum: int  # available replicas never fall below it
    surge: int  # replicas never rise above it
    old: int = 0  # replicas that have to go
    new: int = 0  # replicas that have to come
    come: int = 0
    gone: int = 0
    there: int = 0  # replicas now
    least: int = 0  # what runs before or after, whichever is less: only restarts go below

    @property
    def short(self) -> int:
        """How many replicas are down that have to come back."""
        return max(0, self.least - self.there)

    @property
    def may_drain(self) -> bool:
        """Whether one more can go without loss: as many in proportion as have been replaced."""
        due = math.floor(self.old * self.come / self.new) if self.new else self.old
        return self.gone < due and self.there > self.least
