"""What the condition `ModelReady` says of pods that fetch: bytes, rate, and when the checkpoint is there."""

from tangram.fleet import FetchState, Workload
from tangram.fleet.times import rfc3339


def fetch_condition(workloads: tuple[Workload, ...]) -> tuple[tuple[str, str] | None, str]:
    """Return reason and message of a fetch that fails while no pod has the checkpoint, and the text to append
    to the message of a checkpoint that is inspected.

    The text changes only with an event: it has times, and no seconds that are left.
    """
    states = [workload.fetch for workload in workloads if workload.fetch is not None and workload.fetch.pods]
    failing = [state for state in states if state.reason]
    if failing and not any(state.fetched for state in states):
        return (failing[0].reason, failing[0].message), ""
    return None, "".join(f"; {text}" for text in map(_text, states) if text)


def _text(state: FetchState) -> str:
    """Return "fetched by 2 of 3 pods, 16.1 GB each at 112 MB/s, the next at 2026-01-01T10:02:00Z"."""
    if state.fetched >= state.pods and not state.reason:
        return ""
    rate = state.bytes_per_second
    speed = f" at {rate / 1e6:.0f} MB/s" if rate else ""
    text = f"fetched by {state.fetched} of {state.pods} pods, {state.size / 1e9:.1f} GB each{speed}"
    if state.since is not None and rate:
        text += f", the next at {rfc3339(state.since + state.size / rate)}"
    elif state.since is not None:
        text += f", the first under way since {rfc3339(state.since)}"
    return f"{text}; the last fetch failed: {state.message}" if state.reason else text
