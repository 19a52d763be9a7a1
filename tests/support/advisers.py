"""What takes the place of thinking about the whole fleet. Imported by worker processes: keep it light."""

import os
import time
from typing import Any

from tangram.fleet import Advice, RecommendedChange
from tangram.shell.decide.recommending import Advised

SPEC = {
    "costPerHour": "2.50",
    "gap": "<0.01%",
    "unmet": 1,
    "totalDeployments": 1,
    "totalMoves": 0,
    "totalSteps": 2,
}
FIGURES = {"currentCostPerHour": "3.75", "savesPerHour": "1.25", "solveSeconds": "0.31"}
ADVICE = Advice("abc", 1.25, ("all GPUs are taken",), (RecommendedChange("GPUs", "add one L4"),))
WHOM = "uid-one"


def _answered(_snapshot: Any, _intents: Any, _deadline: float, known: str) -> Advised | None:
    return None if known == "abc" else Advised("abc", SPEC, FIGURES, True, ((WHOM, ADVICE),))


def advises() -> Any:
    """Recommends the same for every fleet."""
    return _answered


def hangs() -> Any:
    """Never answers."""
    return lambda *_: time.sleep(60)


def dies() -> Any:
    """Ends its process."""
    return lambda *_: os._exit(9)


def raises() -> Any:
    """Has a bug."""

    def bug(*_: Any) -> None:
        raise ValueError("a bug")

    return bug
