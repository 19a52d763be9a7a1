"""What a scaling law is in a simulation, what it may know and read, and two laws: fixed replicas and an HPA.

In: `LawKnowledge` before a run, a `ControllerView` at each decision. Out: desired replicas. A law reads
nothing else.
"""

from tangram.simulator.controllers.controller import Controller, ControllerView
from tangram.simulator.controllers.hpa import HPAOnUtilisation
from tangram.simulator.controllers.law_knowledge import LawFactory, LawKnowledge
from tangram.simulator.controllers.static_replicas import StaticReplicas

__all__ = [
    "Controller",
    "ControllerView",
    "HPAOnUtilisation",
    "LawFactory",
    "LawKnowledge",
    "StaticReplicas",
]
