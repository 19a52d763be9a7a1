"""A replay on a real cluster of this machine, with the engine's steps at the pace of a slow GPU."""

from __future__ import annotations

import json
import os
import re
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from benchmarks.paced_cluster.recording import Answer, Course, PacedSteps, Recording
from benchmarks.paced_cluster.slow_gpu import Pace, calibration_at
from e2e.autoscaled import Autoscaled, ask_prometheus
from e2e.cluster import providers
from e2e.demo import install
from e2e.demo.graph import run_steps, stderr_line
from e2e.demo.stage import Stage, registry_for
from e2e.kube import Kube, instant, wait_until
from tangram.api.llm_deployment.facts import facts_from_status
from tangram.capacity.load.traffic import SimulatedRequest

OWN_VALUES = Path(__file__).with_name("values.yaml")
SLOTS, MOST_REPLICAS = 16, 5
PERCENTILE, TTFT_MS, TPOT_MS = 90, 1000, 150  # edges of the engine's buckets
TAIL_S = 180.0  # after the last arrival: replicas fall
POLL_S = 10.0
STEP_S = 5  # between two values of a series
REPLAY = "replay"
_COEFFICIENTS = "/opt/tangram/tangram/capacity/coefficients.yaml"
_PACED = re.compile(
    r"\[pod/(?P<pod>[^/]+)/.*paced steps: (\d+), (\d+) late, ([\d.]+) s instead of ([\d.]+) s"
)


@contextmanager
def cluster(pace: Pace) -> Iterator[Stage]:
    """Yield a cluster of its own whose engines have the pace, and end it."""
    provider = providers.select("auto")
    values = (install.VALUES, install.ROOT / "e2e/tests/values.yaml", OWN_VALUES)
    stage = Stage(provider, registry_for(provider.name), values=values, step_pace_ms=str(pace))
    try:
        # Once, with the paced engine: an operator that was installed with another one may lead for a while yet.
        run_steps([step for step in stage.steps() if step.name != "tangram"])
        stage.install_tangram(engine=stage.add_image("paced-engine"))
        yield stage
    finally:
        provider.down(stderr_line)


def recorded(
    stage: Stage, name: str, pace: Pace, requests: Sequence[SimulatedRequest], duration_s: float, load: str
) -> Recording:
    """Replay the requests on an LLMDeployment of this name that scales from one replica to `MOST_REPLICAS`.

    `load`: what the requests are, in words.
    """
    kube = stage.cluster()
    chat = Autoscaled(kube, name, slots=SLOTS, most=MOST_REPLICAS)
    served = _ready(kube, chat, pace)
    if served["status"]["model"]["engineImage"] != stage.references["paced-engine"]:
        raise ValueError("the engines are not those with the pace")
    watch = _PodWatch(kube, name)
    watch.look()
    first_ready = min(watch.ready_at.values())
    begin = _start_replay(kube, stage.references["silicon"], name, requests)
    stderr_line(f"{name}: {len(requests)} requests in {duration_s:.0f} s")
    while time.time() < begin + duration_s:
        time.sleep(POLL_S)
        watch.look()
    end = begin + duration_s
    recording = Recording(
        title=f"{load}; {os.cpu_count()} cores, load average {os.getloadavg()[2]:.1f}",
        pace_ms=(pace.step_ms, pace.decode_ms, pace.prompt_token_ms),
        llmdeployment=_without_history(served),
        settings=_settings(kube),
        starts_s=tuple(watch.starts_s.values()),
        lead_s=begin - first_ready,
        duration_s=duration_s,
        steps=watch.paced_steps,
        answers=_answers(kube),
        desired=_course(kube, "tangram_desired_replicas", name, begin, end),
        ready=_course(kube, "tangram_ready_replicas", name, begin, end),
    )
    kube.kubectl("delete", "job", REPLAY, "--wait")
    kube.kubectl("delete", "llmdep", name, "--wait", "--timeout=120s")
    return recording


# -- before --------------------------------------------------------------------------------------------------


def _ready(kube: Kube, chat: Autoscaled, pace: Pace) -> dict[str, Any]:
    """Apply the LLMDeployment, let the operator know its pace, and return it once it is Ready with that."""
    manifest = chat.manifest()
    manifest["spec"]["objectives"] = {
        "ttft": {"percentile": PERCENTILE, "milliseconds": TTFT_MS},
        "tpot": {"percentile": PERCENTILE, "milliseconds": TPOT_MS},
    }
    kube.apply(json.dumps(manifest))
    kube.kubectl("wait", "--for=condition=Ready", f"llmdep/{chat.name}", "--timeout=180s", timeout=190)
    facts = facts_from_status(kube.get("llmdep", chat.name))
    if facts is None:
        raise ValueError("the model was not inspected")
    _calibrate_operator(kube, calibration_at(pace, facts[1]))

    def predicted() -> dict[str, Any] | None:
        found = kube.get("llmdep", chat.name)
        ms = float(found["status"]["placement"]["predictedTPOTMilliseconds"])
        return found if abs(ms - pace.step_ms - pace.decode_ms) < 1 else None

    return wait_until(predicted, 90, "the operator to know the pace", every=1) or {}


