"""What the real API server takes, refuses, keeps and shows of cluster-scoped kinds."""

import json
import re
import time
from pathlib import Path

import pytest
import yaml

from tangram.plan.result.fleet_plan_spec import fleet_plan_spec
from tests.support.gpu_nodes import GPU_A, GPU_B, STATUS, WHEN, condition
from tests.support.plan_documents import large_plan
from tests.support.runtimes import runtime_cases

ROOT = Path(__file__).resolve().parents[2]
CASES = [
    pytest.param(kind, case, id=f"{kind}-{case['name']}".replace(" ", "-"))
    for kind, file in (("GPUPool", "pool_cases.yaml"), ("GPUNode", "gpu_node_cases.yaml"))
    for case in yaml.safe_load((ROOT / "tests" / "api" / file).read_text())
    if case.get("only") != "parse"
]
CASES += [pytest.param("EngineRuntime", case, id=f"EngineRuntime-{case['name']}") for case in runtime_cases()]
OURS = ("LLMDeployment", "GPUPool", "FleetPlan", "GPUNode", "EngineRuntime")
_SPEC_SCHEMA = "/spec/versions/0/schema/openAPIV3Schema/properties/spec"
ACCOUNT = "system:serviceaccount:tangram-system:tangram"
pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(180)]


def obj(kind, name, spec):
    found = {"apiVersion": "tangram.dev/v1alpha1", "kind": kind, "metadata": {"name": name}}
    return json.dumps(found | ({} if spec is None else {"spec": spec}))


def eventually(holds, what):
    """Wait until the API server serves a changed schema: it does within a second or two."""
    until = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < until, what
        time.sleep(0.2)


def plan_spec(**large):
    return fleet_plan_spec(large_plan(**large), inputs_hash="0123456789ab")


@pytest.mark.parametrize(("kind", "case"), CASES)
def test_the_api_server_accepts_or_refuses(cluster, kind, case):
    answer = cluster.admin.post(
        f"/apis/tangram.dev/v1alpha1/{kind.lower()}s",
        params={"dryRun": "All", "fieldValidation": "Strict"},
        headers={"Content-Type": "application/json"},
        content=obj(kind, "case", case["spec"]),
    ).json()

    accepted = answer["kind"] == kind
    assert accepted == (case["verdict"] == "accepted"), answer
    assert accepted or case.get("message", "") in answer["message"]


def test_a_pool_is_shown_with_its_columns_and_defaults(cluster):
    spec = {"nodeSelector": {"pool": "h100"}, "pricePerGPUHour": "2.50"}
    cluster.ok("kubectl", "apply", "-f", "-", stdin=obj("GPUPool", "shown", spec))
    status = {
        "observedGeneration": 1,
        "nodes": 2,
        "gpus": 16,
        "freeGPUs": 3,
        "costPerHour": "32.50",
        "allocatable": {"nvidia.com/gpu": 13, "nvidia.com/mig-1g.10gb": 21},
        "free": {"nvidia.com/gpu": 0, "nvidia.com/mig-1g.10gb": 4},
        "conditions": [
            {
                "type": kind,
                "status": verdict,
                "observedGeneration": 1,
                "lastTransitionTime": "2026-01-01T00:00:00Z",
                "reason": reason,
                "message": "",
            }
            for kind, verdict, reason in (
                ("Accepted", "True", "Valid"),
                ("Ready", "False", "NodesNotReady"),
            )
        ],
    }
    cluster.ok(
        *("kubectl", "patch", "gpupool", "shown", "--subresource=status", "--type=merge"),
        *("-p", json.dumps({"status": status})),
    )

    header, row = (line.split() for line in cluster.ok("kubectl", "get", "gpupool").splitlines())

    assert header == ["NAME", "NODES", "GPUS", "POLICY", "$/GPU-H", "READY", "REASON", "AGE"]
    assert row[:-1] == ["shown", "2", "16", "IdleOnly", "2.50", "False", "NodesNotReady"]
    wide = cluster.ok("kubectl", "get", "gpupool", "-o", "wide").splitlines()[0].split()
    assert set(wide) - set(header) == {"ACCEPTED", "FREE", "$/H"}
    kept = json.loads(cluster.ok("kubectl", "get", "gpupool", "shown", "-o", "json"))
    assert kept["status"] == status


