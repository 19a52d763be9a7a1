"""`make demo-mig`: two whole H100s, models that need MIG slices, and a FleetPlan that waits for your consent.

On the cluster of `make demo`, which it brings up if it is not there. The node agent cuts GPUs of a simulated
driver, which is a thread of this process: when it ends, by Ctrl-C, the node is as `make demo` left it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from e2e.cluster.base import ClusterError
from e2e.cluster.local import Local
from e2e.demo.graph import Reporter, StepFailed, run_steps, stderr_line
from e2e.demo.stage import Stage
from e2e.kube import wait_until
from e2e.tests.cut_node import NVML, CutNode, cut_node

TANGRAM = Path(sys.executable).with_name("tangram")
NODE = replace(NVML, gpus=2, values="values-cut-recommend.yaml")
MODELS: dict[str, dict[str, Any]] = {
    "alpha": {},  # takes a whole GPU: there is no slice yet
    "beta": {"placement": {"mig": "Required"}},
    "gamma": {"placement": {"mig": "Required"}},
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m e2e.demo.mig", description=__doc__)
    parser.add_argument(
        "--approve", action="store_true", help="consent to the plan, and end once all is done"
    )
    arguments = parser.parse_args()
    provider = Local()
    stage = Stage(provider)
    try:
        run_steps(stage.steps(), reporter=Reporter())
        print("Dressing the node with two H100s of a simulated driver, and installing the node agent.")
        with cut_node(stage, provider, NODE) as node:
            plan = recommended(node)
            if arguments.approve:
                carried_out(node, plan)
            else:
                until_interrupted(node, plan)
    except (ClusterError, StepFailed, TimeoutError) as error:
        stderr_line(f"\n{error}")
        return 1
    except KeyboardInterrupt:
        stderr_line("\nThe node is as it was. `make demo-down` ends the cluster.")
    return 0


def recommended(node: CutNode) -> str:
    """Apply the models; return the FleetPlan that waits for consent."""
    node.kube.apply(json.dumps({"apiVersion": "v1", "kind": "List", "items": [*map(model, MODELS)]}))

    def waiting() -> str:
        plans = node.plans_of_changes()
        names = [p["metadata"]["name"] for p in plans if p.get("status", {}).get("state") == "Recommended"]
        return names[-1] if names else ""

    plan = wait_until(waiting, 180, "a FleetPlan that waits for consent")
    for what in ("llmdep", "gpunodes", "fleetplans"):
        print(node.kube.kubectl("get", what))
    return plan


def model(name: str) -> dict[str, Any]:
    """An LLMDeployment of the tiny model."""
    return {
        "apiVersion": "tangram.dev/v1alpha1",
        "kind": "LLMDeployment",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"model": {"uri": "image:///models/tangram-tiny", "servedName": name}, **MODELS[name]},
    }


def carried_out(node: CutNode, plan: str) -> None:
    """Consent, and wait until the GPU is cut and every model serves."""
    subprocess.run([str(TANGRAM), "approve", plan, "--kubeconfig", str(node.kube.kubeconfig)], check=True)
    for name in MODELS:
        ready = ("wait", f"llmdep/{name}", "--for=condition=Ready", "--timeout=240s")
        node.kube.kubectl(*ready, timeout=250)
    wait_until(node.are_done, 60, "the plan to be Done")
    print(node.kube.kubectl("get", "llmdep"))
    print(node.kube.kubectl("get", "gpunodes"))
    print(f"GPUs: {'; '.join(' '.join(layout) for layout in node.layouts())}")


def until_interrupted(node: CutNode, plan: str) -> None:
    """Say what to do in another terminal, and keep the driver running."""
    print(f"""In another terminal:
  export KUBECONFIG={node.kube.kubeconfig} PATH={TANGRAM.parent}:{Path(node.kube.kubectl_path).parent}:$PATH
  kubectl describe fleetplan {plan}
  tangram approve {plan}            # or --reject
  kubectl get fleetplans -w         # Executing: Holding, Cutting ...; then Done
  kubectl get gpunodes,llmdep
Ctrl-C here ends it, and puts the node back.""")
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    sys.exit(main())
