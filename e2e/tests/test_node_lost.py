"""A GPU node loses power: the other replica serves on, the status tells, and a replacement comes.

The lost node is a second real one: a kubelet and containerd in network, mount and process namespaces of their
own, whose first process is killed.
"""

import json
from collections.abc import Iterator

import pytest

from e2e.cluster.local import Local
from e2e.demo import install
from e2e.demo.stage import Stage
from e2e.kube import Kube, wait_until
from e2e.tests.support import ask, condition

pytestmark = pytest.mark.cluster


@pytest.fixture
def second_node(stage: Stage, model: Kube) -> Iterator[str]:
    """Another GPU node, dressed like the first."""
    if not isinstance(stage.provider, Local):
        pytest.skip("only the local provider can lose a node without harming anybody's")
    name = stage.provider.add_node(1)
    try:
        for target in ("silicon", "engine"):  # what runs on each GPU node
            stage.provider.load_image(stage.references[target])
        slices = ("-o", r"jsonpath={.status.allocatable.nvidia\.com/mig-1g\.10gb}")
        wait_until(lambda: model.kubectl("get", "node", name, *slices) == "7", 90, "the second node's slices")
        yield name
    finally:
        stage.provider.lose_node(1)
        model.kubectl("delete", "node", name, "--ignore-not-found")


def test_the_other_replica_serves_on_and_a_replacement_comes(
    stage: Stage, model: Kube, second_node: str
) -> None:
    assert isinstance(stage.provider, Local)
    first_node = model.get("nodes")["items"][0]["metadata"]["name"]
    model.kubectl("cordon", first_node)
    model.kubectl(
        "patch",
        "llmdep",
        install.NAME,
        "--type=merge",
        "-p",
        json.dumps({"spec": {"scaling": {"minReplicas": 2}}}),
    )
    wait_until(lambda: install.replicas(model) == (2, 2), 120, "a replica on the second node")
    model.kubectl("uncordon", first_node)
    assert {second_node, first_node} == _nodes(model)

    stage.provider.lose_node(1)
    model.kubectl(
        "wait", "--for=condition=Ready=Unknown", f"node/{second_node}", "--timeout=120s", timeout=150
    )
    assert stage.provider.status().up, "the first node and the control plane stay"
    wait_until(lambda: install.replicas(model)[0] == 1, 120, "the status to say that one replica is gone")

    assert condition(model, "Ready")["status"] == "False"
    assert ask(model)
    model.kubectl("delete", "node", second_node)
    wait_until(lambda: install.replicas(model) == (2, 2), 120, "a replacement on the node that is left")
    assert _nodes(model) == {first_node}
    model.kubectl("wait", "--for=condition=Ready", f"llmdep/{install.NAME}", "--timeout=30s")


def _nodes(kube: Kube) -> set[str]:
    pods = kube.get("pods", "-l", "app.kubernetes.io/component=engine")["items"]
    return {pod["spec"]["nodeName"] for pod in pods if not pod["metadata"].get("deletionTimestamp")}