@pytest.mark.parametrize("long_names", [False, True], ids=["names", "long-names"])
def test_the_plan_of_ten_thousand_gpus_is_taken_whole_and_never_changes(cluster, long_names):
    name, spec = "0123456789a" + "bc"[long_names], plan_spec(long_names=long_names)
    cluster.ok(
        *("kubectl", "create", "--validate=strict", "--as", ACCOUNT, "-f", "-"),
        stdin=obj("FleetPlan", name, spec),
    )

    kept = json.loads(cluster.ok("kubectl", "get", "fleetplan", name, "-o", "json", "--show-managed-fields"))
    assert kept["spec"] == spec
    assert len(json.dumps(kept, ensure_ascii=False).encode()) < 500 * 1024

    for change in ({"costPerHour": "1.00"}, {"steps": []}, {"stepsMissing": None}):
        refused = cluster.run(
            *("kubectl", "patch", "fleetplan", name, "--type=merge", "-p", json.dumps({"spec": change}))
        )
        assert refused.returncode != 0
        assert (
            "the spec of a FleetPlan never changes, but for approved: the next plan is another FleetPlan"
            in refused.stderr
        )
    cluster.ok("kubectl", "label", "fleetplan", name, "seen=yes")


def test_a_plan_is_shown_with_its_columns_and_its_state_is_a_known_one(cluster):
    spec = plan_spec(gpus=16, deployments=4)
    cluster.ok("kubectl", "create", "-f", "-", stdin=obj("FleetPlan", "abcdefabcdef", spec))
    patch = ("kubectl", "patch", "fleetplan", "abcdefabcdef", "--subresource=status", "--type=merge", "-p")

    refused = cluster.run(*patch, json.dumps({"status": {"state": "Finished"}}))
    assert '"Recommended", "InForce", "Superseded", "Approved"' in refused.stderr
    status = {"state": "Recommended", "since": "2026-01-01T00:00:00Z"}
    status |= {"currentCostPerHour": "25000.00", "savesPerHour": "3699.50", "solveSeconds": "12.50"}
    cluster.ok(*patch, json.dumps({"status": status}))

    header, row = (
        line.split() for line in cluster.ok("kubectl", "get", "fleetplan", "abcdefabcdef").splitlines()
    )
    figures = ["$/H", "SAVES", "UNMET", "GAP", "GPUS"]
    assert header == ["NAME", "STATE", "CHANGES", *figures, "REASON", "SOLVE", "AGE"]
    assert row[:-1] == [
        *("abcdefabcdef", "Recommended", "21300.50", "3699.50", "4", "1.61%"),
        *(f"{spec['gpusInUse']}/16", "12.50"),
    ]


CHANGES = {
    "changes": [
        {
            "node": "node-a",
            "gpu": "GPU-7aab173f-d8ac-53c6-bc87-e8df5c21001f",
            "before": {"migEnabled": False},
            "after": {"migEnabled": True, "instances": [{"profile": "1g.10gb", "start": 6}]},
        }
    ],
    "changeDisplay": "n/0: gpu -> 1g.10gb",
    "pool": "h100",
}


def test_of_a_plan_of_changes_the_consent_may_change_and_nothing_else(cluster):
    cluster.ok(
        *("kubectl", "create", "--validate=strict", "-f", "-"),
        stdin=obj("FleetPlan", "abcdefabcde1", CHANGES),
    )
    patch = ("kubectl", "patch", "fleetplan", "abcdefabcde1", "--type=merge", "-p")

    cluster.ok(*patch, json.dumps({"spec": {"approved": True}}))
    cluster.ok(*patch, json.dumps({"spec": {"approved": False}}))
    cluster.ok(*patch, json.dumps({"spec": {"approved": None}}))

    for change in (
        {"pool": "other"},
        {"changes": []},
        {"changeDisplay": None},
        {"disturbed": [{"owner": "team/chat", "sku": "H100-80GB-SXM", "profile": "gpu"}]},
        {"approved": "yes"},
    ):
        assert cluster.run(*patch, json.dumps({"spec": change})).returncode != 0
    row = cluster.ok("kubectl", "get", "fleetplan", "abcdefabcde1").splitlines()[1]
    assert "n/0: gpu -> 1g.10gb" in row


def test_a_plan_is_of_the_fleet_or_of_changes_and_never_both_nor_neither(cluster):
    fleet = plan_spec(gpus=16, deployments=4)
    unpooled = {key: value for key, value in CHANGES.items() if key != "pool"}
    for spec in ({}, fleet | CHANGES, fleet | {"approved": True}, unpooled, {"pool": "h100"}):
        refused = cluster.run("kubectl", "create", "-f", "-", stdin=obj("FleetPlan", "abcdefabcde2", spec))
        assert refused.returncode != 0
        assert "a FleetPlan is either of the whole fleet" in refused.stderr


