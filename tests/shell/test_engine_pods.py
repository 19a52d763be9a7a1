"""Which pods the operator asks for their metrics, and at which addresses."""

import pytest

from tangram.shell.snapshot.intents import parsed_intents
from tangram.shell.snapshot.recorded_status import recorded_scaling_active
from tangram.shell.snapshot.workloads import EnginePod, engine_pods, is_pod_address
from tangram.shell.watch.kept_fields import MAX_ID
from tests.support import views

CHAT = views.llm_deployment("chat")
(OWNER,) = parsed_intents(views.Fleet((CHAT,)).view(), lambda *_: None, "")
DEPLOYMENT = views.deployment(OWNER, replicas=2)


def pod(name="p", ip="10.1.2.3", *, ready=True, **changes):
    raw = views.pod(DEPLOYMENT, "n1")
    raw["metadata"] |= {"name": name, "uid": f"uid-{name}"} | changes.pop("metadata", {})
    raw["spec"] |= changes.pop("spec", {})
    raw["status"] |= {"podIP": ip, "conditions": [{"type": "Ready", "status": str(ready)}]} | changes
    return raw


def found(*pods):
    view = views.Fleet((CHAT,), (views.node("n1", 10),), pods, deployments=(DEPLOYMENT,)).view()
    return engine_pods(view)


def test_running_pods_are_found_whether_they_are_ready_or_not():
    pods = found(pod("b", "10.0.0.2", ready=False), pod("a", "10.0.0.1"))

    a, b = EnginePod("uid-a", "a", "10.0.0.1", True), EnginePod("uid-b", "b", "10.0.0.2", False)
    assert pods == {OWNER.uid: (a, b)}


@pytest.mark.parametrize("phase", ["Pending", "Succeeded", "Failed", "Unknown"])
def test_a_pod_that_does_not_run_is_not_asked(phase):
    assert found(pod(phase=phase)) == {OWNER.uid: ()}


def test_a_pod_in_the_network_of_its_node_is_not_asked():
    assert found(pod(spec={"hostNetwork": True})) == {OWNER.uid: ()}


def test_a_pod_of_another_owner_is_not_asked():
    foreign = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "name": "web-77f",
        "uid": "x",
        "controller": True,
    }

    assert found(pod(metadata={"ownerReferences": [foreign]})) == {OWNER.uid: ()}


def test_annotations_change_no_address():
    lured = {"prometheus.io/port": "22", "prometheus.io/path": "/secret", "prometheus.io/scrape": "false"}

    assert found(pod(metadata={"annotations": lured})) == found(pod())


@pytest.mark.parametrize(
    "ip", ["10.0.0.1", "192.168.3.4", "100.64.0.9", "fd00::7", "2001:db8::1", "203.0.113.9"]
)
def test_an_address_of_the_pod_network_is_asked(ip):
    assert is_pod_address(ip)


@pytest.mark.parametrize(
    "ip",
    [
        *("", "169.254.169.254", "127.0.0.1", "::1", "0.0.0.0", "::", "224.0.0.1", "fe80::1", "fd00::7%eth0"),
        *("::ffff:169.254.169.254", "::ffff:127.0.0.1", "metadata.internal", "10.0.0.1/../x", "10.0.0.1:22"),
        *("2130706433", "0177.0.0.1", "x" * MAX_ID),
    ],
)
def test_an_address_that_no_pod_has_is_not_asked(ip):
    assert not is_pod_address(ip)
    assert found(pod(ip=ip)) == {OWNER.uid: ()}


@pytest.mark.parametrize(
    ("conditions", "shown"),
    [
        (
            [
                {"type": "Ready", "status": "True", "message": "x"},
                {"type": "ScalingActive", "status": "True", "message": "read from 3 of 3 pods"},
            ],
            {OWNER.uid: "True, read from 3 of 3 pods"},
        ),
        ([], {}),
        ("broken", {}),
        (["broken"], {}),
    ],
)
def test_a_status_says_where_metrics_are_read(conditions, shown):
    chat = views.llm_deployment("chat")
    chat["status"]["conditions"] = conditions

    assert recorded_scaling_active(views.Fleet((chat,)).view()) == shown
