"""What the chart runs after an uninstall: it lifts the holds that are left, and may do nothing else."""

import json
import subprocess
import sys
import time

import pytest
import yaml

from tangram.eligibility.devices.tolerations import HOLD_PREFIX, inspect_tolerations
from tests.chart.test_admission_policies import DEDICATED, HOLD, MERGE, Caller, _metadata, _taints
from tests.chart.test_chart_renders import EVERYTHING

NAMESPACE, HOOK = "held", "mig-tangram-lift-holds"
PARTITIONED = {"partition": {"enabled": True}}
OURS = {**HOLD, "value": "1700000000-1700000300"}
OURS_TOO = {**OURS, "key": "hold.tangram.dev/gpu"}
OF_A_PERSON = {**HOLD, "key": "hold.tangram.dev/mig-3g.40gb", "value": "maintenance"}
NODE = "held-node"


def hook_objects(objects):
    return [one for one in objects if "helm.sh/hook" in one["metadata"].get("annotations", {})]


def pod_of(objects, kind):
    return objects.one(kind)["spec"]["template"]["spec"]


def test_only_an_operator_that_may_hold_nodes_has_a_hook(helm):
    assert hook_objects(helm.objects()) == []
    objects = hook_objects(helm.objects(PARTITIONED))
    assert {one["metadata"]["annotations"]["helm.sh/hook"] for one in objects} == {"post-delete"}
    policy = {one["metadata"]["annotations"]["helm.sh/hook-delete-policy"] for one in objects}
    assert policy == {"before-hook-creation,hook-succeeded"}
    weights = {one["kind"]: one["metadata"]["annotations"].get("helm.sh/hook-weight", "0") for one in objects}
    assert {kind for kind, weight in weights.items() if weight == "0"} == {"Job"}


def test_the_job_and_the_operator_start_on_nodes_that_are_held(helm):
    holds = [t for t in inspect_tolerations(()) if t["key"].startswith(HOLD_PREFIX)]
    objects = helm.objects(PARTITIONED)
    for kind in ("Job", "Deployment"):
        assert pod_of(objects, kind)["tolerations"] == [dict(toleration) for toleration in holds]
        assert pod_of(helm.objects(EVERYTHING), kind)["tolerations"][0] == {"operator": "Exists"}
    assert "tolerations" not in pod_of(helm.objects(), "Deployment")


def test_the_job_runs_the_image_of_the_operator_and_ends_in_bounded_time(helm):
    objects = helm.objects(EVERYTHING)
    (job,), (operator,) = (pod_of(objects, kind)["containers"] for kind in ("Job", "Deployment"))
    assert job["image"] == operator["image"]
    assert job["args"] == ["--lift-holds"]
    assert objects.one("Job")["spec"]["activeDeadlineSeconds"] <= 120
    assert pod_of(objects, "Job")["serviceAccountName"] == objects.one("Job")["metadata"]["name"]


@pytest.fixture(scope="module")
def held(cluster, helm):
    """The caller that a hook is, on a cluster with a node that is held; its policy is in force."""
    rendered = helm.objects({**PARTITIONED, "crds": {"enabled": False}}, release="mig", namespace=NAMESPACE)
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": NODE, "labels": {"a": "b"}},
        "spec": {"taints": [DEDICATED, OURS, OF_A_PERSON, OURS_TOO]},
    }
    cluster.ok("kubectl", "create", "namespace", NAMESPACE)
    objects = [one for one in hook_objects(rendered) if one["kind"] != "Job"]
    cluster.ok("kubectl", "create", "-f", "-", stdin=yaml.safe_dump_all([*objects, node]))
    caller = HookCaller(cluster)
    deadline = time.monotonic() + 30
    while "ValidatingAdmissionPolicy" not in caller.patch(_metadata(labels={"c": "d"})):
        assert time.monotonic() < deadline, "the policy is not in force"
        time.sleep(0.1)
    yield caller
    cluster.ok("kubectl", "delete", "-f", "-", stdin=yaml.safe_dump_all([*objects, node]))


class HookCaller(Caller):
    """Requests with the token of a ServiceAccount beside the release, by default the hook's."""

    def __init__(self, cluster, name=HOOK):
        super().__init__(cluster, name, namespace=NAMESPACE)
        self.cluster = cluster

    def patch(self, change):
        return self.call("PATCH", f"/api/v1/nodes/{NODE}", change, MERGE)

    def taints(self):
        found = json.loads(self.cluster.ok("kubectl", "get", "node", NODE, "-o", "json"))
        return found["spec"].get("taints", [])

    def lift_holds(self, folder):
        """Run the operator's program as the hook does, with this token."""
        path = folder / "kubeconfig"
        tls = {"server": self.server, "certificate-authority": str(self.cluster.plane.authority.certificate)}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": tls}],
            "users": [{"name": "u", "user": {"token": self.token}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        path.write_text(yaml.safe_dump(config))
        command = [sys.executable, "-P", "-m", "tangram", "--lift-holds", "--kubeconfig", str(path)]
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.apiserver
@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_taints(OURS, OF_A_PERSON, OURS_TOO), "those alone may be removed"),
        (_taints(DEDICATED, {**HOLD, "value": "1-2", "key": "hold.tangram.dev/mig-2g.20gb"}), "those alone"),
        (_taints({**DEDICATED, "value": "x"}), "those alone may be removed"),
        ({"spec": {"unschedulable": True}}, "spec, taints alone"),
        (_metadata(labels={"a": None}), "metadata of a Node may not be changed"),
        (_metadata(annotations={"tangram.dev/a": "b"}), "metadata of a Node may not be changed"),
    ],
    ids=str,
)
def test_the_hook_may_change_nothing_else_of_a_node(held, change, reason):
    assert reason in held.patch(change)


@pytest.mark.apiserver
@pytest.mark.timeout(180)
def test_the_hook_lifts_the_holds_of_the_operator_and_leaves_all_other_taints(held, tmp_path):
    before = held.taints()
    lifted = [taint for taint in before if taint["key"] not in (OURS["key"], OURS_TOO["key"])]
    for _ in range(2):  # once more: nothing is left to do
        done = held.lift_holds(tmp_path)
        assert done.returncode == 0, done.stderr
        assert held.taints() == lifted
    assert OF_A_PERSON in lifted


@pytest.mark.apiserver
@pytest.mark.timeout(180)
def test_without_its_rights_the_hook_fails_and_names_the_taints_to_remove(held, cluster, tmp_path):
    cluster.ok("kubectl", "create", "serviceaccount", "other", "-n", NAMESPACE)
    done = HookCaller(cluster, "other").lift_holds(tmp_path)
    assert done.returncode == 4
    assert "hold.tangram.dev/*" in done.stderr
    assert "forbidden" in done.stderr
