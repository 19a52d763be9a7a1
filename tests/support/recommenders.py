"""Stand-ins for the recommender. Worker processes import this module: keep it light."""

import os
import time
from typing import Any

from tangram.fleet import Advice, RecommendedChange
from tangram.shell.decide.recommendation_worker import RecommendationResult

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


def _result(_snapshot: Any, _intents: Any, _deadline: float, last_hash: str) -> RecommendationResult | None:
    return None if last_hash == "abc" else RecommendationResult("abc", SPEC, FIGURES, True, ((WHOM, ADVICE),))


def recommends() -> Any:
    """Recommends the same for every fleet."""
    return _result


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
