"""Published scaling laws, written anew from their formulas; each file names its source and what is
simplified.

In: a `ControllerView`, and for some laws `CapacityFacts`. Out: desired replicas. A law reads nothing else.
"""

from tangram.simulator.controllers.aibrix import AIBrixPodAutoscaler
from tangram.simulator.controllers.capacity_profile import capacity_facts
from tangram.simulator.controllers.controller import CapacityFacts, Controller, ControllerView
from tangram.simulator.controllers.dynamo import DynamoLoad, DynamoThroughput
from tangram.simulator.controllers.hpa import HPAOnQueue, HPAOnUtilisation
from tangram.simulator.controllers.keda import KEDAOnPrometheus
from tangram.simulator.controllers.knative import KnativePodAutoscaler
from tangram.simulator.controllers.llm_d_slo import LatencySaturation
from tangram.simulator.controllers.queue_model import QueueModel
from tangram.simulator.controllers.static_replicas import StaticReplicas
from tangram.simulator.controllers.wva_saturation import WVASaturation, behind_hpa
from tangram.simulator.controllers.wva_tokens import WVATokens

__all__ = [
    "AIBrixPodAutoscaler",
    "CapacityFacts",
    "Controller",
    "ControllerView",
    "DynamoLoad",
    "DynamoThroughput",
    "HPAOnQueue",
    "HPAOnUtilisation",
    "KEDAOnPrometheus",
    "KnativePodAutoscaler",
    "LatencySaturation",
    "QueueModel",
    "StaticReplicas",
    "WVASaturation",
    "WVATokens",
    "behind_hpa",
    "capacity_facts",
]
