"""Fake GPU nodes for scale: Node objects with the silicon of a board file, and how KWOK plays their kubelets.

Nodes carry the labels and allocatable resources that the stand-in plugin would give a real one. Pods on them
become Ready, and the pod of an inspect Job ends with the facts of a golden report as its termination message.
Nothing runs: no engine answers, no slice is handed out.

    nodes(50)                  the objects to create; their status goes through the status subresource
    stages(golden_report())    KWOK's configuration file
    command(kwok, …)           how to start KWOK with it
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from e2e.silicon.board import Machine, parse_machine
from e2e.silicon.labels import gfd_labels

ROOT = Path(__file__).resolve().parents[2]
GOLDEN_REPORT = ROOT / "tests" / "contracts" / "inspect_golden.json"
NODE_SELECTOR = "kwok.x-k8s.io/node=fake"
INSPECT_COMPONENT = "inspect"  # label app.kubernetes.io/component of the operator's inspect Jobs

# Seven small slices on one GPU, two large ones on the next, two whole ones: every shape has somewhere to go.
DEFAULT_BOARD: dict[str, Any] = {
    "sku": "H100-80GB-SXM",
    "gpus": [
        {"mig": [f"1g.10gb@{start}" for start in range(7)]},
        {"mig": ["3g.40gb@0", "3g.40gb@4"]},
        {},
        {},
    ],
}


def node(
    name: str, machine: Machine, *, cpu: str = "192", memory: str = "1Ti", pods: int = 110
) -> dict[str, Any]:
    """Return one Node object, status included, as KWOK will keep it."""
    devices = {resource: str(len(ids)) for resource, ids in machine.devices().items()}
    capacity = {"cpu": cpu, "memory": memory, "ephemeral-storage": "1Ti", "pods": str(pods), **devices}
    key, _, value = NODE_SELECTOR.partition("=")
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {key: value},
            "labels": {
                "kubernetes.io/arch": "amd64",
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "type": "kwok",
                **gfd_labels(machine, started=0),
            },
        },
        "status": {"allocatable": capacity, "capacity": capacity},
    }


def nodes(count: int, board: dict[str, Any] | None = None, prefix: str = "gpu") -> Iterator[dict[str, Any]]:
    """Yield `count` nodes, all cut like `board` (the content of a board file)."""
    for number in range(count):
        name = f"{prefix}-{number:04}"
        yield node(name, parse_machine(board or DEFAULT_BOARD, name))


def golden_report(path: Path = GOLDEN_REPORT) -> str:
    """Return the report of an accepted checkpoint, as one line of JSON."""
    return json.dumps(json.loads(path.read_text())["accepted"], separators=(",", ":"))


_DELETED = {"key": ".metadata.deletionTimestamp", "operator": "Exists"}
_ALIVE = {"key": ".metadata.deletionTimestamp", "operator": "DoesNotExist"}

_CONDITIONS = "\n".join(
    f'- {{type: {kind}, status: "True", lastTransitionTime: {{{{ $now | Quote }}}}}}'
    for kind in ("Initialized", "PodScheduled", "ContainersReady", "Ready")
)
_ADDRESS = """\
hostIP: {{ NodeIPWith .spec.nodeName | Quote }}
podIP: {{ PodIPWith .spec.nodeName false .metadata.uid .metadata.name .metadata.namespace | Quote }}
startTime: {{ $now | Quote }}
"""
_RUNNING = (
    """\
{{ $now := Now }}
phase: Running
conditions:
"""
    + _CONDITIONS
    + """
containerStatuses:
{{ range .spec.containers }}
- name: {{ .name | Quote }}
  image: {{ .image | Quote }}
  ready: true
  started: true
  restartCount: 0
  state: {running: {startedAt: {{ $now | Quote }}}}
{{ end }}
"""
    + _ADDRESS
)
_COMPLETED = (
    """\
{{ $now := Now }}
phase: Succeeded
conditions:
- {type: Ready, status: "False", reason: PodCompleted, lastTransitionTime: {{ $now | Quote }}}
containerStatuses:
{{ range .spec.containers }}
- name: {{ .name | Quote }}
  image: {{ .image | Quote }}
  ready: false
  started: false
  restartCount: 0
  state:
    terminated:
      exitCode: 0
      reason: Completed
      message: @MESSAGE@
      startedAt: {{ $now | Quote }}
      finishedAt: {{ $now | Quote }}
{{ end }}
"""
    + _ADDRESS
)


def _stage(name: str, selector: dict[str, Any], following: dict[str, Any], delay_ms: int) -> dict[str, Any]:
    return {
        "apiVersion": "kwok.x-k8s.io/v1alpha1",
        "kind": "Stage",
        "metadata": {"name": name},
        "spec": {
            "resourceRef": {"apiGroup": "v1", "kind": "Pod"},
            "selector": selector,
            "delay": {"durationMilliseconds": delay_ms},
            "next": following,
        },
    }


def stages(report: str, *, ready_after_ms: int = 200) -> str:
    """Return KWOK's configuration: how pods live. Nodes are kept Ready by KWOK's own stages.

    Args:
        report: what every inspect Job reports in its termination message (one line of JSON, at most 4 KiB).
        ready_after_ms: how long a pod takes to become Ready or to complete.

    Raises:
        ValueError: the report is longer than a termination message may be.
    """
    if len(report.encode()) > 4096:
        raise ValueError(f"a termination message holds 4096 bytes, the report has {len(report.encode())}")
    fresh = {"key": ".status.podIP", "operator": "DoesNotExist"}
    component = '.metadata.labels["app.kubernetes.io/component"]'
    inspects = {"key": component, "operator": "In", "values": [INSPECT_COMPONENT]}
    serves = {"key": component, "operator": "NotIn", "values": [INSPECT_COMPONENT]}
    # YAML inside a Go template inside YAML: braces of the report must be no template.
    message = json.dumps(report).replace("{", "\\u007b").replace("}", "\\u007d")
    return yaml.safe_dump_all(
        [
            _stage(
                "pod-ready",
                {"matchExpressions": [_ALIVE, fresh, serves]},
                {"statusTemplate": _RUNNING},
                ready_after_ms,
            ),
            _stage(
                "inspect-complete",
                {"matchExpressions": [_ALIVE, fresh, inspects]},
                {"statusTemplate": _COMPLETED.replace("@MESSAGE@", message)},
                ready_after_ms,
            ),
            _stage(
                "pod-delete",
                {"matchExpressions": [_DELETED]},
                {"finalizers": {"empty": True}, "delete": True},
                0,
            ),
        ],
        sort_keys=False,
    )


def command(kwok: Path, kubeconfig: Path, config: Path) -> list[str]:
    """Return the command line that plays the kubelets of all nodes made here."""
    return [
        str(kwok),
        f"--kubeconfig={kubeconfig}",
        f"--config={config}",
        f"--manage-nodes-with-annotation-selector={NODE_SELECTOR}",
        "--node-lease-duration-seconds=40",
        "--cidr=10.200.0.1/16",
    ]
