"""helm on a real API server: what it takes, what the operator may do there, what an uninstall leaves."""

import shutil
import time

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
        ("get", "gpupools.tangram.dev/h100", "default", "no"),
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
    assert may_it(cluster, ACCOUNT, verb, what, where) == (may == "yes")


def may_it(cluster, account, verb, what, where):
    """What `kubectl auth can-i VERB WHAT -n WHERE --as ACCOUNT` says."""
    kind, _, name = what.partition("/")
    resource, _, group = kind.partition(".")
    name, _, subresource = name.partition("/")
    asked = {"verb": verb, "group": group, "resource": resource, "name": name, "subresource": subresource}
    answer = cluster.admin.post(
        "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
        headers={"Impersonate-User": account},
        json={"spec": {"resourceAttributes": asked | {"namespace": where}}},
    ).json()
    return answer["status"]["allowed"]


def test_with_watched_namespaces_it_may_read_pods_elsewhere_and_nothing_more(cluster):
    values = ("--set", "image.registry=registry.example.com/team", "--set", "watchNamespaces={served-team}")
    values += ("--set", "crds.enabled=false", "--namespace", "scoped", "--create-namespace")
    cluster.ok("kubectl", "create", "namespace", "served-team")
    cluster.ok("helm", "install", "scoped", str(CHART), *values)
    try:
        account = "system:serviceaccount:scoped:scoped-tangram"
        watched = (
            *("llmdeployments.tangram.dev", "deployments.apps", "services", "jobs.batch"),
            *("replicasets.apps", "resourcequotas"),
        )
        for resource in watched:
            assert may_it(cluster, account, "list", resource, "served-team"), resource
            assert not may_it(cluster, account, "list", resource, "default"), resource
        verbs = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
        pods = [verb for verb in verbs if may_it(cluster, account, verb, "pods", "default")]
        events = [verb for verb in verbs if may_it(cluster, account, verb, "events.events.k8s.io", "team-b")]
        assert (pods, events) == (["list", "watch"], [])
        for secret in ("secrets", "configmaps", "pods//log", "pods//exec"):
            assert not may_it(cluster, account, "get", secret, "default"), secret

        warned = until_warned(cluster, "default")
        assert (
            "release scoped/scoped does not serve the namespace default: unless another release does"
            in warned
        )
        assert "(watchNamespaces of the chart: served-team)" in warned
        assert not apply_example(cluster, "served-team").stderr
    finally:
        cluster.ok("helm", "uninstall", "scoped", "--namespace", "scoped")


def apply_example(cluster, namespace):
    """Create the example in a dry run: the warnings are in its stderr."""
    example = str(ROOT / "examples" / "llmdeployment.yaml")
    return cluster.run("kubectl", "create", "--dry-run=server", "-n", namespace, "-f", example)


