"""What a control law would cost that knew all requests beforehand: the measure of every other law.

In: the replicas that the load of each time bin needs, and the time that a replica takes to start. Out: the
cover of least cost, and the cheapest schedule whose replay reaches an attainment.
"""

from benchmarks.autoscaling.oracle.attainment_search import (
    ReplayedSchedule,
    Schedule,
    ScheduleFamily,
    cheapest_schedule,
)
from benchmarks.autoscaling.oracle.replica_cover import ReplicaCover, clairvoyant_cover

__all__ = [
    "ReplayedSchedule",
    "ReplicaCover",
    "Schedule",
    "ScheduleFamily",
    "cheapest_schedule",
    "clairvoyant_cover",
]
