"""From Prometheus samples to a number of replicas. Pure: the shell queries Prometheus and passes `now`."""

from tangram.scaling import queries
from tangram.scaling.control import ScalingObservation, decide, forget_learned
from tangram.scaling.fleet_answers import FleetAnswers
from tangram.scaling.fleet_queries import FleetQuery, MetricsSubject, for_fleet, metrics_subject
from tangram.scaling.record import recalled, record
from tangram.scaling.sample import RejectedSample, Sample, Window, sample_from
from tangram.scaling.signal import Signal, SignalState, classify
from tangram.scaling.state import (
    CapacityMemory,
    EvidenceMemory,
    ScalingDecision,
    ScalingMemory,
    ScalingParams,
    SupplyMemory,
)

__all__ = [
    "CapacityMemory",
    "EvidenceMemory",
    "FleetAnswers",
    "FleetQuery",
    "MetricsSubject",
    "RejectedSample",
    "Sample",
    "ScalingDecision",
    "ScalingMemory",
    "ScalingObservation",
    "ScalingParams",
    "Signal",
    "SignalState",
    "SupplyMemory",
    "Window",
    "classify",
    "decide",
    "for_fleet",
    "forget_learned",
    "metrics_subject",
    "queries",
    "recalled",
    "record",
    "sample_from",
]
