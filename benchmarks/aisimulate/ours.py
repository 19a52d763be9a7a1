"""A scenario in `tangram.simulator`: a whole run, with the gateway, control rounds, pods and engines."""

from __future__ import annotations

from unittest.mock import patch

from benchmarks.aisimulate.scenarios import START_S, Outcome, Scenario
from benchmarks.paced_cluster.recording import Course
from benchmarks.paced_cluster.simulation import RecordedOrders
from tangram.capacity.steps.decode_runs import DecodeTimes
from tangram.catalog import known_model
from tangram.fleet import Intent, MIGPolicy, Node, Objective, Shape
from tangram.simulator.cluster.engine_setups import EngineSetup, EngineSetups
from tangram.simulator.cluster.start_times import Delay, StartTimes
from tangram.simulator.cluster.well_known_facts import well_known_facts
from tangram.simulator.result.attainment import Verdict
from tangram.simulator.run import SimulatedLLMDeployment, SimulationSettings, run
from tangram.simulator.serving.gateway import Router
from tangram.simulator.traffic.trace import Trace

MODEL, SKU, GPUS = "Llama-3.1-8B", "A100-80GB-SXM", 8
LONGEST = 131_072  # tokens of a request
DAY_S = 86_400  # no request times out


def simulated(scenario: Scenario) -> Outcome:
    """Simulate a scenario."""
    served = SimulatedLLMDeployment(
        _intent(scenario),
        well_known_facts(known_model(MODEL)),
        Trace(scenario.requests),
        RecordedOrders(Course(scenario.replicas), lead_s=0.0, interval_s=15.0),
        StartTimes(0.0, Delay(0.0), Delay(START_S), Delay(0.0), endpoint_lag_s=0.0),
        initial_replicas=scenario.replicas[0][1],
    )
    node = Node("node", SKU, SKU, True, (("nvidia.com/gpu", GPUS),), gpus=GPUS)
    settings = SimulationSettings(
        (node,),
        duration_s=scenario.duration_s,
        router=Router.ROUND_ROBIN,
        prefix_caching=scenario.prefix_caching,
    )
    with patch.object(EngineSetups, "setup", lambda _setups, _uid, shape: _engine(scenario, shape)):
        result = run((served,), settings).deployments[0]
    judged = result.attainment
    return Outcome(
        dict(judged.verdicts).get(str(Verdict.ATTAINED), 0) / judged.requests,
        (judged.ttft_s.p50, judged.ttft_s.p90, judged.ttft_s.p99),
        (judged.tpot_s.p50, judged.tpot_s.p90, judged.tpot_s.p99),
        result.use.gpu_hours,  # a replica is one GPU
    )


def _engine(scenario: Scenario, shape: Shape) -> EngineSetup:
    return EngineSetup(
        shape, scenario.steps, scenario.limits, DecodeTimes(scenario.steps), LONGEST, request_s=0.0
    )


def _intent(scenario: Scenario) -> Intent:
    return Intent(
        uid="1",
        namespace="default",
        name="chat",
        generation=1,
        created_at=1_800_000_000.0,
        model_uri=f"image:///models/{MODEL}",
        served_name="chat",
        max_model_len=LONGEST,
        max_running_requests=scenario.limits.max_running,
        ttft=Objective(90, round(1e3 * scenario.ttft_s)),
        tpot=Objective(90, round(1e3 * scenario.tpot_s)),
        allowed_skus=(SKU,),
        denied_skus=(),
        mig=MIGPolicy.FORBIDDEN,
        min_replicas=1,
        max_replicas=GPUS,
        paused=False,
        max_request_s=DAY_S,
    )
