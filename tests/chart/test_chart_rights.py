"""The operator may do what it does, and nothing else."""

from pathlib import Path

import yaml

from tangram.shell.objects import kinds

ROOT = Path(__file__).resolve().parents[2]

# Every right that a call of the operator needs. One that is not here is too many; the operator's own tests
# on a real API server show that none is missing.
NEEDED = {
    ("", "nodes"): {"list", "watch"},
    ("", "pods"): {"list", "watch"},
    ("", "resourcequotas"): {"list", "watch"},
    ("scheduling.k8s.io", "priorityclasses"): {"list", "watch"},
    ("tangram.dev", "llmdeployments"): {"get", "list", "watch"},
    ("tangram.dev", "llmdeployments/status"): {"patch"},
    ("tangram.dev", "gpupools"): {"get", "list", "watch"},
    ("tangram.dev", "gpupools/status"): {"patch"},
    ("tangram.dev", "fleetplans"): {"get", "list", "watch", "create", "patch", "delete"},
    ("tangram.dev", "fleetplans/status"): {"patch"},
    ("apps", "deployments"): {"get", "list", "watch", "create", "patch", "delete"},
    ("apps", "replicasets"): {"list", "patch"},
    ("", "services"): {"get", "list", "watch", "create", "patch"},
    ("batch", "jobs"): {"get", "list", "watch", "create", "delete"},
    ("events.k8s.io", "events"): {"create", "patch"},
    ("coordination.k8s.io", "leases"): {"create", "get", "update"},
}


def rights(objects, *names):
    granted: dict = {}
    for one in (*objects.of("ClusterRole"), *objects.of("Role")):
        if one["metadata"]["name"] in names:
            for rule in one["rules"]:
                for group in rule["apiGroups"]:
                    for resource in rule["resources"]:
                        granted.setdefault((group, resource), set()).update(rule["verbs"])
    return granted


def test_the_operator_has_exactly_the_rights_it_needs(helm):
    bound = ("tangram-fleet", "tangram-workloads", "tangram-lease")
    assert rights(helm.objects(), *bound) == NEEDED


def test_no_rule_has_a_wildcard_or_touches_secrets(helm):
    for values in ({}, {"watchNamespaces": ["a"]}):
        objects = helm.objects(values)
        for one in (*objects.of("ClusterRole"), *objects.of("Role")):
            for rule in one["rules"]:
                words = [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
                assert "*" not in words
                assert not {"secrets", "configmaps", "serviceaccounts", "pods/exec"} & set(rule["resources"])
                assert not {"impersonate", "escalate", "bind"} & set(rule["verbs"])


def test_the_lease_is_named_where_rbac_can_name_it(helm):
    objects = helm.objects({"fullnameOverride": "brain"})
    rules = objects.one("Role")["rules"]
    assert [rule for rule in rules if "resourceNames" not in rule] == [
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"]}
    ]
    config = yaml.safe_load(objects.one("ConfigMap")["data"]["config.yaml"])
    assert rules[1]["resourceNames"] == [config["leaderElection"]["name"]] == ["brain"]
    assert objects.one("Role")["metadata"]["namespace"] == config["leaderElection"]["namespace"]


def test_with_watched_namespaces_nothing_can_be_written_elsewhere(helm):
    objects = helm.objects({"watchNamespaces": ["team-a", "team-b"]})
    everywhere = {one["roleRef"]["name"] for one in objects.of("ClusterRoleBinding")}
    assert everywhere == {"tangram-fleet"}
    assert rights(objects, "tangram-fleet") == {
        (group, resource): verbs
        for (group, resource), verbs in NEEDED.items()
        if resource.split("/")[0] in ("nodes", "pods", "priorityclasses", "gpupools", "fleetplans")
    }
    local = {(one["metadata"]["namespace"], one["roleRef"]["name"]) for one in objects.of("RoleBinding")}
    assert local == {
        ("team-a", "tangram-workloads"),
        ("team-b", "tangram-workloads"),
        ("tangram-system", "tangram-lease"),
        ("default", "tangram-events"),  # where Events about FleetPlans have to be
    }
    assert rights(objects, "tangram-events") == {("events.k8s.io", "events"): {"create", "patch"}}


def test_every_binding_names_the_operators_service_account_and_a_role_that_exists(helm):
    for values in ({}, {"serviceAccount": {"create": False, "name": "mine"}, "watchNamespaces": ["a"]}):
        objects = helm.objects(values)
        account = objects.one("Deployment")["spec"]["template"]["spec"]["serviceAccountName"]
        roles = {
            (one["kind"], one["metadata"]["name"])
            for one in (*objects.of("ClusterRole"), *objects.of("Role"))
        }
        for one in (*objects.of("ClusterRoleBinding"), *objects.of("RoleBinding")):
            assert one["subjects"] == [
                {"kind": "ServiceAccount", "name": account, "namespace": "tangram-system"}
            ]
            assert (one["roleRef"]["kind"], one["roleRef"]["name"]) in roles


def test_people_get_llmdeployments_with_the_clusters_own_roles(helm):
    objects = helm.objects()
    prefix = "rbac.authorization.k8s.io/aggregate-to-"
    view, edit = objects.one("ClusterRole", "tangram-view"), objects.one("ClusterRole", "tangram-edit")
    assert {key for key in view["metadata"]["labels"] if key.startswith(prefix)} == {
        prefix + "view",
        prefix + "edit",
        prefix + "admin",
    }
    assert prefix + "view" not in edit["metadata"]["labels"]
    # Nobody but the operator writes statuses.
    assert rights(objects, "tangram-edit").keys() == {
        ("tangram.dev", plural) for plural in ("llmdeployments", "llmdeployments/scale")
    }
    assert rights(objects, "tangram-view") == {
        ("tangram.dev", plural): {"get", "list", "watch"}
        for plural in ("llmdeployments", "llmdeployments/scale", "gpupools", "fleetplans")
    }
    assert not helm.objects({"rbac": {"aggregateRoles": False}}).of("ClusterRole")[2:]


def test_every_kind_that_the_operator_speaks_of_has_a_rule(helm):
    """A new kind without a rule would fail only in a real cluster: fail here instead."""
    spoken = {(kind.group, kind.plural) for kind in vars(kinds).values() if isinstance(kind, kinds.Kind)}
    assert spoken == {(group, resource) for group, resource in NEEDED if "/" not in resource}
