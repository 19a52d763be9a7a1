"""Traffic of single clients of a production service, from their published rates and burstiness.

No scaling law was shaped by it: what is measured on the other traces is judged on these.
"""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from tangram.fleet.lengths import Lengths
from tangram.simulator.traffic.synthetic_traffic import RatePoint, TrafficDescription, generated
from tangram.simulator.traffic.trace import Trace

RATES = Path(__file__).parent / "traces" / "servegen_clients_day05_08-12h.csv"
CLIENTS = (20, 34, 78, 104, 142, 153)  # every third of those that send all the time, by their number
PROMPT_P90, ANSWER_P90 = 1.7, 2.5  # over their means, as in the resampled traces of the same service


def client_traffic(client: int, mean_rate: float) -> Trace:
    """Return requests of one client at another mean rate (per second): rates, linear between two published
    ones, and the spread of gaps are the client's; lengths have the means of the whole service.
    """
    with RATES.open() as file:
        rows = [row for row in csv.DictReader(file) if int(row["client_id"]) == client]
    rates = tuple(RatePoint(float(row["at_s"]), float(row["requests_per_second"])) for row in rows)
    weights = [point.requests_per_second for point in rates]

    def mean(column: str) -> float:
        return fmean((float(row[column]) for row in rows), weights)

    prompts, answers = mean("mean_input_tokens"), mean("mean_output_tokens")
    description = TrafficDescription(
        rates,
        Lengths(prompts, PROMPT_P90 * prompts),
        Lengths(answers, ANSWER_P90 * answers),
        mean("cv"),
    )
    factor = mean_rate * (rates[-1].at_s - rates[0].at_s) / description.expected_requests
    scaled = tuple(RatePoint(point.at_s, factor * point.requests_per_second) for point in rates)
    return generated(replace(description, rates=scaled), client)
