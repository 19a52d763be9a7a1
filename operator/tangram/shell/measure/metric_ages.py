"""The age of the newest metrics of each LLMDeployment that scales. An outage makes it grow."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tangram.fleet import Intent
from tangram.scaling import Signal


@dataclass(slots=True)
class MetricAges:
    """Since when each LLMDeployment has had no newer metrics, in seconds since the epoch, by UID.

    Metrics are due while an LLMDeployment may scale and has a ready replica. Until the first ones come, they
    are as old as that state.
    """

    _since: dict[str, float] = field(default_factory=dict)
    _names: dict[str, tuple[str, str]] = field(default_factory=dict)  # namespace and name, by UID

    def note(self, intent: Intent, signal: Signal | None, ready: int, now: float) -> None:
        """Take what one round knows. `signal` is None without a source of metrics."""
        if signal is None or ready == 0 or intent.paused or intent.min_replicas >= intent.max_replicas:
            self._forget(intent.uid)
            return
        self._names[intent.uid] = (intent.namespace, intent.name)
        sample, since = signal.sample, self._since.get(intent.uid, now)
        if sample is not None and sample.targets and sample.age_s is not None:
            since = max(since, sample.at - sample.age_s)
        self._since[intent.uid] = min(since, now)  # a clock that was set back makes no age negative

    def seconds(self, now: float) -> Mapping[tuple[str, str], float]:
        """Return the ages by namespace and name."""
        return {self._names[uid]: max(0.0, now - since) for uid, since in self._since.items()}

    def retain(self, uids: Iterable[str]) -> None:
        """Forget all other LLMDeployments."""
        for uid in self._since.keys() - set(uids):
            self._forget(uid)

    def _forget(self, uid: str) -> None:
        self._since.pop(uid, None)
        self._names.pop(uid, None)
