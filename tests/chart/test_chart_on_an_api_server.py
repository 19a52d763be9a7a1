"""helm on a real API server: what it takes, what the operator may do there, what an uninstall leaves."""

import shutil

import pytest
import yaml

from tests.chart.conftest import CHART, ROOT

ACCOUNT = "system:serviceaccount:tangram-system:tangram"
pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(180)]


def test_the_example_is_accepted_and_shown_with_its_columns(cluster):
    cluster.ok("kubectl", "apply", "-f", str(ROOT / "examples" / "llmdeployment.yaml"))
    header = cluster.ok("kubectl", "get", "llmdep").splitlines()[0].split()
    assert header == ["NAME", "MODEL", "READY", "REASON", "REPLICAS", "PLACEMENT", "SLO", "$/H", "AGE"]


def test_a_namespace_that_enforces_the_restricted_standard_takes_the_operators_pod(cluster):
    deployment = yaml.safe_load(
        cluster.ok("kubectl", "get", "deployment", "tangram", "-n", "tangram-system", "-o", "yaml")
    )
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "probe", "namespace": "tangram-system"},
        "spec": deployment["spec"]["template"]["spec"],
    }
    cluster.ok("kubectl", "create", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump(pod))
    pod["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
    refused = cluster.run("kubectl", "create", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump(pod))
    assert "violates PodSecurity" in refused.stderr


@pytest.mark.parametrize(
    ("verb", "what", "where", "may"),
    [
        ("patch", "llmdeployments.tangram.dev/tiny-chat/status", "default", "yes"),
        ("patch", "llmdeployments.tangram.dev/tiny-chat", "default", "no"),
        ("create", "deployments.apps", "default", "yes"),
        ("watch", "pods", "kube-system", "yes"),
        ("delete", "pods", "default", "no"),
        ("delete", "services", "default", "no"),
        ("get", "secrets", "tangram-system", "no"),
        ("update", "leases.coordination.k8s.io/tangram", "tangram-system", "yes"),
        ("update", "leases.coordination.k8s.io/other", "tangram-system", "no"),
        ("create", "leases.coordination.k8s.io", "default", "no"),
        ("patch", "nodes", "default", "no"),
        ("create", "events.events.k8s.io", "default", "yes"),
        ("watch", "gpupools.tangram.dev", "default", "yes"),
        ("create", "gpupools.tangram.dev", "default", "no"),
        ("patch", "gpupools.tangram.dev/h100", "default", "no"),
        ("patch", "gpupools.tangram.dev/h100/status", "default", "yes"),
        ("create", "fleetplans.tangram.dev", "default", "yes"),
        ("delete", "fleetplans.tangram.dev/a", "default", "yes"),
        ("deletecollection", "fleetplans.tangram.dev", "default", "no"),
        ("patch", "fleetplans.tangram.dev/a/status", "default", "yes"),
    ],
)
def test_the_api_server_says_what_the_operator_may(cluster, verb, what, where, may):
    kind, _, name = what.partition("/")
    resource, _, group = kind.partition(".")
    name, _, subresource = name.partition("/")
    asked = {"verb": verb, "group": group, "resource": resource, "name": name, "subresource": subresource}
    answer = cluster.admin.post(
        "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
        headers={"Impersonate-User": ACCOUNT},
        json={"spec": {"resourceAttributes": asked | {"namespace": where}}},
    ).json()
    assert answer["status"]["allowed"] == (may == "yes"), answer


def test_an_upgrade_that_ends_partitioning_lifts_the_holds_and_no_other_upgrade_does(cluster):
    def hooks(*values):
        """The hooks that an upgrade would run: no kubelet runs their Job here."""
        printed = cluster.helm("upgrade", "--dry-run=server", *values).split("\nHOOKS:\n")[1]
        found = yaml.safe_load_all(printed.split("MANIFEST:\n")[0])
        return {
            (one["kind"], one["metadata"]["annotations"]["helm.sh/hook"], one["metadata"]["name"])
            for one in found
            if one
        }

    kinds = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Job")
    kinds += ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    assert hooks() == set()

    cluster.helm("upgrade", "--set", "partition.enabled=true")
    try:
        assert hooks("--set", "partition.enabled=true") == {
            (kind, "post-delete", "tangram-lift-holds") for kind in kinds
        }
        assert hooks("--set", "partition.enabled=false") == {
            (kind, "post-upgrade", "tangram-lift-holds") for kind in kinds
        }
    finally:
        cluster.helm("upgrade", "--no-hooks", "--set", "partition.enabled=false")
    assert hooks("--set", "replicas=2") == set()


def test_an_upgrade_adds_a_field_to_the_definition_and_leaves_the_stored_models(cluster, tmp_path):
    older = tmp_path / "tangram"
    shutil.copytree(CHART, older)
    file = older / "files" / "crds" / "tangram.dev_llmdeployments.yaml"
    definition = yaml.safe_load(file.read_text())
    del _spec_fields(definition)["paused"]
    file.write_text(yaml.safe_dump(definition))

    def stored_model():
        model = yaml.safe_load(cluster.ok("kubectl", "get", "llmdep", "tiny-chat", "-o", "yaml"))
        return model["spec"], model["metadata"]["uid"], model["metadata"]["generation"]

    cluster.helm("upgrade", chart=older)
    assert "paused" not in _spec_fields(_stored_definition(cluster))
    cluster.ok("kubectl", "apply", "-f", str(ROOT / "examples" / "llmdeployment.yaml"))
    spec, uid, generation = stored_model()

    cluster.helm("upgrade", "--set", "replicas=2")

    assert "paused" in _spec_fields(_stored_definition(cluster))
    assert stored_model() == (spec | {"paused": False}, uid, generation)  # the field's default


def _stored_definition(cluster):
    return yaml.safe_load(cluster.ok("kubectl", "get", "crd", "llmdeployments.tangram.dev", "-o", "yaml"))


def _spec_fields(definition):
    (version,) = definition["spec"]["versions"]
    return version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]


def test_an_upgrade_that_changes_nothing_changes_nothing_and_an_uninstall_leaves_the_models(cluster):
    def version():
        metadata = _stored_definition(cluster)["metadata"]
        return metadata["resourceVersion"], metadata["generation"]

    before = version()
    cluster.helm("upgrade", "--set", "replicas=2")
    assert version() == before
    cluster.ok("kubectl", "apply", "-f", str(ROOT / "examples" / "llmdeployment.yaml"))
    cluster.helm("uninstall")
    assert "tiny-chat" in cluster.ok("kubectl", "get", "llmdep", "-o", "name")
    assert "No resources found" in cluster.run("kubectl", "get", "deployments", "-n", "tangram-system").stderr
    cluster.helm("install", "--set", "replicas=2")  # takes the kept CRD over again
