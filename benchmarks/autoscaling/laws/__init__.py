"""Scaling laws of other projects, written anew from their formulas; each file names its source and what is
simplified.

    tangram simulate ... --law benchmarks.autoscaling.laws:knative=0.5

In: what a law may know before a run, and its knob. Out: the law. Each has one knob for how many replicas it
orders, with the published default, so that laws can be compared at equal attainment.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from benchmarks.autoscaling.laws.aibrix import AIBrixPodAutoscaler
from benchmarks.autoscaling.laws.capacity_profile import CapacityFacts, capacity_facts
from benchmarks.autoscaling.laws.dynamo import DynamoLoad, DynamoThroughput
from benchmarks.autoscaling.laws.hpa import HPAOnQueue
from benchmarks.autoscaling.laws.keda import KEDAOnPrometheus
from benchmarks.autoscaling.laws.knative import KnativePodAutoscaler
from benchmarks.autoscaling.laws.llm_d_slo import LatencySaturation
from benchmarks.autoscaling.laws.queue_model import QueueModel
from benchmarks.autoscaling.laws.wva_saturation import WVASaturation, behind_hpa
from benchmarks.autoscaling.laws.wva_tokens import WVATokens
from tangram.scaling.queries import KV_USAGE
from tangram.simulator.control.laws_by_name import LAWS
from tangram.simulator.controllers import Controller, HPAOnUtilisation, LawFactory, LawKnowledge


def _of_metrics(law: Callable[..., Controller]) -> LawFactory:
    return lambda _, knob: law() if knob is None else law(knob)


def _of_profile(law: Callable[..., Controller]) -> LawFactory:
    def built(known: LawKnowledge, knob: float | None) -> Controller:
        facts: CapacityFacts = capacity_facts(known)
        return law(facts) if knob is None else law(facts, knob)

    return built


def hpa_kv(_: LawKnowledge, knob: float | None) -> Controller:
    """Return an HPA on the share of the KV cache that is in use."""
    return HPAOnUtilisation(KV_USAGE, 1, knob)


def wva_v1_hpa(known: LawKnowledge, knob: float | None) -> Controller:
    """Return version 1 of WVA behind the HPA of its chart."""
    return behind_hpa(wva_v1(known, knob))


hpa_running = LAWS["hpa"]
hpa_queue = _of_metrics(HPAOnQueue)
keda = _of_metrics(KEDAOnPrometheus)
knative = _of_profile(KnativePodAutoscaler)
aibrix_apa = _of_metrics(AIBrixPodAutoscaler)
wva_v1 = _of_metrics(WVASaturation)
wva_v2 = _of_profile(WVATokens)
queue_model = _of_profile(QueueModel)
dynamo_throughput = _of_profile(DynamoThroughput)
dynamo_load = _of_profile(DynamoLoad)
llm_d_slo = _of_profile(LatencySaturation)

PUBLISHED: Mapping[str, LawFactory] = MappingProxyType(
    {
        "hpa-queue": hpa_queue,
        "hpa-kv": hpa_kv,
        "hpa-running": hpa_running,
        "keda": keda,
        "knative": knative,
        "aibrix-apa": aibrix_apa,
        "wva-v1": wva_v1,
        "wva-v1-hpa": wva_v1_hpa,
        "wva-v2": wva_v2,
        "queue-model": queue_model,
        "dynamo-throughput": dynamo_throughput,
        "dynamo-load": dynamo_load,
        "llm-d-slo": llm_d_slo,
    }
)
"""As results are filed under their names."""
