"""Scaling laws by name: the operator's, a fixed number of replicas, Kubernetes' HPA."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from tangram.catalog import InputError
from tangram.scaling.queries import RUNNING
from tangram.simulator.control.operator_law import OperatorLaw
from tangram.simulator.controllers import HPAOnUtilisation, LawFactory, LawKnowledge, StaticReplicas

START_TIME_P90 = 1.3  # over the mean: the operator's law forecasts over the P90 of starts


def _operator_law(knowledge: LawKnowledge, knob: float | None) -> OperatorLaw:
    traffic = replace(
        knowledge.intent.traffic, input_tokens=knowledge.prompts, output_tokens=knowledge.answers
    )
    intent = replace(knowledge.intent, traffic=traffic)
    return OperatorLaw(intent, knowledge.capacity_on, knob, start_s=START_TIME_P90 * knowledge.start_s)


def _static(knowledge: LawKnowledge, knob: float | None) -> StaticReplicas:
    most = knowledge.intent.max_replicas
    if knob is None or knob != int(knob) or not 0 <= knob <= most:
        raise InputError("static", f"needs a number of replicas up to {most}, the most that are allowed")
    return StaticReplicas(int(knob))


def _hpa(knowledge: LawKnowledge, knob: float | None) -> HPAOnUtilisation:
    """Return an HPA on the requests that run, over those that the engine may run at a time."""
    return HPAOnUtilisation(RUNNING, knowledge.engine.limits.max_running, knob)


LAWS: Mapping[str, LawFactory] = MappingProxyType({"tangram": _operator_law, "static": _static, "hpa": _hpa})
