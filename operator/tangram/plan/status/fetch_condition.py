"""What the condition `ModelReady` says of pods that fetch: bytes, rate, and when the checkpoint is there."""

from tangram.fleet import Workload
from tangram.plan.words.conditions import sentence


def fetch_condition(workloads: tuple[Workload, ...]) -> tuple[tuple[str, str] | None, str]:
    """Return reason and message of a fetch that fails while no pod has the checkpoint, and the text to append
    to the message of a checkpoint that is inspected.

    The text changes only with an event: it has times, and no seconds that are left.
    """
    states = [workload.fetch for workload in workloads if workload.fetch is not None and workload.fetch.pods]
    failing = [state for state in states if state.reason]
    if failing and not any(state.fetched for state in states):
        return (failing[0].reason, failing[0].message), ""
    return None, "".join(f"; {text}" for text in map(sentence, states) if text)
