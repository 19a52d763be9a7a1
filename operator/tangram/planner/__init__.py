"""`plan(snapshot, intents, now) -> Plan` and the status that follows from it. Pure and deterministic.

All three are imported when first asked for: the command line needs other modules of this package, and starts
faster without what decides for a cluster.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tangram.planner.decision import plan
    from tangram.planner.events import transitions
    from tangram.planner.status_block import status

__all__ = ["plan", "status", "transitions"]
_MODULES = {"plan": "decision", "status": "status_block", "transitions": "events"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
