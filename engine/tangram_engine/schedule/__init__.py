"""Who computes what in the next step: continuous batching under one token budget, without torch."""

from tangram_engine.schedule.batch import Row, ScheduledBatch
from tangram_engine.schedule.request import Request
from tangram_engine.schedule.scheduler import Limits, Scheduler
from tangram_engine.schedule.sequence import Sequence

__all__ = ["Limits", "Request", "Row", "ScheduledBatch", "Scheduler", "Sequence"]
