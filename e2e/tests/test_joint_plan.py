"""Several models on a mixed fleet: one joint plan, told in objects; the better layout is recommended.

The fleet is made of nodes whose kubelets KWOK plays, so that it can be mixed; control plane and operator are
real, and the one real node is cordoned meanwhile.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.cluster import binaries
from e2e.cluster.local import Local
from e2e.demo.stage import Stage
from e2e.kube import Kube, wait_until
from e2e.silicon import kwok
from e2e.silicon.board import parse_machine
from e2e.tests.conftest import pods
from e2e.tests.support import condition, newest_plan, tangram
from tangram.plan.result.fleet_plan_spec import fleet_plan_spec

pytestmark = pytest.mark.cluster

# Seven slices that are too small for the model on one GPU, two that are large enough on another, two GPUs of
# another kind.
BOARDS: dict[str, dict[str, Any]] = {
    "h100": {
        "sku": "H100-80GB-SXM",
        "gpus": [{"mig": [f"1g.10gb@{start}" for start in range(7)]}, {"mig": ["3g.40gb@0", "3g.40gb@4"]}],
    },
    "l40s": {"sku": "L40S", "name": "NVIDIA L40S", "gpus": [{}]},
}
POOL = {
    "apiVersion": "tangram.dev/v1alpha1",
    "kind": "GPUPool",
    "metadata": {"name": "ada"},
    "spec": {
        "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-L40S"},
        "pricePerGPUHour": "0.50",
        "migPolicy": "Ignore",
    },
}


def eight_billion() -> str:
    """What `tangram-engine inspect` says of a checkpoint of the size of Llama-3.1-8B."""
    report = json.loads(kwok.golden_report())
    report["facts"] |= {
        "dtype": "bf16", "layers": 32, "hiddenSize": 4096, "heads": 32, "kvHeads": 8, "headDim": 128,
        "vocabSize": 128256, "maxPositionEmbeddings": 8192, "parameters": 8_030_261_248,
        "weightBytes": 16_060_522_496, "embeddingBytes": 1_050_673_152, "tiedEmbeddings": False,
    }  # fmt: skip
    return json.dumps(report, separators=(",", ":"))


def llm(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "tangram.dev/v1alpha1",
        "kind": "LLMDeployment",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"model": {"uri": "image:///models/eight-billion", "servedName": name}, **spec},
    }


@pytest.fixture
def mixed(stage: Stage, kube: Kube, tmp_path: Path) -> Iterator[Kube]:
    """The cluster with a mixed fleet of fake nodes, and the real node cordoned."""
    if not isinstance(stage.provider, Local):
        pytest.skip("only the local provider may be furnished with fake nodes")
    binaries.ensure_binaries(("kwok",), print)
    config = tmp_path / "kwok.yaml"
    config.write_text(kwok.stages(eight_billion()))
    real = [node["metadata"]["name"] for node in kube.get("nodes")["items"]]
    command = kwok.command(binaries.need("kwok"), kube.kubeconfig, config)
    with (
        (tmp_path / "kwok.log").open("w") as log,
        subprocess.Popen(command, stdout=log, stderr=log) as played,
    ):
        try:
            for name, board in BOARDS.items():
                _add_node(kube, kwok.node(name, parse_machine(board, name)))
            kube.kubectl("cordon", *real)
            kube.kubectl(
                "wait", "--for=condition=Ready", *(f"node/{name}" for name in BOARDS), "--timeout=60s"
            )
            yield kube
        finally:
            kube.kubectl("delete", "llmdep,gpupool", "--all", "--wait", "--timeout=60s")
            wait_until(
                lambda: not pods(kube), 60, "engine pods to end"
            )  # while somebody plays their kubelets
            kube.kubectl("delete", "node", *BOARDS, "--ignore-not-found")
            kube.kubectl("uncordon", *real)
            played.terminate()


def _add_node(kube: Kube, node: dict[str, Any]) -> None:
    text = json.dumps(node)
    kube.apply(text)
    patch = json.dumps({"status": node["status"]})
    kube.kubectl(
        "patch", "node", node["metadata"]["name"], "--subresource=status", "--type=merge", "-p", patch
    )


def test_models_applied_together_get_one_plan_and_the_better_layout_is_recommended(
    mixed: Kube, tmp_path: Path
) -> None:
    wanted = [llm("first"), llm("second"), llm("third"), llm("urgent", priorityClassName="tangram-high")]
    mixed.apply(yaml.safe_dump_all([POOL, *wanted]))

    short = wait_until(lambda: _short(mixed, "first", "second", "third"), 60, "one of four to go short")
    wait_until(lambda: condition(mixed, "Placed", "urgent")["status"] == "True", 10, "the urgent one's place")
    assert condition(mixed, "Placed", short)["reason"] == "InsufficientCapacity"

    plan = wait_until(lambda: newest_plan(mixed, "Recommended"), 90, "the better layout")
    assert not plan["spec"]["unmet"]
    table = mixed.kubectl("get", "fleetplan").splitlines()
    assert {"STATE", "UNMET", "GAP", "SOLVE"} <= set(table[0].split())
    told = wait_until(lambda: _told(mixed, short), 30, "the one that goes short to name the plan")
    assert told == plan["metadata"]["name"]
    assert "cut anew" in mixed.kubectl("describe", "llmdep", short)
    assert "Rejected Because" in mixed.kubectl("describe", "llmdep", "urgent")

    snapshot = tmp_path / "snapshot.yaml"
    tangram(mixed, "snapshot", "-o", str(snapshot))
    again = json.loads(tangram(mixed, "plan", "-f", str(snapshot), "-o", "json"))
    assert plan["metadata"]["name"].endswith(again["inputsHash"])
    assert fleet_plan_spec(again, inputs_hash=again["inputsHash"]) == plan["spec"]
    assert short in tangram(mixed, "explain", f"llmdep/{short}")


def test_an_objective_out_of_reach_comes_with_what_would_do(mixed: Kube) -> None:
    objective = {"tpot": {"percentile": 90, "milliseconds": 1}}
    mixed.apply(json.dumps(llm("hasty", objectives=objective)))
    wait_until(
        lambda: condition(mixed, "Placed", "hasty").get("reason") == "SLOUnreachable", 60, "the reason"
    )
    eased = wait_until(
        lambda: mixed.get("llmdep", "hasty")["status"]["placement"].get("relaxations"), 90, "relaxations"
    )
    assert eased[0]["dimension"] == "objective", eased
    assert eased[0]["text"].startswith("TPOT "), eased


def _short(kube: Kube, *names: str) -> str:
    """The one that is told to have no place, once the others have one."""
    states = {name: condition(kube, "Placed", name).get("status") for name in names}
    left = [name for name, status in states.items() if status == "False"]
    return left[0] if sorted(map(str, states.values())) == ["False", "True", "True"] else ""


def _told(kube: Kube, name: str) -> str:
    """The FleetPlan that a status names."""
    return str(kube.get("llmdep", name)["status"].get("placement", {}).get("plan", ""))
