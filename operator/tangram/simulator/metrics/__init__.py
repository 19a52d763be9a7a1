"""What a scaling law sees of simulated engines: their metrics pages, scraped by a simulated Prometheus.

In: events of engines, the instants of scrapes, outages. Out: a store of scrapes (`tangram.scaling.scrapes`),
which a scaling law reads through a `MetricsView`. No scaling law reads the state of the simulator.
"""

from tangram.simulator.metrics.engine_page import EnginePage
from tangram.simulator.metrics.prometheus import PrometheusDown, SimulatedPrometheus

__all__ = ["EnginePage", "PrometheusDown", "SimulatedPrometheus"]
