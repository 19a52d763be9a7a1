"""Checkpoints as publishers configured them: `checkpoints.jsonl.gz`, one JSON object a line.

`config` is config.json without keys that change no tensor and no cache. `hf_quant_config.json` is merged in.
`config_from` says where it was read. `parameters` are those of the class in transformers 5, built on the meta
device: drafts are not among them, and a tied head counts once. It has no class for Llama-Nemotron and
MiMo-7B: theirs are counted by hand. `stored_bytes` are published, as `stored_bytes_from` says. Configurations
state sizes only: no licence of weights extends to them.
"""

import gzip
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class RealCheckpoint:
    """One published checkpoint."""

    repo: str
    config: dict[str, Any]
    parameters: int
    stored_bytes: int | None


@cache
def real_checkpoints() -> dict[str, RealCheckpoint]:
    """Return all of them by repository."""
    lines = gzip.decompress((Path(__file__).parent / "checkpoints.jsonl.gz").read_bytes()).splitlines()
    entries = [json.loads(line) for line in lines]
    return {
        entry["repo"]: RealCheckpoint(
            entry["repo"], entry["config"], entry["parameters"], entry.get("stored_bytes")
        )
        for entry in entries
    }
