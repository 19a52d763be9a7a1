"""PriorityClasses of Kubernetes, and refusals of LLMDeployments."""

from dataclasses import dataclass

from tangram.catalog.reading.field_path import FieldPath

REPLICAS_STAY = "running replicas stay unchanged"


@dataclass(frozen=True, slots=True, order=True)
class PriorityClass:
    """A PriorityClass (scheduling.k8s.io/v1). Its value and its policy never change."""

    name: str
    value: int  # higher is served first
    is_allowed: bool = False  # labelled for use by LLMDeployments
    preempts: bool = True  # kube-scheduler may evict other pods for those of this class
    is_global_default: bool = False  # of pods that name no class


def spec_in_force(generation: int) -> str:
    """Return the sentence that names the spec in force while the present one is not accepted."""
    return f"the spec of generation {generation} stays in force"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an LLMDeployment with a valid spec is not accepted."""

    reason: str  # one word, see tangram.eligibility.reasons
    message: str  # with the field's path and what to do
    fields: tuple[FieldPath, ...] = ()  # that the message is about
