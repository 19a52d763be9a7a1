"""The law in a simulation beside the operator's scaler, with the same Deployments, readings and plans."""

from collections.abc import Iterable

from tangram.catalog.prices import Prices
from tangram.fleet import Decision, Intent, Objective, Shape, Traffic, Workload
from tangram.scaling import Sample
from tangram.shell.measure.metrics_readings import Reading
from tangram.shell.measure.predicted_capacities import CapacityInputs
from tangram.shell.measure.scaler import Scaler, provisioned_loads
from tangram.simulator.cluster.engine_setups import EngineSetups
from tangram.simulator.cluster.faults import InjectedFaults, NodeFailure
from tangram.simulator.cluster.observed_fleet import DesiredReplicas
from tangram.simulator.cluster.start_times import Delay, StartTimes
from tangram.simulator.control.operator_law import OperatorLaw
from tangram.simulator.controllers import ControllerView, LawKnowledge
from tangram.simulator.run import SimulationSettings, run
from tests.support.fleet import FACTS_8B, node, shape
from tests.support.simulated_fleets import h100_nodes, poisson_trace, served, served_intent

H100, A100 = shape(), shape(sku="A100-80GB-SXM")
START_S = 75.0
Round = tuple[ControllerView, Sample | None, str, DesiredReplicas]


class RecordedLaw(OperatorLaw):
    """Keeps what it saw and decided, and the plans that it went on from, in order."""

    def __init__(self, intent: Intent, known: LawKnowledge) -> None:
        super().__init__(intent, known.capacity_on, start_s=START_S)
        self.events: list[Round | tuple[Decision, tuple[Workload, ...]]] = []
        self.problem = ""

    def decide(self, view: ControllerView) -> int:
        replicas = super().decide(view)
        self.events.append((view, self._sample, self.problem, self.desired(0)))
        return replicas

    def adopt(self, decision: Decision, workloads: Iterable[Workload]) -> None:
        workloads = tuple(workloads)
        super().adopt(decision, workloads)
        self.events.append((decision, workloads))

    def _read(self, view: ControllerView) -> str:
        self.problem = super()._read(view)
        return self.problem


class RecordedReadings:
    """The source of metrics of the scaler: the readings of the simulated law."""

    def __init__(self) -> None:
        self.now = Reading()
        self.histories = self

    def of(self, _uid: str) -> None:
        return None

    def reading(self, _intent: Intent) -> Reading:
        return self.now

    def clear(self) -> None:
        self.now = Reading()


def test_it_decides_as_the_operators_scaler_does_while_replicas_move_to_another_shape() -> None:
    trace = poisson_trace(48_000, 40.0, input_tokens=1500)
    prompts, answers = trace.lengths
    intent = served_intent(
        ttft=Objective(95, 1000),
        tpot=Objective(95, 50),
        min_replicas=4,
        traffic=Traffic(None, prompts, answers),
    )
    engines = EngineSetups([(intent, FACTS_8B)], Prices({}))
    known = LawKnowledge(intent, engines.setup(intent.uid, H100), prompts, answers, 60.0, engines)
    law = RecordedLaw(intent, known)
    nodes = (*h100_nodes(2, 6), node("a0", A100.sku, gpu=7))
    settings = SimulationSettings(
        nodes, seed=1, faults=InjectedFaults(node_failures=(NodeFailure("n1", 600.0),))
    )
    changes = {name: getattr(intent, name) for name in ("ttft", "tpot", "min_replicas", "traffic")}
    starts = StartTimes(1.0, Delay(0.0), Delay(40.0, 0.2), Delay(18.0, 0.2), 1.0)
    run((served(trace, law, intent_changes=changes, start_times=starts, initial_replicas=8),), settings)

    readings = RecordedReadings()
    scaler = Scaler(law.params, readings)
    start_s: dict[tuple[str, Shape], float] = {(intent.uid, at): START_S for at in (H100, A100)}
    inputs = CapacityInputs({intent.uid: FACTS_8B}, start_s)
    simulated, decided, mixed = [], [], 0
    for event in law.events:
        if len(event) == 2:
            scaler.adopt([event[0]], event[1])
            continue
        view, sample, problem, desired = event
        readings.now = Reading(sample, problem)
        # Like an operator that begins to lead: the status has the replicas and the shape that they count.
        result = scaler.decide(
            (intent,),
            view.workloads,
            {intent.uid: view.replicas},
            view.now,
            {intent.uid: H100.variant},
            capacity_inputs=inputs,
        )
        load = dict(provisioned_loads(result)).get(intent.uid)
        counted = dict(scaler.counted_shapes()).get(intent.uid)
        simulated.append(desired)
        decided.append(DesiredReplicas(result[intent.uid].decision.replicas, counted, load))
        mixed += sum(workload.ready > 0 for workload in view.workloads) > 1

    assert mixed > 10
    assert simulated[-1].load is not None
    assert len({desired.replicas for desired in simulated}) > 3
    assert decided == simulated
