"""Continuous batching under one token budget, without torch.

In: requests, the block manager. Out: the rows of the next step.
"""

from tangram_engine.schedule.batch import BatchRow, ScheduledBatch
from tangram_engine.schedule.request import Request
from tangram_engine.schedule.scheduler import Scheduler, SchedulerLimits
from tangram_engine.schedule.sequence import Sequence

__all__ = ["BatchRow", "Request", "ScheduledBatch", "Scheduler", "SchedulerLimits", "Sequence"]