def test_a_plan_that_an_earlier_version_stored_takes_a_status(cluster):
    """Its spec held figures that are in the status now: they are dropped on reading, on both sides alike."""
    spec = plan_spec(gpus=8, deployments=2) | {"savesPerHour": "1.00", "solveSeconds": "0.10"}

    def patch_schema(op, **value):
        patch = {"op": op, "path": f"{_SPEC_SCHEMA}/x-kubernetes-preserve-unknown-fields"} | value
        cluster.ok(
            "kubectl", "patch", "crd", "fleetplans.tangram.dev", "--type=json", "-p", json.dumps([patch])
        )

    def stored_whole():
        cluster.ok("kubectl", "create", "-f", "-", stdin=obj("FleetPlan", "stored-before", spec))
        found = json.loads(cluster.ok("kubectl", "get", "fplan", "stored-before", "-o", "json"))["spec"]
        if "savesPerHour" in found:
            return True
        cluster.ok("kubectl", "delete", "fplan", "stored-before")
        return False

    patch_schema("add", value=True)
    eventually(stored_whole, "a plan with the fields of an earlier version")
    patch_schema("remove")
    patch = ("kubectl", "patch", "fplan", "stored-before", "--subresource=status", "--type=merge", "-p")

    def pruned():
        found = json.loads(cluster.ok("kubectl", "get", "fplan", "stored-before", "-o", "json"))
        return "savesPerHour" not in found["spec"]

    eventually(pruned, "the fields to be dropped on reading")
    cluster.ok(*patch, json.dumps({"status": {"state": "Superseded"}}))
    cluster.ok("kubectl", "delete", "fplan", "stored-before")


def patch_status(name, status):
    patch = json.dumps({"status": status})
    return ("kubectl", "patch", "gpunode", name, "--subresource=status", "--type=merge", "-p", patch)


def test_a_gpu_node_is_shown_with_its_columns_and_keeps_its_whole_status(cluster):
    cluster.ok("kubectl", "create", "-f", "-", stdin=obj("GPUNode", "shown", {"planHash": "0123456789ab"}))
    cluster.ok(*patch_status("shown", STATUS))

    found = cluster.ok("kubectl", "get", "gpunode", "shown", "-o", "wide").splitlines()
    header, row = (re.split(r" {2,}", line.strip()) for line in found)

    assert header == [
        *("NAME", "GPUS", "LAYOUT", "APPLIED", "READY", "REASON"),
        *("DEADLINE", "BACKEND", "PLAN", "AGE"),
    ]
    assert row[:6] == ["shown", "2", "4g.40gb+3g.40gb, gpu", "1/2", "True", "WaitingForPods"]
    assert row[6:9] == [WHEN, "NVML", "0123456789ab"]
    assert json.loads(cluster.ok("kubectl", "get", "gnode", "shown", "-o", "json"))["status"] == STATUS


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (
            {"conditions": [condition("Applied", "False", "W", waitsFor="pod a/b")]},
            "what waits has a deadline",
        ),
        ({"conditions": [condition("Healthy", "True", "W")]}, '"Ready", "Applied"'),
        (
            {
                "quarantine": [
                    {"uuid": "index-0", "reason": "A", "message": "", "since": "2026-01-01T00:00:00Z"}
                ]
            },
            "uuid",
        ),
        (
            {
                "gpus": [
                    {
                        "id": "index-0",
                        "index": 0,
                        "migMode": "Enabled",
                        "instances": [
                            {"profile": "1g.10gb", "usage": "Free", "holder": {"namespace": "a", "name": "b"}}
                        ],
                    }
                ]
            },
            "an instance with a holder is Held",
        ),
    ],
    ids=["waiting-without-a-deadline", "unknown-condition", "quarantine-by-index", "free-with-a-holder"],
)
def test_the_api_server_refuses_a_status_of_a_gpu_node(cluster, status, message):
    cluster.ok("kubectl", "apply", "-f", "-", stdin=obj("GPUNode", "refused", {}))

    assert message in cluster.run(*patch_status("refused", status)).stderr


