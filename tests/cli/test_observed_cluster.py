"""A real API server, read as the operator reads it: what is seen, by whose rights, and what is said else."""

import asyncio
import json
import os
import subprocess
from pathlib import Path

import pytest
import yaml

from e2e.cluster.apiserver import ControlPlane, free_port
from e2e.cluster.binaries import need
from tangram.catalog import InputError
from tangram.cli.cluster.access import ClusterAccess
from tangram.cli.cluster.observed_cluster import read_cluster
from tangram.fleet import Intent
from tangram.kube.client import UNGUARDED, ApiClient
from tangram.kube.kinds import LLM_DEPLOYMENTS, NODES
from tangram.kube.kubeconfig import load_kubeconfig
from tangram.plan.fleet_input.documents.snapshot_file import read_snapshot
from tangram.plan.recommend import recommend
from tests.support.apiserver import FACTS, gpu_node, llm
from tests.support.plans import run

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(180)]
STATUS = {
    "observedGeneration": 1,
    "desiredReplicas": 3,
    "model": {
        "uri": "image:///models/tangram-tiny",
        "engineImage": "registry.example.com/team/tangram-engine:0.1.0",
    },
}


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    """An API server on which nothing is installed yet."""
    with ControlPlane(tmp_path_factory.mktemp("plane")) as running:
        yield running


class Tools:
    def __init__(self, plane, home):
        self.env = {"PATH": os.environ["PATH"], "HOME": str(home), "KUBECONFIG": str(plane.kubeconfig)}

    def run(self, program, *args, documents=()):
        done = subprocess.run(
            [str(need(program)), *args],
            input=yaml.safe_dump_all(documents) if documents else None,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def apply(self, *documents):
        self.run("kubectl", "apply", "-f", "-", documents=documents)


@pytest.fixture(scope="module")
def cluster(plane, tmp_path_factory):
    """The chart is installed, two nodes and two LLMDeployments are there; no operator runs."""
    tools = Tools(plane, tmp_path_factory.mktemp("home"))
    tools.run("kubectl", "create", "namespace", "tangram-system")
    _install(tools, "tangram", "tangram-system")
    asyncio.run(_populate(plane.kubeconfig))
    return tools


def _install(tools, release, namespace, *flags):
    chart = str(ROOT / "charts" / "tangram")
    image = ("--set", "image.registry=registry.example.com/team", "--set", "image.engine.tag=0.1.0")
    prices = ("--set-json", 'prices={"L40S": 0.77}')
    tools.run("helm", "install", release, chart, "--namespace", namespace, *image, *prices, *flags)


async def _populate(kubeconfig):
    client = ApiClient(load_kubeconfig(str(kubeconfig)))
    try:
        for name, product in (("node-a", "NVIDIA-H100-80GB-HBM3"), ("node-b", "NVIDIA-L40S")):
            await _add_node(client, gpu_node(name, gpus=4, product=product))
        for name in ("chat", "draft"):
            spec = {"scaling": {"minReplicas": 1, "maxReplicas": 8}}
            await client.apply(
                LLM_DEPLOYMENTS, llm(name, "default", **spec), manager="tests", force=True, guard=UNGUARDED
            )
        told = llm("chat", "default") | {"status": STATUS | {"model": STATUS["model"] | {"facts": FACTS}}}
        del told["spec"]
        await client.apply(
            LLM_DEPLOYMENTS, told, manager="tangram-status", force=True, subresource="status", guard=UNGUARDED
        )
    finally:
        await client.close()


async def _add_node(client, node):
    """Nobody plays the node controller here: its first taint is taken off by hand."""
    await client.apply(
        NODES, {k: v for k, v in node.items() if k != "status"}, manager="tests", force=True, guard=UNGUARDED
    )
    await client.apply(NODES, node, manager="kubelet", force=True, subresource="status", guard=UNGUARDED)
    await client.merge(NODES, "", node["metadata"]["name"], {"spec": {"taints": []}}, guard=UNGUARDED)


def refused(access):
    with pytest.raises(InputError) as raised:
        read_cluster(access)
    text = str(raised.value)
    assert "\n" not in text
    return text


def test_a_cluster_without_the_crds_is_told_so(plane):
    assert "Tangram's CRDs are not installed there" in refused(ClusterAccess(str(plane.kubeconfig)))


def test_everything_that_the_operator_sees_is_seen_without_it(plane, cluster):
    seen = read_cluster(ClusterAccess(str(plane.kubeconfig)))

    assert [(n.name, n.sku, dict(n.allocatable)) for n in seen.fleet.nodes] == [
        ("node-a", "H100-80GB-SXM", {"nvidia.com/gpu": 4}),
        ("node-b", "L40S", {"nvidia.com/gpu": 4}),
    ]
    assert seen.fleet.engine_image == STATUS["model"]["engineImage"]
    assert seen.fleet.prices == (("L40S", 0.77),)
    assert [each.name for each in seen.intents if isinstance(each, Intent)] == ["chat", "draft"]
    assert len(seen.fleet.facts) == 1


def test_as_many_replicas_are_wanted_as_the_status_says_and_the_fewest_of_who_is_new(plane, cluster):
    seen = read_cluster(ClusterAccess(str(plane.kubeconfig)))

    wanted = {i.name: dict(seen.fleet.desired)[i.uid] for i in seen.intents}
    assert wanted == {"chat": 3, "draft": 1}


ROLE = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRoleBinding",
    "metadata": {"name": "reader"},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "tangram-reader"},
    "subjects": [{"kind": "User", "name": "rita", "apiGroup": "rbac.authorization.k8s.io"}],
}


