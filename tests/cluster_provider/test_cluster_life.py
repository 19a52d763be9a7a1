"""What a person may expect of the local cluster, on the real thing: the one that runs, or a new one."""

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster import baseimage, images
from e2e.cluster.base import ClusterError
from e2e.cluster.local import Local

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

NAMESPACE = "cluster-life"


def pod(name: str, image: str, script: str, **extra: Any) -> str:
    container = {"name": "main", "image": image, "imagePullPolicy": "IfNotPresent", **extra}
    container["command"] = ["python3", "-u", "-c", script]
    spec = {"containers": [container], "terminationGracePeriodSeconds": 0}
    metadata = {"name": name, "namespace": NAMESPACE, "labels": {"app": name}}
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})


@pytest.fixture(scope="module")
def cluster() -> Iterator[Local]:
    local = Local()
    if reason := local.unusable_because():
        pytest.skip(reason)
    was_up = local.status().up
    local.up()
    local.kubectl("create", "namespace", NAMESPACE)
    local.kubectl("wait", "-n", NAMESPACE, "--for=create", "serviceaccount/default", "--timeout=30s")
    yield local
    local.kubectl("delete", "namespace", NAMESPACE, timeout_s=120)
    if not was_up:
        local.down()


@pytest.fixture(scope="module")
def image(cluster: Local) -> str:
    """The base image itself: Python and nothing else."""
    name = baseimage.ensure_base_image()
    images.give_base("buildah", name)
    cluster.load_image(name)
    return name


@pytest.fixture(scope="module")
def server(cluster: Local, image: str) -> str:
    serve = "import http.server; http.server.test(http.server.SimpleHTTPRequestHandler, port=8000)"
    options = {
        "workingDir": "/srv",
        "resources": {"limits": {"cpu": "200m", "memory": "128Mi"}},
        "readinessProbe": {"httpGet": {"path": "/", "port": 8000}, "periodSeconds": 1},
    }
    cluster.kubectl("apply", "-f-", stdin=pod("server", image, serve, **options))
    # Not the name of the pod, which it knows without asking anybody.
    cluster.kubectl(
        "-n", NAMESPACE, "expose", "pod/server", "--name=greeter", "--port=80", "--target-port=8000"
    )
    waited = ["wait", "-n", NAMESPACE, "--for=condition=Ready", "pod/server", "--timeout=60s"]
    cluster.kubectl(*waited, timeout_s=90)
    return "server"


def test_up_again_returns_at_once(cluster: Local) -> None:
    start = time.monotonic()

    assert cluster.up().nodes == ("tangram-node",)

    assert time.monotonic() - start < 10


def test_a_pod_finds_a_service_by_name_and_reaches_it(cluster: Local, server: str) -> None:
    fetch = "import urllib.request as r; print(r.urlopen('http://greeter/', timeout=10).status)"

    deadline = time.monotonic() + 10  # kube-proxy learns of the endpoint a moment after the pod is Ready
    while time.monotonic() < deadline:
        with contextlib.suppress(ClusterError):
            answer = cluster.kubectl("-n", NAMESPACE, "exec", server, "--", "python3", "-c", fetch)
            assert answer.strip() == "200"
            return
    pytest.fail("the Service did not answer within 10 s of its pod being Ready")


def test_a_pod_reaches_the_api_server_by_its_service_and_has_no_rights(cluster: Local, server: str) -> None:
    ask = """
import ssl, urllib.error, urllib.request
account = "/var/run/secrets/kubernetes.io/serviceaccount/"
context = ssl.create_default_context(cafile=account + "ca.crt")
headers = {"Authorization": "Bearer " + open(account + "token").read()}
try:
    request = urllib.request.Request("https://kubernetes.default/api/v1/pods", headers=headers)
    urllib.request.urlopen(request, context=context)
except urllib.error.HTTPError as error:
    print(error.code)
"""

    assert cluster.kubectl("-n", NAMESPACE, "exec", server, "--", "python3", "-c", ask).strip() == "403"


def test_logs_of_a_pod_can_be_read(cluster: Local, server: str) -> None:
    assert "Serving HTTP" in cluster.kubectl("-n", NAMESPACE, "logs", server)


def test_a_cpu_limit_holds(cluster: Local, server: str) -> None:
    burn = "import time; end = time.time() + 4\nwhile time.time() < end: pass\nprint(time.process_time())"

    used_s = float(cluster.kubectl("-n", NAMESPACE, "exec", server, "--", "python3", "-c", burn))

    assert used_s < 0.3 * 4, "a pod limited to 200m took more than 300m"


def test_only_one_node_may_be_lost_not_the_first(cluster: Local) -> None:
    with pytest.raises(ClusterError, match="lose another one"):
        cluster.lose_node(0)


def test_nothing_of_the_node_is_mounted_on_the_machine(cluster: Local) -> None:
    mounts = Path("/proc/self/mounts").read_text()

    assert str(cluster.state) not in mounts
    assert str(cluster.store) not in mounts