def _calibrate_operator(kube: Kube, document: Mapping[str, Any]) -> None:
    """Give the operator this calibration instead of the one in its image."""
    config = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "calibration", "namespace": install.SYSTEM},
        "data": {"coefficients.yaml": json.dumps(document)},
    }
    mount = {"name": "calibration", "mountPath": _COEFFICIENTS, "subPath": "coefficients.yaml"}
    pod = {
        "containers": [{"name": "operator", "volumeMounts": [mount]}],
        "volumes": [{"name": "calibration", "configMap": {"name": "calibration"}}],
    }
    kube.apply(json.dumps(config))
    operator = ("deploy/tangram", "-n", install.SYSTEM)
    kube.kubectl(
        "patch", *operator, "--type=strategic", "-p", json.dumps({"spec": {"template": {"spec": pod}}})
    )
    kube.kubectl("rollout", "status", *operator, "--timeout=90s")


def _settings(kube: Kube) -> dict[str, Any]:
    """Return the settings of the operator."""
    config = kube.get("configmap", install.RELEASE, "-n", install.SYSTEM)
    settings: dict[str, Any] = yaml.safe_load(config["data"]["config.yaml"])
    return settings


def _without_history(served: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a simulation reads of an LLMDeployment."""
    names = ("name", "namespace", "uid", "creationTimestamp", "generation")
    return {
        "apiVersion": served["apiVersion"],
        "kind": served["kind"],
        "metadata": {name: served["metadata"][name] for name in names},
        "spec": served["spec"],
        "status": {"model": served["status"]["model"]},
    }


def _start_replay(kube: Kube, image: str, model: str, requests: Sequence[SimulatedRequest]) -> float:
    """Start the replay as a Job, and return when its first arrival could come, seconds since the epoch."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "requests.csv"
        file.write_text("".join(f"{r.arrival_s},{r.input_tokens},{r.output_tokens}\n" for r in requests))
        files = (f"--from-file={file}", f"--from-file={install.ROOT / 'e2e/demo/replay.py'}")
        kube.apply(kube.kubectl("create", "configmap", REPLAY, *files, "--dry-run=client", "-o", "yaml"))
    arguments = ("--requests=/replay/requests.csv",)
    kube.apply(
        install.client_job(REPLAY, image, "replay", model, arguments, config_map=REPLAY, memory="512Mi")
    )
    first = wait_until(lambda: _log(kube)[:1], 60, "the replay to begin")
    return float(first[0]["began_at"])


def _log(kube: Kube) -> list[dict[str, Any]]:
    return [json.loads(line) for line in kube.kubectl("logs", f"job/{REPLAY}").splitlines()]


# -- meanwhile and after -------------------------------------------------------------------------------------


class _PodWatch:
    """The engines' pods, looked at again and again: those that end take their times with them."""

    def __init__(self, kube: Kube, name: str) -> None:
        self.kube, self.selector = (
            kube,
            ("-l", f"tangram.dev/llmdeployment={name},app.kubernetes.io/component=engine"),
        )
        self.starts_s: dict[str, float] = {}
        self.ready_at: dict[str, float] = {}
        self._counted: dict[str, PacedSteps] = {}

    def look(self) -> None:
        for pod in self.kube.get("pods", *self.selector)["items"]:
            name = pod["metadata"]["name"]
            ready = next((c for c in pod["status"].get("conditions", ()) if c["type"] == "Ready"), None)
            if name not in self.starts_s and ready is not None and ready["status"] == "True":
                created = instant(pod["metadata"]["creationTimestamp"]).timestamp()
                self.ready_at[name] = instant(ready["lastTransitionTime"]).timestamp()
                self.starts_s[name] = self.ready_at[name] - created
        log = self.kube.kubectl("logs", *self.selector, "--prefix", "--tail=5", "--max-log-requests=20")
        for found in _PACED.finditer(log):
            steps, late, real_s, paced_s = found.groups()[1:]
            self._counted[found["pod"]] = PacedSteps(int(steps), int(late), float(real_s), float(paced_s))

    @property
    def paced_steps(self) -> PacedSteps:
        """The steps of all pods so far."""
        counted = self._counted.values()
        return PacedSteps(
            sum(one.steps for one in counted),
            sum(one.late for one in counted),
            round(sum(one.real_s for one in counted), 2),
            round(sum(one.paced_s for one in counted), 2),
        )


def _answers(kube: Kube) -> tuple[Answer, ...]:
    """Return what the clients saw, in the order of arrival. Raises TimeoutError where one still waits."""
    wait_until(lambda: kube.get("job", REPLAY)["status"].get("succeeded"), 180, "the last answer", every=2)
    rows = sorted(_log(kube)[1:], key=lambda row: row["arrival_s"])
    return tuple(
        Answer(
            row["arrival_s"],
            row["prompt"],
            row["answer"],
            row["outcome"],
            round(row["ttft_s"] + row["late_s"], 4),
            None if row["tpot_s"] is None else round(row["tpot_s"], 5),
        )
        for row in rows
    )


def _course(kube: Kube, metric: str, name: str, begin: float, end: float) -> Course:
    """Return the changes of a metric of the operator."""
    query = f'max({metric}{{llmdeployment="{name}"}})'
    window = {"start": str(begin), "end": str(end), "step": str(STEP_S)}
    values = ask_prometheus(kube, "query_range", query=query, **window)[0]["values"]
    changes: list[tuple[float, int]] = []
    for at, value in values:
        if not changes or changes[-1][1] != int(value):
            changes.append((round(float(at) - begin, 1), int(value)))
    return Course(tuple(changes))