def test_without_rights_the_first_thing_that_is_missing_is_named_with_a_way_round(plane, cluster):
    nobody = str(plane.kubeconfig_for("nobody"))

    assert "you may not list configmaps in all namespaces" in refused(ClusterAccess(nobody))
    assert "in namespace tangram-system" in refused(
        ClusterAccess(nobody, operator_namespace="tangram-system")
    )


def test_with_the_settings_in_a_file_all_kinds_that_may_not_be_listed_are_named_at_once(
    plane, cluster, tmp_path
):
    config = tmp_path / "config.yaml"
    config.write_text("engineImage: registry.example.com/engine:1\n")

    line = refused(ClusterAccess(str(plane.kubeconfig_for("nobody")), config=str(config)))

    for kind in ("deployments", "jobs", "llmdeployments", "nodes", "pods", "services"):
        assert kind in line


def test_the_documented_role_suffices(plane, cluster):
    text = (ROOT / "docs" / "packing.md").read_text()
    role = yaml.safe_load(
        text.split("<!-- role of who takes snapshots -->")[1].split("```")[1].removeprefix("yaml")
    )
    cluster.apply(role, ROLE | {"roleRef": ROLE["roleRef"] | {"name": role["metadata"]["name"]}})

    seen = read_cluster(ClusterAccess(str(plane.kubeconfig_for("rita"))))

    assert len(seen.intents) == 2


def test_two_operators_are_a_choice_that_the_user_makes(plane, cluster):
    other = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "other", "namespace": "default"}}
    other["metadata"]["labels"] = {
        "app.kubernetes.io/part-of": "tangram",
        "app.kubernetes.io/component": "operator",
    }
    other["data"] = {"config.yaml": "engineImage: registry.example.com/other:2\n"}
    cluster.apply(other)
    try:
        assert "there are 2 operators: default/other, tangram-system/tangram" in refused(
            ClusterAccess(str(plane.kubeconfig))
        )
        seen = read_cluster(ClusterAccess(str(plane.kubeconfig), operator_namespace="default"))
        assert seen.fleet.engine_image == "registry.example.com/other:2"
    finally:
        cluster.run("kubectl", "delete", "configmap", "other")


def test_where_no_operator_is_installed_the_labels_are_named(plane, cluster):
    line = refused(ClusterAccess(str(plane.kubeconfig), operator_namespace="kube-public"))

    assert "namespace kube-public has no ConfigMap with the labels app.kubernetes.io/part-of=tangram" in line


