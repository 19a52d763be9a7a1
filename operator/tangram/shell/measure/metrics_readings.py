"""What a source of metrics gives the scaling law: a reading for each LLMDeployment."""

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from tangram.fleet import Intent, Objectives, describe
from tangram.scaling import RejectedSample, Sample
from tangram.scaling.outlook.load_history import LoadHistory

log = logging.getLogger(__name__)

Subject = tuple[str, Objectives]
"""What a sample is about: the served name and the objectives."""

_CHANGED = "the objectives or the served name changed; the next query asks for the new ones"


@dataclass(frozen=True, slots=True)
class Reading:
    """The last good sample of any age, and why newer ones failed. It counts for its subject alone."""

    sample: Sample | None = None
    problem: str = ""
    subject: Subject | None = None
    pods_read: str = ""  # how many pods the operator read itself; empty: Prometheus read them


class LoadHistories(Protocol):
    """The load histories of the past, by UID."""

    def of(self, uid: str) -> LoadHistory | None:
        """Return the history that was read last, None if there is none."""
        ...


class MetricsSource(Protocol):
    """Where readings come from: a Prometheus, or the pods themselves."""

    @property
    def histories(self) -> LoadHistories:
        """The load histories that the source holds."""
        ...

    def reading(self, intent: Intent) -> Reading:
        """Return the latest reading for the present objectives of `intent`."""
        ...

    def clear(self) -> None:
        """Forget all readings: another operator may have acted."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


class Readings:
    """The latest reading of each LLMDeployment, by UID."""

    def __init__(self, pods_read: str = "") -> None:
        """`pods_read`: how many pods the source has read where it has no reading."""
        self._readings: dict[str, Reading] = {}
        self._pods_read = pods_read

    def of(self, intent: Intent) -> Reading:
        """Return the latest reading for the present objectives of `intent`."""
        reading = self._readings.get(intent.uid)
        if reading is None:
            return Reading(pods_read=self._pods_read)
        is_about = reading.subject == subject_of(intent)
        return reading if is_about else Reading(None, _CHANGED, pods_read=self._pods_read)

    def take(
        self, intent: Intent, sample: Sample | RejectedSample, problem: str = "", pods_read: str = ""
    ) -> None:
        """Keep a new sample. One with a value that cannot be is a failure: the last good sample stays."""
        if isinstance(sample, RejectedSample):
            self.failed(intent, sample.reason, pods_read)
        else:
            self._readings[intent.uid] = Reading(sample, problem, subject_of(intent), pods_read)

    def failed(self, intent: Intent, problem: str, pods_read: str = "") -> None:
        """Record why there is no newer sample; a new problem is logged once."""
        pods_read = pods_read or self._pods_read
        before = self.of(intent)
        if before.problem != problem:
            log.warning("metrics of %s/%s: %s", intent.namespace, intent.name, problem)
        self._readings[intent.uid] = Reading(before.sample, problem, subject_of(intent), pods_read)

    @contextmanager
    def isolated(self, intent: Intent) -> Iterator[None]:
        """Make an error the problem of the reading of one LLMDeployment, and so a bug, too."""
        try:
            yield
        except ValueError as error:
            self.failed(intent, str(error))
        except Exception as error:
            problem = defect(error)
            if self.of(intent).problem != problem:
                log.exception("metrics of %s/%s", intent.namespace, intent.name)
            self.failed(intent, problem)

    def retain(self, uids: Iterable[str]) -> None:
        """Forget all other LLMDeployments."""
        for uid in self._readings.keys() - set(uids):
            del self._readings[uid]

    def clear(self) -> None:
        """Forget all readings."""
        self._readings.clear()


def defect(error: Exception) -> str:
    """Return the problem of a reading that a bug prevents."""
    return f"its metrics could not be read ({describe(error)}); please report this"


def subject_of(intent: Intent) -> Subject:
    """Return what a sample of `intent` is about."""
    return intent.served_name, intent.objectives
