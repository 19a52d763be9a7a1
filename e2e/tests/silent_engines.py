"""Engines that do not answer the operator, and everything else: its pod has no route to them.

A container beside the operator has the right to change routes. It is there until the pod ends.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from e2e.demo import install
from e2e.kube import Kube, wait_until

CONTAINER = "routes"
_PYTHON = "/opt/venv/bin/python"
_WAIT = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit()); signal.pause()"
# rtnetlink(7): RTM_NEWROUTE or RTM_DELROUTE of a route of type RTN_BLACKHOLE in the main table, acknowledged.
_ROUTE = """
import socket, struct, sys
kind, flags = {"add": (24, 0x1 | 0x4 | 0x400), "delete": (25, 0x1 | 0x4)}[sys.argv[1]]
netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
for address in sys.argv[2:]:
    route = struct.pack("=BBBBBBBBI", socket.AF_INET, 32, 0, 0, 254, 4, 0, 6, 0)
    route += struct.pack("=HH4s", 8, 1, socket.inet_aton(address))
    netlink.send(struct.pack("=IHHII", 16 + len(route), kind, flags, 1, 0) + route)
    error = struct.unpack_from("=i", netlink.recv(4096), 16)[0]
    if error:
        sys.exit(f"{address}: error {-error}")
"""


@contextmanager
def silent_engines(kube: Kube, image: str, selector: str) -> Iterator[None]:
    """Keep the operator from the engines that the selector names now; `image` is one with Python."""
    engines = kube.get("pods", "-n", "default", "-l", selector)["items"]
    addresses = [pod["status"]["podIP"] for pod in engines]
    operator = _with_routes(kube, image)
    _routes(kube, operator, "add", addresses)
    try:
        yield
    finally:
        _routes(kube, operator, "delete", addresses)


def _routes(kube: Kube, operator: str, verb: str, addresses: Sequence[str]) -> None:
    inside = ("exec", operator, "-n", install.SYSTEM, "-c", CONTAINER, "--")
    kube.kubectl(*inside, _PYTHON, "-c", _ROUTE, verb, *addresses)


def _with_routes(kube: Kube, image: str) -> str:
    """Start the container in the pod of the operator; returns the name of the pod."""
    found = kube.get("pods", "-n", install.SYSTEM, "-l", "app.kubernetes.io/name=tangram")["items"]
    (pod,) = (pod for pod in found if "deletionTimestamp" not in pod["metadata"])
    name = str(pod["metadata"]["name"])
    pod["spec"]["ephemeralContainers"] = [
        {
            "name": CONTAINER,
            "image": image,
            "imagePullPolicy": "IfNotPresent",
            "command": [_PYTHON, "-c", _WAIT],
            "securityContext": {
                "runAsUser": 0,
                "runAsNonRoot": False,
                "capabilities": {"drop": ["ALL"], "add": ["NET_ADMIN"]},
            },
        }
    ]
    path = f"/api/v1/namespaces/{install.SYSTEM}/pods/{name}/ephemeralcontainers"
    kube.kubectl("replace", "--raw", path, "-f", "-", stdin=json.dumps(pod))
    wait_until(lambda: _runs(kube, name), 60, "the container beside the operator", every=1)
    return name


def _runs(kube: Kube, name: str) -> bool:
    status = kube.get("pod", name, "-n", install.SYSTEM)["status"]
    return any("running" in each["state"] for each in status.get("ephemeralContainerStatuses", []))
