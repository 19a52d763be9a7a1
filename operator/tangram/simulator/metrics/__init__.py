"""What a scaling law sees of simulated engines: their metrics pages, scraped by a simulated Prometheus.

In: events of engines, the instants of scrapes, outages. Out: values as PromQL computes them, and the
`Sample` that the operator would read. No scaling law reads the state of the simulator.
"""

from tangram.simulator.metrics.engine_page import EnginePage
from tangram.simulator.metrics.metrics_view import MetricsView
from tangram.simulator.metrics.prometheus import PrometheusDown, SimulatedPrometheus
from tangram.simulator.metrics.reading import read_sample

__all__ = ["EnginePage", "MetricsView", "PrometheusDown", "SimulatedPrometheus", "read_sample"]
