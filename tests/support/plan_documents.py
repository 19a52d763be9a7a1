"""Made-up plan documents of large fleets: valid by the schema, but not good plans."""

import random
from typing import Any

SLICES = (("3g.40gb", 4), ("2g.20gb", 2), ("1g.10gb", 1), ("1g.10gb", 0))


def large_plan(gpus: int = 10_000, deployments: int = 500, seed: int = 7, long_names: bool = False) -> Any:
    """A plan in which nearly every layout differs: the worst case for classes of layouts."""
    rng = random.Random(seed)
    pad = "x" * (30 if long_names else 0)
    names = [(f"team-{i % 40:02d}{pad}", f"model-{i:03d}{pad}") for i in range(deployments)]
    owners = [f"{namespace}/{name}" for namespace, name in names]
    layouts = [_gpu(i, rng, owners) for i in range(gpus)]
    return {
        "objective": 21_345.678901,
        "bound": 21_000.0,
        "gap": 0.0161,
        "status": "FEASIBLE",
        "gpusInUse": sum(gpu["inUse"] for gpu in layouts),
        "costPerHour": 21_300.5,
        "idlePerHour": 120.25,
        "moveCost": 45.1789,
        "horizonHours": 1.0,
        "gpus": layouts,
        "newNodes": [{"pool": "spot", "count": 3}],
        "deployments": [_deployment(rng, *name) for name in names],
        "requests": [],
        "moves": [_move(i, rng, owners) for i in range(gpus // 2)],
        "unmet": [
            {"name": owner, "priority": rng.randrange(5), "share": 0.5, "reason": "no GPU is left " * 20}
            for owner in owners
        ],
        "steps": [_step(i, rng, owners) for i in range(1, gpus * 3)],
        "stepsMissing": {"text": "one free H100-80GB-SXM " * 500},
        "notes": ["a node of an unknown kind " * 200] * 100,
    }


def _gpu(i: int, rng: random.Random, owners: list[str]) -> dict[str, Any]:
    node = f"{i // 8:04d}.gpu.example.com"
    instances = [
        {"profile": p, "start": s, "owner": rng.choice(owners)} for p, s in SLICES if rng.random() < 0.9
    ]
    free = [{"profile": "1g.10gb", "start": 6}] if rng.random() < 0.2 else []
    return {
        "id": f"{node}/{i % 8}",
        "node": node,
        "sku": "H100-80GB-SXM",
        "inUse": bool(instances),
        "recut": rng.random() < 0.3,
        "inferred": True,
        "instances": instances,
        "free": free,
    }


def _deployment(rng: random.Random, namespace: str, name: str) -> dict[str, Any]:
    chosen = [
        {
            "sku": "H100-80GB-SXM",
            "profile": profile,
            "tensorParallel": 1,
            "precision": "bf16",
            "replicas": rng.randrange(1, 100),
            "requestsPerSecond": 12.5,
            "unverified": [],
        }
        for profile in ("3g.40gb", "gpu")
    ]
    return {
        "name": name,
        "namespace": namespace,
        "model": "Llama-3.1-8B",
        "chosen": chosen,
        "costPerHour": rng.random() * 100,
        "unmet": 0.5,
        "alternatives": [],
        "notes": [],
    }


def _move(i: int, rng: random.Random, owners: list[str]) -> dict[str, Any]:
    site = {"gpu": f"{i:04d}.gpu.example.com/3", "profile": "2g.20gb", "start": 2}
    return {"owner": rng.choice(owners), "from": site, "to": site | {"start": 0}, "cost": 0.0025}


def _step(i: int, rng: random.Random, owners: list[str]) -> dict[str, Any]:
    return {
        "number": i,
        "kind": "start-replica",
        "node": f"{i:04d}.gpu.example.com",
        "gpus": [f"{i:04d}.gpu.example.com/3"],
        "profile": "2g.20gb",
        "start": 2,
        "owner": rng.choice(owners),
        "after": list(range(max(1, i - 3), i)),
        "precondition": "exists and is free",
        "doneWhen": "a pod holds it",
    }