def test_settings_that_are_wrong_are_told_with_their_place(plane, cluster, tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text("engineImages: x\n")

    line = refused(ClusterAccess(str(plane.kubeconfig), config=str(config)))

    assert line.startswith("operator's settings: ")
    assert "engineImages" in line


def test_a_server_that_does_not_answer_is_named(plane, tmp_path):
    config = yaml.safe_load(plane.kubeconfig.read_text())
    port = free_port()
    config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{port}"
    path = tmp_path / "nowhere"
    path.write_text(json.dumps(config))

    assert f"no answer from https://127.0.0.1:{port}" in refused(ClusterAccess(str(path)))


def test_credentials_that_the_server_does_not_know_are_told(plane, tmp_path):
    config = yaml.safe_load(plane.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": "nonsense"}
    path = tmp_path / "stranger"
    path.write_text(json.dumps(config))

    assert "does not accept the kubeconfig's credentials" in refused(ClusterAccess(str(path)))


def test_a_token_is_used_as_an_account_in_another_cluster_has_one(plane, cluster, tmp_path):
    cluster.run("kubectl", "create", "serviceaccount", "robot")
    cluster.run(
        "kubectl",
        "create",
        "clusterrolebinding",
        "robot",
        "--clusterrole=cluster-admin",
        "--serviceaccount=default:robot",
    )
    config = yaml.safe_load(plane.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": cluster.run("kubectl", "create", "token", "robot").strip()}
    path = tmp_path / "robot"
    path.write_text(json.dumps(config))

    assert len(read_cluster(ClusterAccess(str(path))).intents) == 2


def test_what_a_credential_plug_in_says_is_passed_on(plane, tmp_path):
    config = yaml.safe_load(plane.kubeconfig.read_text())
    plug_in = {"apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "interactiveMode": "Never"}
    config["users"][0]["user"] = {"exec": plug_in | {"args": ["-c", "echo please log in >&2; exit 3"]}}
    path = tmp_path / "plug-in"
    path.write_text(json.dumps(config))

    assert "please log in" in refused(ClusterAccess(str(path)))


@pytest.mark.parametrize(
    "text", ["", "[]", "kind: Config", "a: [", "clusters: 3\ncurrent-context: x\ncontexts: []"]
)
def test_a_file_that_is_no_kubeconfig_is_one_line(text, tmp_path):
    path = tmp_path / "broken"
    path.write_text(text)

    assert refused(ClusterAccess(str(path))).startswith("cluster: ")
    assert refused(ClusterAccess(str(path), context="x")).startswith("cluster: ")


def test_a_context_is_chosen_by_name(plane, cluster, tmp_path):
    config = yaml.safe_load(plane.kubeconfig.read_text())
    config["contexts"].append({"name": "second", "context": dict(config["contexts"][0]["context"])})
    config["current-context"] = "gone"
    path = tmp_path / "contexts"
    path.write_text(json.dumps(config))

    assert len(read_cluster(ClusterAccess(str(path), context="second")).intents) == 2
    assert "gone" in refused(ClusterAccess(str(path)))
    assert "third" in refused(ClusterAccess(str(path), context="third"))


def test_a_snapshot_is_the_cluster_in_a_file(plane, cluster, tmp_path):
    path, other = tmp_path / "fleet.yaml", tmp_path / "fleet.json"
    flags = ("--kubeconfig", plane.kubeconfig)

    status, out, err = run("snapshot", "-o", path, *flags)
    assert (status, out) == (0, "")
    assert err == f"{path}: 2 GPU nodes, 0 GPUPools, 2 LLMDeployments\n"
    _, printed, _ = run("snapshot", *flags)
    run("snapshot", "-o", other, *flags)

    assert yaml.safe_load(printed) == yaml.safe_load(path.read_text()) == json.loads(other.read_text())
    seen = read_cluster(ClusterAccess(str(plane.kubeconfig)))
    assert read_snapshot(json.loads(other.read_text()), "it") == (seen.fleet, seen.intents)


def test_the_plan_of_a_snapshot_is_that_of_the_cluster(plane, cluster, tmp_path):
    path = tmp_path / "fleet.yaml"
    run("snapshot", "-o", path, "--kubeconfig", plane.kubeconfig)
    seen = read_cluster(ClusterAccess(str(plane.kubeconfig)))

    plan = json.loads(run("plan", "-f", path, "-o", "json")[1])

    assert plan["inputsHash"] == recommend(seen.fleet, seen.intents).inputs_hash
    assert [each["name"] for each in plan["deployments"]] == ["chat", "draft"]


def test_what_the_cluster_runs_is_explained(plane, cluster):
    status, out, err = run("explain", "llmdep/chat", "--kubeconfig", plane.kubeconfig, "-o", "json")

    assert (status, err) == (0, "")
    found = json.loads(out)
    assert found["modelURI"] == "image:///models/tangram-tiny"
    assert found["operator"]["desired"] == 3
    assert found["plan"]["chosen"]


def test_a_deployment_that_the_cluster_does_not_have_is_one_line(plane, cluster):
    status, out, err = run("explain", "llmdep/chatt", "--kubeconfig", plane.kubeconfig)

    assert (status, out) == (2, "")
    assert err == "tangram: explain: there is no LLMDeployment chatt; did you mean chat?\n"


def test_a_snapshot_that_cannot_be_written_is_one_line(plane, cluster, tmp_path):
    status, _, err = run("snapshot", "-o", tmp_path / "no" / "such", "--kubeconfig", plane.kubeconfig)

    assert status == 2
    assert err.startswith("tangram: --output: cannot write ")
    assert err.count("\n") == 1


@pytest.mark.parametrize("name", ["models.yaml", "what-if.yaml"])
def test_the_examples_are_taken_by_the_api_server_as_they_are(cluster, name):
    path = str(ROOT / "examples" / "plan" / name)

    cluster.run("kubectl", "apply", "--dry-run=server", "--validate=strict", "-f", path)


def test_scale_sets_a_number_and_gives_it_back(plane, cluster):
    flags = ("-n", "default", "--kubeconfig", plane.kubeconfig)

    first = run("scale", "draft", "--auto", *flags)
    set_to_two = run("scale", "draft", "--replicas", "2", *flags)
    again = run("scale", "draft", "--replicas", "2", *flags)
    back = run("scale", "draft", "--auto", *flags)

    assert first == (
        0,
        "default/draft: spec.replicas is not set: Tangram scales it already, from 1 to 8 replicas\n",
        "",
    )
    undo = "tangram scale draft -n default --auto undoes it"
    assert set_to_two == (0, f"default/draft: spec.replicas is 2 now (Tangram scaled it); {undo}\n", "")
    assert again == (0, "default/draft: spec.replicas is 2 already\n", "")
    assert back == (0, "default/draft: Tangram scales it now, from 1 to 8 replicas\n", "")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("nothing", "--auto"), "scale: there is no LLMDeployment nothing in namespace default"),
        (("draft",), "scale: give either --auto or --replicas N"),
        (("draft", "--auto", "--replicas", "1"), "scale: give either --auto or --replicas N"),
        (("draft", "--replicas", "1001"), "1001 is not in the range 0<=x<=1000"),
        (("draft", "--replicas", "nan"), "'nan' is not a valid integer"),
    ],
)
def test_what_cannot_be_scaled_is_one_line(plane, cluster, words, says):
    status, out, err = run("scale", *words, "--kubeconfig", plane.kubeconfig)

    assert (status, out) == (2, "")
    assert says in err
    assert err.count("\n") == 1


def test_scale_without_rights_says_what_is_forbidden(plane, cluster):
    nobody = plane.kubeconfig_for("nobody")

    status, _, err = run("scale", "draft", "--auto", "--kubeconfig", nobody)

    assert status == 2
    assert "forbids it" in err
    assert 'User "nobody" cannot get resource "llmdeployments"' in err
