"""Fake GPU nodes for scale: what they say of themselves, and what becomes of pods on them."""

import json
import os
import subprocess
import time

import pytest
import yaml

from e2e.cluster import binaries
from e2e.cluster.apiserver import ControlPlane
from e2e.silicon import kwok
from tangram import catalog
from tangram.api import parse_report
from tangram.fleet import CheckpointFacts

NAMESPACE = "default"


def pod_template(component, resource=None, **spec):
    container = {"name": "main", "image": "none.example.com/none:1"}
    if resource:
        container["resources"] = {"limits": {resource: "1"}}
    labels = {"app.kubernetes.io/component": component, "app": component}
    return {"metadata": {"labels": labels}, "spec": {"containers": [container], **spec}}


def test_a_fake_node_says_what_a_real_one_with_the_same_board_would():
    node = next(kwok.nodes(1))
    labels, allocatable = node["metadata"]["labels"], node["status"]["allocatable"]
    assert catalog.match_product(labels["nvidia.com/gpu.product"]) == "H100-80GB-SXM"
    assert labels["nvidia.com/gpu.count"] == "4"
    offered = {key: value for key, value in allocatable.items() if key.startswith("nvidia.com/")}
    assert offered == {"nvidia.com/mig-1g.10gb": "7", "nvidia.com/mig-3g.40gb": "2", "nvidia.com/gpu": "2"}


def test_fake_nodes_have_different_names_and_the_mark_by_which_kwok_knows_them():
    made = list(kwok.nodes(3, {"sku": "H200-141GB-SXM", "gpus": [{}]}, prefix="h200"))
    assert [node["metadata"]["name"] for node in made] == ["h200-0000", "h200-0001", "h200-0002"]
    key, _, value = kwok.NODE_SELECTOR.partition("=")
    assert all(node["metadata"]["annotations"][key] == value for node in made)


def test_the_golden_report_is_one_that_the_operator_takes():
    assert isinstance(parse_report(kwok.golden_report(), 0.0), CheckpointFacts)


def test_a_report_that_no_termination_message_could_hold_is_refused():
    with pytest.raises(ValueError, match="4096 bytes"):
        kwok.stages("x" * 5000)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """Two fake nodes on a real control plane."""
    program = binaries.find("kwok")
    if program is None:
        pytest.skip("kwok is not built (some minutes): python3 -m e2e.cluster binaries kwok")
    folder = tmp_path_factory.mktemp("kwok")
    config = folder / "kwok.yaml"
    config.write_text(kwok.stages(kwok.golden_report()))
    with ControlPlane(folder / "plane", controller_manager=True, scheduler=True) as plane:
        env = {"PATH": os.environ["PATH"], "HOME": str(folder), "KUBECONFIG": str(plane.kubeconfig)}

        def kubectl(*args, stdin=None):
            done = subprocess.run(
                [str(binaries.need("kubectl")), *args],
                input=stdin,
                env=env,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            return done.stdout

        with (folder / "kwok.log").open("w") as log:
            player = subprocess.Popen(
                kwok.command(program, plane.kubeconfig, config), env=env, stdout=log, stderr=log
            )
            try:
                for node in kwok.nodes(2):
                    text = json.dumps(node)
                    kubectl("create", "-f", "-", stdin=text)
                    kubectl("replace", "--subresource=status", "-f", "-", stdin=text)
                yield kubectl
            finally:
                player.terminate()
                player.wait(timeout=10)


def wait_for(probe, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not (found := probe()):
        assert time.monotonic() < deadline, "nothing came of it in time"
        time.sleep(0.2)
    return found


@pytest.mark.apiserver
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_pods_that_ask_for_slices_become_ready_until_the_slices_are_gone(fleet):
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "big"},
        "spec": {
            "replicas": 5,
            "selector": {"matchLabels": {"app": "engine"}},
            "template": pod_template("engine", "nvidia.com/mig-3g.40gb"),
        },
    }
    fleet("create", "-f", "-", stdin=json.dumps(deployment))

    def ready():
        found = yaml.safe_load(fleet("get", "deployment", "big", "-o", "yaml"))
        return found["status"].get("readyReplicas") == 4  # two nodes with two such slices each

    wait_for(ready)
    fleet("scale", "deployment/big", "--replicas=0")
    wait_for(lambda: not fleet("get", "pods", "-l", "app=engine", "-o", "name"))


@pytest.mark.apiserver
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_pod_of_an_inspect_job_ends_with_the_golden_report(fleet):
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "inspect"},
        "spec": {"template": pod_template("inspect", restartPolicy="Never")},
    }
    fleet("create", "-f", "-", stdin=json.dumps(job))
    fleet("wait", "--for=condition=Complete", "job/inspect", "--timeout=50s")
    pods = yaml.safe_load(fleet("get", "pods", "-l", "app=inspect", "-o", "yaml"))["items"]
    message = pods[0]["status"]["containerStatuses"][0]["state"]["terminated"]["message"]
    assert message == kwok.golden_report()
