"""One way to run the model on some of the eight cards, and what Tangram's capacity model says of it.

Nothing is modelled here: `tangram.capacity` gives step times (`steps.step_model`), memory (`memory`), the
rate within an objective (`load.latency`), and by step simulation what users see. A setup only changes inputs.
"""

from dataclasses import dataclass, replace
from functools import cache
from statistics import median

from assumed import ENGINE, GOAL, NAIVE, TEAM, TRAFFIC

from tangram.capacity.hardware import PCIE_GBPS, hardware
from tangram.capacity.load.engine_limits import EngineLimits
from tangram.capacity.load.latency import ReplicaUnderLoad
from tangram.capacity.load.simulate import SimResult, simulate
from tangram.capacity.load.traffic import SimulatedRequest, open_traffic
from tangram.capacity.memory.budget import EngineSettings, memory_budget
from tangram.capacity.memory.footprint import footprint
from tangram.capacity.steps.calibration import coefficients_for
from tangram.capacity.steps.step_model import StepModel
from tangram.catalog import known_model
from tangram.catalog.prices import Prices
from tangram.fleet import Objective

MODEL = known_model(TEAM.model)
PER_REQUEST = TRAFFIC.input_tokens + TRAFFIC.output_tokens
SEED = 2023
SIMULATED = 4000  # requests; more where each is served alone: the median is slow to settle there


@dataclass(frozen=True)
class Setup:
    """Inputs of the capacity model. `launch_gap_s`: per layer and step, where kernels are launched singly."""

    cards: int
    tensor_parallel: int
    weights: str = "fp16"
    kv: str = "fp16"
    at_once: int = ENGINE.at_once
    kv_waste: float = ENGINE.kv_waste
    launch_gap_s: float = 0.0
    nvlink: bool = True

    @property
    def replicas(self) -> int:
        """Groups of cards that hold the model."""
        return self.cards // self.tensor_parallel

    @property
    def usd_per_hour(self) -> float:
        """At the catalog's price."""
        return self.cards * (Prices().gpu_hour(TEAM.sku) or 0.0)

    def model(self) -> StepModel:
        """Step times of one replica."""
        board = hardware(TEAM.sku)
        if not self.nvlink:
            board = replace(board, nvlink=False, link_bandwidth=PCIE_GBPS[NAIVE.pcie_gen] * 1e9)
        known = coefficients_for(ENGINE.name, None, self.weights, TEAM.sku, MODEL.name).coefficients
        known = replace(known, layer_s=known.layer_s + self.launch_gap_s)
        return StepModel(footprint(MODEL, self.weights, self.kv, self.tensor_parallel, board), board, known)

    def limits(self) -> EngineLimits:
        """Slots and room for KV; raises `ValueError` where not even one request of full length fits."""
        model = self.model()
        asked = EngineSettings(
            TRAFFIC.longest_request, self.at_once, max_batched_tokens=ENGINE.tokens_per_step
        )
        budget = memory_budget(model.footprint, model.hardware, asked)
        if not budget.fits:
            raise ValueError(str(budget))
        # What one request reserves is there for it even where waste leaves no second one.
        room = max(int(budget.kv_tokens * (1 - self.kv_waste)), TRAFFIC.longest_request)
        return EngineLimits(self.at_once, ENGINE.tokens_per_step, room)

    def carries(self) -> float:
        """Requests per second that all replicas take with P50 TTFT within the goal."""
        mean = TRAFFIC.input_tokens, TRAFFIC.output_tokens
        ttft = Objective(50, GOAL.ttft_p50_s * 1e3)
        replica = ReplicaUnderLoad(self.model(), self.limits(), *mean, TRAFFIC.gaps_cv)
        return replica.max_rate(ttft) * self.replicas

    def simulated(self, rate: float) -> tuple[list[SimulatedRequest], SimResult]:
        """One replica under its part of `rate` requests per second."""
        requests = _requests(SIMULATED * 2 if self.at_once == 1 else SIMULATED, rate / self.replicas)
        return requests, simulate(self.model(), self.limits(), requests)


