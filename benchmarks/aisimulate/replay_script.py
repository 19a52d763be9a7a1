"""One replay in AISimulate, by an interpreter that has `ai-dynamo-runtime` and nothing of this repository.

python replay_script.py JOB     JOB: JSON as `peer.replayed` writes it
"""

import json
import sys
from pathlib import Path

from dynamo._core import run_mocker_trace_replay


class OrderedReplicas:
    """A scaling policy that reads nothing: (second, replicas), in the order of time."""

    def __init__(self, changes: list) -> None:
        self.changes = changes

    def initial_tick_ms(self) -> float:
        return self.changes[0][0] * 1e3 if self.changes else float("inf")

    def on_tick(self, _snapshot: dict) -> dict:
        _, replicas = self.changes.pop(0)
        at_ms = self.changes[0][0] * 1e3 if self.changes else None
        return {"target_prefill": None, "target_decode": replicas, "next_tick_ms": at_ms}


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    replay = run_mocker_trace_replay(
        [job["trace"]],
        extra_engine_args=job["engine"],
        num_workers=job["replicas"],
        trace_block_size=job["hash_tokens"],
        report_jsonl_path=job["report"],
        scaling_policy=OrderedReplicas(job["changes"]) if job["changes"] else None,
    )
    Path(job["summary"]).write_text(json.dumps(replay.summary))


if __name__ == "__main__":
    main()
