"""Pods as Prometheus' own `kubernetes_sd` (role pod) would show them, over its HTTP discovery.

Debian builds Prometheus without Kubernetes discovery, and images of Prometheus cannot be had without a
registry. This runs beside it in the same pod, asks the API server with the pod's own token, and uses the same
meta labels, so that the relabelling rules are those of any cluster. Standard library only.
"""

from __future__ import annotations

import json
import re
import ssl
import sys
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
PODS = "https://kubernetes.default.svc/api/v1/pods"


def targets(pods: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One target a pod that has an address; Prometheus' relabelling chooses among them."""
    return [target(pod) for pod in pods if pod.get("status", {}).get("podIP")]


def target(pod: dict[str, Any]) -> dict[str, Any]:
    """The meta labels of `kubernetes_sd`, role pod, less those of single containers."""
    meta, status = pod["metadata"], pod["status"]
    labels = {
        "__meta_kubernetes_namespace": meta["namespace"],
        "__meta_kubernetes_pod_name": meta["name"],
        "__meta_kubernetes_pod_ip": status["podIP"],
        "__meta_kubernetes_pod_phase": status.get("phase", ""),
        "__meta_kubernetes_pod_node_name": pod["spec"].get("nodeName", ""),
    }
    for kind in ("annotation", "label"):
        for key, value in meta.get(f"{kind}s", {}).items():
            labels[f"__meta_kubernetes_pod_{kind}_{re.sub(r'[^a-zA-Z0-9_]', '_', key)}"] = value
    return {"targets": [status["podIP"]], "labels": labels}


def list_pods() -> list[dict[str, Any]]:
    """Ask the API server; the token is read each time, because it rotates."""
    token = (ACCOUNT / "token").read_text()
    request = urllib.request.Request(PODS, headers={"Authorization": f"Bearer {token}"})  # noqa: S310
    trusted = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
    with urllib.request.urlopen(request, context=trusted, timeout=4) as response:  # noqa: S310
        items: list[dict[str, Any]] = json.load(response)["items"]
        return items


class Handler(BaseHTTPRequestHandler):
    """Any path answers with the targets; an error keeps Prometheus' last good list."""

    def do_GET(self) -> None:
        try:
            status, body = 200, json.dumps(targets(list_pods())).encode()
        except (OSError, ValueError) as error:
            status, body = 503, str(error).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Say only what went wrong."""
        if args and not str(args[1]).startswith("2"):
            sys.stderr.write(format % args + "\n")


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", 9099), Handler).serve_forever()
