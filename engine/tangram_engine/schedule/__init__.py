"""Who computes what in the next step: continuous batching under one token budget, without torch."""

from tangram_engine.schedule.batch import BatchRow, ScheduledBatch
from tangram_engine.schedule.request import Request
from tangram_engine.schedule.scheduler import Scheduler, SchedulerLimits
from tangram_engine.schedule.sequence import Sequence

__all__ = ["BatchRow", "Request", "ScheduledBatch", "Scheduler", "SchedulerLimits", "Sequence"]
