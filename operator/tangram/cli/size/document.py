"""The document of a sizing: every row and every rejection, with units in the names."""

import math
from typing import Any

from tangram.capacity.memory.budget import GIB
from tangram.capacity.sizing import Rejection, SizedShape, Sizing
from tangram.catalog import Architecture
from tangram.cli.size.row_simulation import RowSimulation
from tangram.fleet import WHOLE_GPU, Shape


def sizing_document(
    architecture: Architecture, sizing: Sizing, simulation: RowSimulation | None
) -> dict[str, Any]:
    """Return the sizing. Its table has the same rows."""
    request = sizing.request
    document = {
        "model": {
            "name": architecture.name,
            "parameters": architecture.parameters,
            "layers": architecture.layers,
            "precision": architecture.precision,
            "source": architecture.source,
            "served_by_bundled_engine": architecture.served_by_engine,
            "unverified": list(architecture.unverified),
        },
        "request": {
            "input_tokens": _tokens(request.prompts.mean),
            "input_tokens_p90": _tokens(request.prompts.p90),
            "output_tokens": _tokens(request.answers.mean),
            "output_tokens_p90": _tokens(request.answers.p90),
            "rps": request.rps,
            "cv": request.cv,
            "percentile": request.percentile,
            "ttft_ms": request.ttft_ms,
            "tpot_ms": request.tpot_ms,
            "max_model_len": sizing.max_model_len,
            "max_running": request.max_running,
            "kv_precision": request.kv_precision,
            "engine": request.engine,
            "engine_version": request.engine_version,
        },
        "rows": [{"rank": rank, **_row(row)} for rank, row in enumerate(sizing.rows, 1)],
        "rejected": [_rejection(rejection) for rejection in sizing.rejected],
    }
    if simulation is not None:
        document["simulation"] = simulation.document()
    return document


def _shape(shape: Shape) -> dict[str, Any]:
    return {
        "sku": shape.sku,
        "profile": None if shape.profile == WHOLE_GPU else shape.profile,
        "tensor_parallel": shape.tensor_parallel,
        "precision": shape.precision,
    }


def _row(row: SizedShape) -> dict[str, Any]:
    budget = row.budget
    return {
        **_shape(row.shape),
        "memory_gib_per_gpu": {
            "total": budget.total / GIB,
            "weights": budget.weights / GIB,
            "kv_used": row.kv_used / GIB,
            "buffers": budget.overhead / GIB,
            "free": (budget.kv - row.kv_used) / GIB,
        },
        "concurrent_requests_p90": row.concurrent,
        "max_rps_per_replica": row.max_rate,
        "replicas": row.replicas,
        "gpus": row.gpus,
        "running_requests_per_replica": row.latency.concurrency,
        "utilisation": row.latency.utilisation,
        "ttft_ms": row.ttft_s * 1e3,
        "tpot_ms": row.tpot_s * 1e3,
        "wall": row.wall,
        "usd_per_hour": row.usd_per_hour,
        "usd_per_million_output_tokens": row.usd_per_million_tokens,
        "price_is_default": row.default_price,
        "calibration": {
            "basis": str(row.calibrated.basis),
            "key": row.calibrated.key,
            "points": row.calibrated.points,
            "tpot_error_p50": row.calibrated.error_p50,
            "tpot_error_p90": row.calibrated.error_p90,
        },
        "unverified": list(row.unverified),
    }


def _rejection(rejection: Rejection) -> dict[str, Any]:
    change = rejection.relaxation
    return {
        **_shape(rejection.shape),
        "constraint": str(rejection.constraint),
        "message": rejection.message,
        "excess": None if math.isinf(rejection.excess) else rejection.excess,
        "relaxation": change and {"changes": dict(change.changes), "text": change.text},
    }


def _tokens(tokens: float) -> float:
    """Return a mean of counted lengths to a tenth, whole numbers as integers."""
    return int(tokens) if float(tokens).is_integer() else round(tokens, 1)
