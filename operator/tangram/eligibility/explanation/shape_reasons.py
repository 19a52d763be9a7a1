"""Reasons against a shape that serves, as records with their numbers. `words` makes sentences of them."""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class NotEnoughGPUs:
    """Fewer replicas fit than are needed."""

    needed: int
    fitting: int
    if_empty: bool  # `fitting` of the fleet as if it were empty; False: on free devices and on its own
    word: ClassVar[str] = "NotEnoughGPUs"


@dataclass(frozen=True, slots=True)
class TooManyReplicas:
    """More replicas are needed than scaling.maxReplicas allows."""

    needed: int
    allowed: int
    word: ClassVar[str] = "MaxReplicas"


@dataclass(frozen=True, slots=True)
class OverBudget:
    """The replicas cost more than placement.budgetPerHour."""

    cost_per_hour: float  # USD
    budget_per_hour: float
    word: ClassVar[str] = "Budget"


@dataclass(frozen=True, slots=True)
class HeldBack:
    """A quota, a back-off or a refusal of the API server allows fewer replicas than are needed."""

    word: str
    message: str


@dataclass(frozen=True, slots=True)
class Dearer:
    """The replicas do not cost less than the chosen ones, or these run and are not moved only for that."""

    more_per_hour: float  # USD; negative: running replicas cost more, and stay
    word: ClassVar[str] = "Dearer"


@dataclass(frozen=True, slots=True)
class TooFewPlaces:
    """The free devices are on too few nodes or zones for placement.spread."""

    word: ClassVar[str] = "Spread"


@dataclass(frozen=True, slots=True)
class WorseFleet:
    """The fleet as a whole gains nothing from it: fewer demands would be served, or it would cost more."""

    proved: bool  # False: no better plan was found in time
    one_shape: bool = False  # among plans with one shape per LLMDeployment
    word: ClassVar[str] = "Fleet"


ShapeReason = NotEnoughGPUs | TooManyReplicas | OverBudget | HeldBack | Dearer | TooFewPlaces | WorseFleet