def test_the_spec_of_a_gpu_node_names_gpus_that_its_backend_found(cluster):
    def want(*gpus):
        spec = {"gpus": [{"id": gpu, "migEnabled": True} for gpu in gpus]}
        patch = json.dumps({"spec": spec})
        return cluster.run("kubectl", "patch", "gpunode", "named", "--type=merge", "-p", patch)

    def report(*gpus):
        status = [{"id": gpu, "index": i, "migMode": "Enabled"} for i, gpu in enumerate(gpus)]
        return cluster.run(*patch_status("named", {"gpus": status}))

    cluster.ok("kubectl", "create", "-f", "-", stdin=obj("GPUNode", "named", {}))
    assert want(GPU_B).returncode == 0  # nothing is known yet
    assert want().returncode == 0
    assert report(GPU_A).returncode == 0

    assert "spec.gpus names a GPU that status.gpus does not have" in want(GPU_A, GPU_B).stderr
    assert want(GPU_A).returncode == 0
    # A GPU that falls off the bus is reported though the spec still names it, and the spec may keep it.
    assert report(GPU_B).returncode == 0
    assert want(GPU_A, GPU_B).returncode == 0


def test_every_kind_has_a_short_name_and_all_are_listed_as_tangram(cluster):
    cluster.ok("kubectl", "create", "-f", "-", stdin=obj("GPUPool", "listed", {"nodeSelector": {"a": "b"}}))
    plan = plan_spec(gpus=8, deployments=2)
    cluster.ok("kubectl", "create", "-f", "-", stdin=obj("FleetPlan", "listed", plan))

    cluster.ok("kubectl", "create", "-f", "-", stdin=obj("GPUNode", "listed", {}))

    for name, kind in (("gpool", "gpupool"), ("fplan", "fleetplan"), ("gnode", "gpunode")):
        found = cluster.ok("kubectl", "get", name, "listed", "-o", "name").strip()
        assert found == f"{kind}.tangram.dev/listed"
    everything = cluster.ok("kubectl", "get", "tangram", "-A", "-o", "name").split()
    assert {"gpupool.tangram.dev/listed", "fleetplan.tangram.dev/listed"} <= set(everything)
    cluster.ok("kubectl", "get", "llmdep,gpool,fplan,gnode", "-A")


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("llmdep.spec.traffic.requestsPerSecond", "Requests per second, of all replicas together"),
        ("llmdep.spec.engine.precision", "AsStored"),
        ("llmdep.spec.placement.spread.zone", "topology.kubernetes.io/zone"),
        ("llmdep.status.placement.relaxations.text", "smallest such change"),
        ("gpupool.spec.migPolicy", "IdleOnly"),
        ("gpupool.spec.nodeSelector", "all of which a node must have"),
        ("fleetplan.spec.gap", "proved optimal"),
        ("gpunode.spec.gpus.instances.start", "first memory slice"),
        ("gpunode.status.gpus.attempts.nextTry", "tried again"),
    ],
)
def test_kubectl_explains_every_field(cluster, path, words):
    assert words in " ".join(cluster.ok("kubectl", "explain", path).split())


def test_every_example_of_our_kinds_is_accepted_as_it_stands(cluster):
    found = [
        (path, document)
        for path in sorted((ROOT / "examples").rglob("*.yaml"))
        for document in yaml.safe_load_all(path.read_text())
        if isinstance(document, dict) and document.get("kind") in OURS
    ]
    assert {document["kind"] for _, document in found} >= {"LLMDeployment"}
    for path, document in found:
        document["metadata"].pop("namespace", None)
        done = cluster.run(
            *("kubectl", "apply", "--dry-run=server", "--validate=strict", "-f", "-"),
            stdin=json.dumps(document),
        )
        assert done.returncode == 0, f"{path}: {done.stderr}"


def test_a_person_who_may_view_one_namespace_sees_no_plan_of_the_whole_fleet(cluster):
    role = "--clusterrole=tangram-view"  # what the cluster's own `view` takes in
    cluster.ok("kubectl", "create", "rolebinding", "one", "-n", "default", role, "--user=one")
    cluster.ok("kubectl", "create", "clusterrolebinding", "all", role, "--user=all")

    # Asked for real: `auth can-i` puts every question into a namespace.
    def refusal(user, *what):
        return cluster.run("kubectl", "get", *what, "--as", user).stderr

    assert "Forbidden" not in refusal("one", "llmdeployments", "-n", "default")
    assert "Forbidden" in refusal("one", "fleetplans")
    assert "Forbidden" in refusal("one", "gpupools")
    assert "Forbidden" not in refusal("all", "fleetplans,gpupools")
    changed = cluster.run(
        *("kubectl", "create", "--as", "all", "-f", "-"),
        stdin=obj("GPUPool", "x", {"nodeSelector": {"a": ""}}),
    )
    assert "Forbidden" in changed.stderr
