"""`make demo`: one LLMDeployment through the whole loop, on a real cluster, on this machine."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from e2e.cluster import paths, providers
from e2e.cluster.base import ClusterError
from e2e.demo import install
from e2e.demo.graph import Reporter, Step, StepFailed, run_steps, stderr_line
from e2e.demo.stage import Stage, command_line, ensure_python, registry_for
from e2e.kube import Kube, wait_until

LOAD_SECONDS = 90
GROW_WITHIN_S, SHRINK_WITHIN_S = 90, 240

PLAIN_WORDS = """
  Silicon and prices are simulated: the GPUs are announced by a stand-in for NVIDIA's device plugin, the
  engine computes on the CPU because it finds no CUDA device, and dollars come from a price list.
  Everything else is real."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python3 -m e2e.demo", description=__doc__)
    parser.add_argument("verb", choices=["up", "down", "clean"])
    parser.add_argument("--provider", default="auto", choices=["auto", "existing", "kind", "local"])
    args = parser.parse_args()
    try:
        {"up": up, "down": down, "clean": clean}[args.verb](args.provider)
    except (ClusterError, StepFailed, TimeoutError) as error:
        stderr_line(f"\n{error}\n\nWhat was done so far is kept: run the same command again to go on.")
        return 1
    except KeyboardInterrupt:
        stderr_line("\nInterrupted. Run the same command again to go on, or `make demo-down` to end it.")
        return 130
    return 0


def up(name: str) -> None:
    """Bring everything up, ask, overload, watch it grow and shrink."""
    began = time.monotonic()
    provider = providers.select(name)
    print(f"Tangram demo on provider `{provider.name}`.{PLAIN_WORDS}\n")
    memory().parent.mkdir(parents=True, exist_ok=True)
    memory().write_text(json.dumps({"provider": provider.name}))
    stage = Stage(provider, registry_for(provider.name))
    answered = Step(
        "first streamed answer", lambda _: first_answer(stage.cluster()), ("model ready", "python")
    )
    ready = Step("model ready", lambda _: install.model(stage.cluster()), ("tangram", "prometheus"))
    path = run_steps([*stage.steps(), ready, answered], reporter=Reporter())
    took = time.monotonic() - began
    print(f"\n  first streamed answer after {took:.0f} s; critical path: {' → '.join(path)}\n")
    rescale(stage.cluster(), stage.references["silicon"])
    closing(stage)


def first_answer(kube: Kube) -> str:
    """One streamed chat completion through the official openai client."""
    with kube.port_forward(f"svc/{install.NAME}", 80) as port:
        chat = [str(ensure_python()), "-m", "e2e.demo.chat", f"--url=http://127.0.0.1:{port}/v1"]
        done = subprocess.run(
            [*chat, f"--model={install.NAME}"],
            cwd=install.ROOT,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    if done.returncode:
        raise ClusterError(f"the openai client failed: {done.stderr.strip()[-1500:]}")
    return "\n" + done.stdout.rstrip()


def rescale(kube: Kube, image: str) -> None:
    """Violate the objective for a while; replicas rise, and fall when the load has ended."""
    windows = "\n".join(
        line
        for line in (install.ROOT / "e2e/demo/values.yaml").read_text().splitlines()
        if "Seconds:" in line
    )
    print(f"Load: {install.CLIENTS} clients for {LOAD_SECONDS} s against one small slice.")
    print(f"Windows set for the demo:\n{windows}\n")
    install.load(kube, image, seconds=LOAD_SECONDS)
    began = time.monotonic()
    show_until(kube, lambda ready, _: ready > 1, GROW_WITHIN_S, "a second replica to serve", began=began)
    show_until(
        kube,
        lambda ready, desired: ready == desired == 1,
        LOAD_SECONDS + SHRINK_WITHIN_S,
        "one replica again",
        began=began,
    )
    print("  load said:", kube.kubectl("logs", "job/load", "--tail=1").strip())


def show_until(
    kube: Kube, done: Callable[[int, int], bool], within_s: float, what: str, *, began: float
) -> None:
    """Print a line whenever the numbers change, until `done(ready, desired)`."""
    seen: list[str] = []

    def look() -> bool:
        status = kube.get("llmdep", install.NAME).get("status", {})
        slo = status.get("slo", {})
        ready, desired = int(status.get("readyReplicas", 0)), int(status.get("desiredReplicas", 0))
        line = f"replicas {ready}/{desired}"
        if line not in seen[-1:]:
            seen.append(line)
            attainment = ", ".join(
                f"{key} {slo[key]}" for key in ("ttftAttainment", "tpotAttainment") if key in slo
            )
            why = status.get("lastScale", {}).get("reason", "")
            print(f"{time.monotonic() - began:7.1f}s   {line}   {why:<12} {attainment}")
        return done(ready, desired)

    wait_until(look, within_s, what, every=1.0)


def closing(stage: Stage) -> None:
    """The table, and where everything is."""
    kube = stage.cluster()
    print(f"\n{kube.kubectl('get', 'llmdep')}")
    print(f"""  {stage.description}
  In another terminal:
    export KUBECONFIG={kube.kubeconfig} PATH={Path(kube.kubectl_path).parent}:$PATH
    kubectl describe llmdep {install.NAME}
    kubectl port-forward svc/{install.NAME} 8000:80                        # http://127.0.0.1:8000/v1
    kubectl port-forward -n tangram-monitoring svc/prometheus 9090:9090   # Prometheus: http://127.0.0.1:9090
    kubectl port-forward -n tangram-system deploy/tangram 9091:9090       # the operator's own /metrics
  It stays up. `make demo-down` ends it, `make demo-clean` removes the cache ({paths.cache()}) too.""")


def down(name: str) -> None:
    """End what `up` started; the cache directory stays."""
    chosen = (
        name
        if name != "auto"
        else json.loads(memory().read_text())["provider"]
        if memory().exists()
        else "local"
    )
    provider = providers.make(chosen)
    if chosen == "existing":  # the cluster goes on; what the demo put into it goes
        install.remove(command_line(provider.up(print)))
    provider.down(lambda text: print(f"  {text}"))
    memory().unlink(missing_ok=True)
    print(f"The demo has ended. What stays is {paths.cache()}; `make demo-clean` removes it.")


def clean(name: str) -> None:
    """End the demo and remove the cache directory."""
    down(name)
    shutil.rmtree(paths.cache(), ignore_errors=False)
    print(f"{paths.cache()} is gone.")


def memory() -> Path:
    """Which provider the demo runs on, for `down`."""
    return paths.cache() / "demo.json"


if __name__ == "__main__":
    sys.exit(main())