@cache
def _requests(count: int, rate: float) -> list[SimulatedRequest]:
    """Requests of one replica, the same for every setup under this rate."""
    mean = TRAFFIC.input_tokens, TRAFFIC.output_tokens
    drawn = open_traffic(count, rate, *mean, TRAFFIC.gaps_cv, SEED)
    return [_cut(request) for request in drawn]


def _cut(request: SimulatedRequest) -> SimulatedRequest:
    """No request is longer than the model's context."""
    prompt = min(request.input_tokens, TRAFFIC.longest_request // 8 * 7)
    return replace(
        request,
        input_tokens=prompt,
        output_tokens=min(request.output_tokens, TRAFFIC.longest_request - prompt),
    )


@dataclass(frozen=True)
class Seen:
    """What users and dashboards see of a setup under a load."""

    rate: float  # requests per second, all replicas
    ttft_p50_s: float
    tpot_p50_s: float
    tensor_pipes: float  # FLOP done over what the data sheet allows
    memory_wire: float  # bytes moved over what the data sheet allows
    spent: dict[str, float]  # share of the time by what it is spent on; "idle" included; adds up to 1

    @property
    def utilisation(self) -> float:
        """Share of the time in which a kernel runs: what nvidia-smi shows."""
        return 1 - self.spent["idle"] - self.spent["launch gaps"]

    @property
    def answer_tokens_per_s(self) -> float:
        """Generated tokens."""
        return self.rate * TRAFFIC.output_tokens

    @property
    def tokens_per_s(self) -> float:
        """Prompts and answers."""
        return self.rate * PER_REQUEST


def seen(setup: Setup, rate: float) -> Seen:
    """Simulate one replica under its part of `rate`."""
    model, (requests, result) = setup.model(), setup.simulated(rate)
    pipes, wire = _data_sheet_seconds(model, requests, result)
    return Seen(
        rate=rate,
        ttft_p50_s=median(result.ttft_s) + model.coefficients.request_s,
        tpot_p50_s=median(result.tpot_s),
        tensor_pipes=pipes / result.duration_s,
        memory_wire=wire / result.duration_s,
        spent=_spent(model, result),
    )


def _data_sheet_seconds(
    model: StepModel, requests: list[SimulatedRequest], result: SimResult
) -> tuple[float, float]:
    """Seconds that FLOP and bytes of one rank would take if nothing but the data sheet held them up."""
    foot, board = model.footprint, model.hardware
    answered = sum(request.output_tokens for request in requests)
    linear = (result.prefill_tokens + answered) * foot.linear_flops_per_token
    half = answered * foot.head_flops_per_token
    read = result.steps * foot.weight_read_bytes(1)
    for request in requests:
        prompt, answer = request.input_tokens, request.output_tokens
        half += foot.attention_flops_of(prompt, prompt / 2) + foot.attention_flops_of(
            answer, prompt + answer / 2
        )
        read += answer * foot.kv_bytes(prompt + answer / 2) + foot.kv_bytes(prompt + answer)
    pipes = linear / (board.flops_of(foot.compute) or 1) + half / (board.flops_of("bf16") or 1)
    return pipes, read / board.bandwidth


def _spent(model: StepModel, result: SimResult) -> dict[str, float]:
    """Where the time goes: steps that carry one prompt, steps that carry none, and nothing to do."""
    worked = result.utilisation
    running = max(1.0, result.mean_running / worked)
    context = PER_REQUEST - TRAFFIC.output_tokens / 2
    kinds = (
        (
            result.prefill_s,
            model.step_s(running - 1, context, TRAFFIC.input_tokens, TRAFFIC.input_tokens / 2),
        ),
        (result.decode_s, model.decode_s(running, context)),
    )
    spent = {"idle": 1 - worked}
    for name, part in (
        ("launch gaps", lambda step: step.launch_s),
        ("interconnect", lambda step: step.communication_s),
        ("memory wire", lambda step: step.weights_s + step.kv_s),
        ("tensor pipes", lambda step: step.compute_s),
    ):
        spent[name] = sum(seconds * part(step) / step.total for seconds, step in kinds) / result.duration_s
    return spent