def until_warned(cluster, namespace):
    """Return the warning. A policy is in force some time after it was created."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        done = apply_example(cluster, namespace)
        if "Warning" in done.stderr:
            return " ".join(done.stderr.split())
        time.sleep(1)
    raise AssertionError(f"no warning: {done.stderr}")


def test_a_node_that_no_agent_has_reported_about_says_so_in_its_row(cluster):
    example = str(ROOT / "examples" / "gpunode.yaml")
    cluster.ok("kubectl", "apply", "-f", example)
    try:
        header, row = cluster.ok("kubectl", "get", "-f", example).splitlines()
        assert header.split()[-3:] == ["READY", "REASON", "AGE"]
        assert row.split()[-3:-1] == ["Unknown", "NotReported"]
    finally:
        cluster.ok("kubectl", "delete", "-f", example)


PLUGIN_NAMESPACE = "device-plugin"  # of this file alone: files share the API server
# What the values name, the sentence of helm where the cluster lacks it, and what is made then.
LACKING = [
    (
        {"agent": {"enabled": True, "devicePlugin": {"namespace": PLUGIN_NAMESPACE}}},
        "agent.devicePlugin.namespace: the cluster has no namespace device-plugin. Nothing was changed. "
        "Remedy: set the namespace that NVIDIA's device-plugin runs in (kubectl get daemonsets -A | grep "
        "device-plugin), or install the GPU Operator first.",
        ("namespace", PLUGIN_NAMESPACE),
    ),
    (
        {
            "agent": {
                "enabled": True,
                "devicePlugin": {"namespace": PLUGIN_NAMESPACE},
                "runtimeClassName": "nvidia-cdi",
            }
        },
        "agent.runtimeClassName: the cluster has no RuntimeClass nvidia-cdi, so the API server would refuse "
        "all pods. Nothing was changed. Remedy: install NVIDIA's GPU Operator first",
        None,
    ),
    (
        {"agent": {"enabled": True, "runtimeClassName": "", "namespace": "no-agents"}},
        "agent.namespace: the cluster has no namespace no-agents. Nothing was changed. Remedy: kubectl",
        None,
    ),
    (
        {"engine": {"runtimeClassName": "runsc"}},
        "engine.runtimeClassName: the cluster has no RuntimeClass runsc",
        None,
    ),
    ({"watchNamespaces": ["team-z"]}, "watchNamespaces: the cluster has no namespace team-z", None),
    (
        {"networkPolicy": {"enabled": True, "engines": {"namespaces": ["team-z"]}}},
        "networkPolicy.engines.namespaces: the cluster has no namespace team-z",
        None,
    ),
    (
        {"partition": {"enabled": True, "migManager": {"enabled": True, "namespace": "no-mig"}}},
        "partition.migManager.namespace: the cluster has no namespace no-mig",
        None,
    ),
]


def test_what_the_values_name_and_the_cluster_lacks_is_a_sentence_before_anything_is_made(cluster):
    install = ("install", "other", str(CHART), "--set", "image.registry=registry.example.com/team")
    install += ("--set", "crds.enabled=false", "--namespace", "tangram-system", "--values", "-")
    for values, sentence, made in LACKING:
        done = cluster.run("helm", *install, stdin=yaml.safe_dump(values))
        assert done.returncode != 0
        assert sentence in done.stderr
        assert "other" not in cluster.ok("helm", "list", "--all", "--namespace", "tangram-system", "--short")
        if made is not None:
            cluster.ok("kubectl", "create", *made)

    cluster.ok("kubectl", "create", "-f", "-", stdin=yaml.safe_dump(DEVICE_PLUGIN))
    elsewhere = {"agent": {"enabled": True, "devicePlugin": {"namespace": "nowhere"}}}
    done = cluster.run("helm", *install, stdin=yaml.safe_dump(elsewhere))
    assert "Remedy: DaemonSet nvidia-device-plugin is in namespace device-plugin, so set" in done.stderr

    cluster.ok("helm", *install, stdin=yaml.safe_dump(LACKING[0][0]))
    try:
        roles = cluster.ok("kubectl", "get", "roles", "-n", PLUGIN_NAMESPACE, "-o", "name")
        assert "other-tangram-agent" in roles
    finally:
        cluster.ok("helm", "uninstall", "other", "--namespace", "tangram-system")


def test_the_administrator_of_one_namespace_installs_it_beside_roles_that_others_made(cluster):
    cluster.ok("kubectl", "create", "namespace", "mine")
    everything = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "rules": [everything]}
    role["metadata"] = {"name": "bob", "namespace": "mine"}
    cluster.ok("kubectl", "create", "-f", "-", stdin=yaml.safe_dump(role))
    cluster.ok("kubectl", "create", "rolebinding", "bob", "-n", "mine", "--role=bob", "--user=bob")
    values = ("rbac.create=false", "rbac.workloadPolicies=false", "crds.enabled=false")
    values += ("priorityClasses.create=false", "engine.runtimeClassName=runsc")
    sets = [part for value in values for part in ("--set", value)]
    registry = ("--set", "image.registry=registry.example.com/team")
    bob = ("--namespace", "mine", "--kube-as-user", "bob")
    cluster.ok("helm", "install", "mine", str(CHART), *registry, *sets, *bob)
    cluster.ok("helm", "uninstall", "mine", *bob)


_LABELS = {"app": "nvidia-device-plugin-daemonset"}
DEVICE_PLUGIN = {
    "apiVersion": "apps/v1",
    "kind": "DaemonSet",
    "metadata": {"name": "nvidia-device-plugin", "namespace": PLUGIN_NAMESPACE},
    "spec": {
        "selector": {"matchLabels": _LABELS},
        "template": {
            "metadata": {"labels": _LABELS},
            "spec": {"containers": [{"name": "c", "image": "i"}]},
        },
    },
}


def test_a_release_leaves_the_runtimes_of_another_one_alone(cluster):
    cluster.helm("upgrade", "--reuse-values")  # the release of the other tests has its own
    values = (
        "image.registry=registry.example.com/team",
        "crds.enabled=false",
        "priorityClasses.create=false",
    )
    sets = (part for value in values for part in ("--set", value))
    second = ("--namespace", "second", "--create-namespace", *sets)
    image = "runtimes.vllm.image=registry.example.com/vllm@sha256:" + 64 * "a"

    refused = cluster.run("helm", "install", "second", str(CHART), *second, "--set", image)
    cluster.ok("helm", "install", "second", str(CHART), *second)
    cluster.ok("helm", "uninstall", "second", "--namespace", "second", "--no-hooks")

    assert "the EngineRuntime vllm exists, and is not of this release" in refused.stderr
    assert cluster.ok("kubectl", "get", "engineruntimes", "-o", "name").count("/") == 4


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
