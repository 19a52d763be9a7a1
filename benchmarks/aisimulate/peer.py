"""A scenario in AISimulate."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.aisimulate.scenarios import START_S, AdditiveSteps, Outcome, Scenario
from tangram.capacity.load.latency import percentiles
from tangram.capacity.load.prefix_cache import BLOCK_TOKENS

FAR = 1e7  # tokens up to which lines are given; AISimulate interpolates


def replayed(scenario: Scenario, python: str) -> Outcome:
    """Replay a scenario by the interpreter `python`, which has AISimulate."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write_trace(scenario, folder / "trace.jsonl")
        _write_step_times(scenario.steps, folder / "steps.npz")
        job = {
            "trace": str(folder / "trace.jsonl"),
            "engine": _engine(scenario, folder / "steps.npz"),
            "replicas": scenario.replicas[0][1],
            "changes": scenario.replicas[1:],
            "hash_tokens": BLOCK_TOKENS,
            "report": str(folder / "report.jsonl"),
            "summary": str(folder / "summary.json"),
        }
        (folder / "job.json").write_text(json.dumps(job))
        script = Path(__file__).with_name("replay_script.py")
        subprocess.run([python, str(script), str(folder / "job.json")], check=True, capture_output=True)
        summary = json.loads((folder / "summary.json").read_text())
        answers = [json.loads(line) for line in (folder / "report.jsonl").read_text().splitlines()]
    return _outcome(scenario, summary, answers)


def version_of(python: str) -> str:
    """Return the version of AISimulate's package that the interpreter has."""
    code = "from importlib.metadata import version; print(version('ai-dynamo-runtime'))"
    return subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def _outcome(scenario: Scenario, summary: dict, answers: list[dict]) -> Outcome:
    if any(answer["terminal_status"] != "completed" for answer in answers):
        raise ValueError(f"{scenario.name}: AISimulate did not serve every request")
    ttft, tpot, attained = [], [], 0
    for answer in answers:
        gaps = answer["output_length"] - 1
        rest_s = (answer["last_token_ms"] - answer["first_token_ms"]) / 1e3
        ttft.append(answer["ttft_ms"] / 1e3)
        tpot += [rest_s / gaps] if gaps else []
        attained += ttft[-1] <= scenario.ttft_s and rest_s <= gaps * scenario.tpot_s
    # It counts replicas until the last answer ends, and orders none after the last change.
    late_s = summary["duration_ms"] / 1e3 - scenario.duration_s
    replica_s = summary["decode_worker_seconds"] - scenario.replicas[-1][1] * late_s
    first, other = percentiles(ttft), percentiles(tpot)
    return Outcome(
        attained / len(scenario.requests),
        (first.p50, first.p90, first.p99),
        (other.p50, other.p90, other.p99),
        replica_s / 3600,
    )


def _engine(scenario: Scenario, step_times: Path) -> dict:
    limits = scenario.limits
    profile = {"type": "external", "provider": "dynamo_profile", "config": {"path": str(step_times)}}
    rank = {
        "backend": "vllm",
        "block_size": limits.block_tokens,
        "num_gpu_blocks": limits.kv_blocks,
        "max_num_seqs": limits.max_running,
        "max_num_batched_tokens": limits.max_batched_tokens,
        "enable_prefix_caching": scenario.prefix_caching,
        "timing_model": profile,
    }
    return {"engine": rank, "startup_time": START_S}


def _write_trace(scenario: Scenario, file: Path) -> None:
    lines, ids = [], 0
    for request in scenario.requests:
        blocks = -(-request.input_tokens // BLOCK_TOKENS)
        unshared = range(ids, ids + blocks)
        line = {
            "timestamp": request.arrival_s * 1e3,
            "input_length": request.input_tokens,
            "output_length": request.output_tokens,
            "hash_ids": list(request.prefix_blocks or unshared),
        }
        lines.append(json.dumps(line))
        ids += blocks
    file.write_text("\n".join(lines) + "\n")


def _write_step_times(steps: AdditiveSteps, file: Path) -> None:
    """Write step times as AISimulate interpolates them: over prompt tokens; over (all contexts, their mean)."""
    least, most = 1e3 * steps.decode, 1e3 * (steps.decode + steps.context_token * FAR)
    np.savez(
        file,
        prefill_isl=np.array([0.0, FAR]),
        prefill_ttft_ms=np.array([0.0, 1e3 * steps.prompt_token * FAR]),
        decode_active_kv_tokens=np.array([0.0, FAR]),
        decode_context_length=np.array([0.0, FAR]),
        decode_itl=np.array([[least, least], [most, most]]),
    )
