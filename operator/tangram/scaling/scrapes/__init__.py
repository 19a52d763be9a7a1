"""Scrapes of engines, kept and evaluated as Prometheus would: the `Sample` that the queries would give.

In: rows of values, one for each scrape of a target. Out: values as PromQL computes them over instants and
windows, and the `Sample` of an LLMDeployment. The operator fills it with the pages of its pods where there is
no Prometheus, the simulator with those of its engines.
"""

from tangram.scaling.scrapes.metrics_view import MetricsView
from tangram.scaling.scrapes.page_layout import PageLayout, Row
from tangram.scaling.scrapes.range_selection import RangeSelection
from tangram.scaling.scrapes.sample_from_scrapes import query_results, read_sample
from tangram.scaling.scrapes.scrape_store import ScrapeStore

__all__ = [
    "MetricsView",
    "PageLayout",
    "RangeSelection",
    "Row",
    "ScrapeStore",
    "query_results",
    "read_sample",
]
