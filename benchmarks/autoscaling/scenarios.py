"""The scenarios: a trace, the replicas that serve it and its objectives. One table; all laws run in each.

Model and GPU profile are chosen such that the mean load needs 3 to 8 replicas (fewer: rounding decides, not the
law) and that the load at which half of all requests miss their objectives is little above the one at which one in
a hundred does (`rates` of a `PreparedScenario`): there, cost and attainment tell laws apart. A request that misses its
objectives even alone on an idle replica counts apart, not as a miss of the law.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tangram.simulator
from benchmarks.autoscaling import traffic_kinds
from benchmarks.autoscaling.client_traffic import CLIENTS, RATES
from benchmarks.autoscaling.traffic_kinds import KINDS
from tangram.fleet import WHOLE_GPU, Shape

PACKAGED = Path(tangram.simulator.__file__).parent / "traces"
HERE = Path(__file__).parent / "traces"


@dataclass(frozen=True, slots=True)
class Scenario:
    """One trace and the replicas that serve it."""

    name: str
    trace: Path
    rate_factor: float
    model: str
    sku: str
    profile: str
    ttft_ms: int
    tpot_ms: int
    max_model_len: int
    start_s: float  # mean, from an order to the first request, on a node that has the image
    start_cv: float = 0.3  # of loading the weights
    max_running: int = 64
    seeds: int = 10
    is_bisected: bool = False  # of a law's knob, the values around the attainments are run, not all
    cut_s: tuple[float, float] | None = None  # a part of the trace; None: all of it
    client: int | None = None  # the trace has rates of clients, and `rate_factor` is the mean of this one
    kind: str = ""  # the trace is generated, of this kind

    @property
    def shape(self) -> Shape:
        return Shape(self.sku, self.profile, 1, "bf16")

    @property
    def node(self) -> str:
        return WHOLE_GPU if self.profile == WHOLE_GPU else f"mig-{self.profile}"


H100, A100 = "H100-80GB-SXM", "A100-80GB-SXM"
CONV, CODE = PACKAGED / "azure2023_conv.csv.gz", PACKAGED / "azure2023_code.csv.gz"
MOONCAKE = HERE / "mooncake_conversation_00-30min.jsonl.gz"
DAY1, DAY3 = HERE / "servegen_mlarge_day01_x0.012.csv.gz", HERE / "servegen_mlarge_day03_x0.012.csv.gz"
REASONING = HERE / "servegen_r1_00-12h_x0.06.csv.gz"

LONG: dict[str, Any] = {"seeds": 3, "is_bisected": True}

# name, trace, times its rate, model, SKU, profile, TTFT (ms), TPOT (ms), longest request (tokens), start (s)
SCENARIOS = (
    Scenario("conv", CONV, 2, "Qwen3-32B", H100, WHOLE_GPU, 2500, 100, 16_384, 90),
    Scenario("code", CODE, 2, "Qwen3-14B", H100, "3g.40gb", 5000, 200, 10_240, 60),
    Scenario("mooncake", MOONCAKE, 2, "Llama-3.1-8B", H100, WHOLE_GPU, 10_000, 200, 131_072, 60),
    Scenario("day1", DAY1, 3, "Llama-3.1-8B", A100, "2g.20gb", 5000, 150, 8192, 90, **LONG),
    Scenario("day3", DAY3, 1.5, "Llama-3.1-8B", "L4", WHOLE_GPU, 5000, 150, 8192, 120, **LONG),
    Scenario("reasoning", REASONING, 1.5, "Qwen3-14B", A100, WHOLE_GPU, 5000, 75, 40_960, 90, **LONG),
)
# Four hours of a client each: what no law was shaped by.
_ONCE: dict[str, Any] = LONG | {"seeds": 1}
UNSEEN = tuple(
    Scenario(
        f"client-{n}", RATES, 2.3, "Llama-3.1-8B", "L4", WHOLE_GPU, 5000, 150, 8192, 90, **_ONCE, client=n
    )
    for n in CLIENTS
)
# Kinds of traffic. Where requests are long, the objectives, or the model, are those of which one replica meets some.
_CHAT = ("Qwen3-14B", 3000, 80)
_LONG_REQUESTS = {
    "long-answers": ("Qwen3-14B", 5000, 80),
    "long-prompts": ("Qwen3-14B", 5000, 80),
    "two-classes": ("Llama-3.1-8B", 5000, 200),
    "answers-and-prompts": ("Qwen3-14B", 5000, 80),
    "bursty-classes": ("Llama-3.1-8B", 5000, 200),
    "short-answers": ("Llama-3.1-8B", 10_000, 100),
}
_USUAL_SHAPE, _SHAPES = (A100, "3g.40gb", 32_768), {"short-answers": (H100, WHOLE_GPU, 131_072)}


def of_kind(name: str) -> Scenario:
    """Return the scenario of a kind of traffic."""
    sku, profile, max_model_len = _SHAPES.get(name, _USUAL_SHAPE)
    model, ttft_ms, tpot_ms = _LONG_REQUESTS.get(name.partition("@")[0], _CHAT)
    return Scenario(
        name,
        Path(traffic_kinds.__file__),
        1,
        *(model, sku, profile, ttft_ms, tpot_ms, max_model_len, 60),
        seeds=2,
        is_bisected=True,
        kind=name,
    )


OF_KINDS = tuple(of_kind(name) for name in KINDS)
DEFAULT = tuple(scenario.name for scenario in SCENARIOS)
BY_NAME = {scenario.name: scenario for scenario in (*SCENARIOS, *UNSEEN, *OF_KINDS)}
# The smoke: a few minutes of `conv`.
QUICK = Scenario(
    "quick", CONV, 1, "Qwen3-32B", H100, WHOLE_GPU, 2500, 100, 16_384, 60, seeds=1, cut_s=(600.0, 1200.0)
)
