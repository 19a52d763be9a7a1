"""The rates of a replica, from the capacity model of its shape."""

import math

from tangram.capacity.load.engine_limits import EngineLimits
from tangram.capacity.steps.step_model import StepModel
from tangram.routing.replica import ReplicaRates

# Where the lines are drawn through the step model: a few contexts and batches of everyday traffic.
_FEW, _MANY = 1, 64
_SHORT, _LONG = 512, 4096


def replica_rates(
    model: StepModel,
    limits: EngineLimits,
    *,
    tpot_objective_s: float = math.inf,
    gpus: float = 1.0,
) -> ReplicaRates:
    """Return lines through a step model: decode steps by batch and context, prompts by length."""
    batch = min(_MANY, limits.max_running)
    few, many = model.step_s(_FEW, _SHORT).total, model.step_s(batch, _SHORT).total
    per_token = (model.step_s(batch, _LONG).total - many) / (batch * (_LONG - _SHORT))
    per_running = max(0.0, (many - few) / max(1, batch - _FEW) - per_token * _SHORT)
    base = max(0.0, few - _FEW * (per_running + per_token * _SHORT))
    chunk = limits.max_batched_tokens
    alone = model.step_s(0, 0, chunk, 0).total
    behind = model.step_s(0, 0, chunk, _LONG).total
    return ReplicaRates(
        prefill_tokens_per_s=chunk / alone,
        prefill_per_pair_s=max(0.0, behind - alone) / (chunk * _LONG),
        step_base_s=base,
        step_per_running_s=per_running,
        step_per_context_token_s=per_token,
        most_running=limits.max_running,
        kv_tokens=limits.kv_tokens,
        tpot_objective_s=tpot_objective_s,
        gpus=gpus,
    )
