"""The status of a GPUNode in which every field has a value, as a node agent writes it."""

from typing import Any

GPU_A, GPU_B = (f"GPU-00000000-0000-0000-0000-00000000000{letter}" for letter in "ab")
WHEN = "2026-11-26T10:00:00Z"


def condition(kind: str, verdict: str, reason: str, **waiting: str) -> dict[str, Any]:
    """Return a condition."""
    found = {"type": kind, "status": verdict, "observedGeneration": 3, "lastTransitionTime": WHEN}
    return found | {"since": WHEN, "reason": reason, "message": "in a sentence"} | waiting


STATUS: dict[str, Any] = {
    "observedGeneration": 3,
    "conditions": [
        condition("Ready", "True", "Reported"),
        condition("Applied", "False", "WaitingForPods", waitsFor="pod d/chat-0", deadline=WHEN),
    ],
    "nodeUID": "0b6a2b0e-0000-0000-0000-000000000000",
    "bootID": "f2a1f9c3-0000-0000-0000-000000000000",
    "backend": "NVML",
    "backendVersion": "0.1.0",
    "driverVersion": "580.65.06",
    "gpuCount": 2,
    "layoutDisplay": "4g.40gb+3g.40gb, gpu",
    "appliedDisplay": "1/2",
    "gpus": [
        {
            "id": GPU_A,
            "index": 0,
            "product": "NVIDIA H100 80GB HBM3",
            "sku": "H100-80GB-SXM",
            "migMode": "Enabled",
            "instances": [
                {
                    "uuid": "MIG-00000000-0000-0000-0000-00000000000a",
                    "profile": "4g.40gb",
                    "start": 0,
                    "memoryMebibytes": 40448,
                    "usage": "Held",
                    "holder": {"namespace": "d", "name": "chat-0", "uid": "u"},
                },
                {"profile": "3g.40gb", "start": 4, "memoryMebibytes": 40448, "usage": "Free"},
            ],
            "attempts": {
                "count": 2,
                "code": 19,
                "error": "IN_USE",
                "message": "destroy 3g.40gb@4: a process uses it",
                "nextTry": WHEN,
            },
        },
        {"id": GPU_B, "index": 1, "migMode": "Disabled", "pendingMigMode": "Enabled", "usage": "Free"},
    ],
    "quarantine": [
        {"uuid": GPU_B, "reason": "RepeatedFailure", "message": "three attempts failed", "since": WHEN}
    ],
}
