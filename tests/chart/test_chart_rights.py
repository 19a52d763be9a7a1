"""The operator may do what it does, and nothing else."""

from pathlib import Path

import yaml

from tangram.kube import kinds

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
    ("tangram.dev", "gpupools"): {"list", "watch"},
    ("tangram.dev", "gpupools/status"): {"patch"},
    ("tangram.dev", "engineruntimes"): {"list", "watch"},
    ("tangram.dev", "engineruntimes/status"): {"patch"},
    ("tangram.dev", "fleetplans"): {"get", "list", "watch", "create", "patch", "delete"},
    ("tangram.dev", "fleetplans/status"): {"patch"},
    ("apps", "deployments"): {"get", "list", "watch", "create", "patch", "delete"},
    ("apps", "replicasets"): {"list", "patch"},
    ("", "services"): {"get", "list", "watch", "create", "patch"},
    ("batch", "jobs"): {"get", "list", "watch", "create", "delete"},
    ("events.k8s.io", "events"): {"create", "patch"},
    ("coordination.k8s.io", "leases"): {"create", "get", "update"},
}

# With prometheusRule.perLLMDeployment, beside those.
RULES = {("monitoring.coreos.com", "prometheusrules"): {"get", "list", "watch", "create", "patch", "delete"}}


# With models.volumeClaims, beside those.
CLAIMS = {("", "persistentvolumeclaims"): {"list", "watch", "create", "patch", "delete"}}


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


def test_rules_beside_llm_deployments_take_rights_on_prometheus_rules_and_no_others(helm):
    objects = helm.objects({"prometheusRule": {"perLLMDeployment": True}, "watchNamespaces": ["team-a"]})
    assert rights(objects, "tangram-fleet", "tangram-workloads", "tangram-lease") == NEEDED | RULES
    assert rights(objects, "tangram-workloads").keys() >= RULES.keys()  # which is bound in team-a alone


def test_claims_of_checkpoints_take_rights_on_claims_and_no_others(helm):
    objects = helm.objects({"models": {"volumeClaims": True}, "watchNamespaces": ["team-a"]})
    assert rights(objects, "tangram-fleet", "tangram-workloads", "tangram-lease") == NEEDED | CLAIMS
    assert rights(objects, "tangram-workloads").keys() >= CLAIMS.keys()  # which is bound in team-a alone
    roles = {one["metadata"]["name"] for kind in ("ClusterRole", "Role") for one in objects.of(kind)}
    assert not CLAIMS.keys() & rights(objects, *roles - {"tangram-workloads"}).keys()


def test_no_rule_has_a_wildcard_or_touches_secrets(helm):
    both = {
        "agent": {"enabled": True},
        "partition": {"enabled": True},
        "prometheusRule": {"perLLMDeployment": True},
    }
    for values in ({}, {"watchNamespaces": ["a"]}, both):
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
        if resource.split("/")[0]
        in ("nodes", "pods", "priorityclasses", "gpupools", "engineruntimes", "fleetplans")
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
        for plural in ("llmdeployments", "llmdeployments/scale", "gpupools", "engineruntimes", "fleetplans")
    }
    objects = helm.objects({"partition": {"enabled": True}})
    assert rights(objects, "tangram-view")["tangram.dev", "gpunodes"] == {"get", "list", "watch"}
    approve = objects.one("ClusterRole", "tangram-approve")
    assert not any(key.startswith(prefix) for key in approve["metadata"]["labels"])
    assert rights(objects, "tangram-approve") == {
        ("tangram.dev", "fleetplans"): {"get", "list", "watch", "patch"},
        ("tangram.dev", "gpunodes"): {"get", "list", "watch"},
        ("tangram.dev", "gpupools"): {"get", "list", "watch"},
    }
    assert not helm.objects({"rbac": {"aggregateRoles": False}}).of("ClusterRole")[2:]


def test_every_kind_that_the_operator_speaks_of_has_a_rule(helm):
    """A new kind without a rule would fail only in a real cluster: fail here instead."""
    spoken = {(kind.group, kind.plural) for kind in vars(kinds).values() if isinstance(kind, kinds.Kind)}
    assert spoken == {
        (group, resource) for group, resource in NEEDED | PARTITION | RULES | CLAIMS if "/" not in resource
    } | {
        ("nvidia.com", "clusterpolicies"),
        ("", "configmaps"),
        ("discovery.k8s.io", "endpointslices"),  # of the gateway
    }


# What the operator needs beside `NEEDED` to change MIG layouts.
PARTITION = {
    ("tangram.dev", "gpunodes"): {"get", "list", "watch", "create", "patch", "delete"},
    ("", "nodes"): {"get", "patch"},
    ("", "pods"): {"patch"},
    ("kueue.x-k8s.io", "clusterqueues"): {"list", "watch"},
    ("kueue.x-k8s.io", "resourceflavors"): {"list", "watch"},
}
AGENT = {
    ("tangram.dev", "gpunodes"): {"get", "watch"},
    ("tangram.dev", "gpunodes/status"): {"patch"},
    ("", "nodes"): {"get", "watch"},
    ("", "pods"): {"list", "delete"},
}
# Of an admission request, by verb.
OPERATION = {"patch": "UPDATE", "update": "UPDATE", "delete": "DELETE", "create": "CREATE"}
PARTITIONED = {"partition": {"enabled": True}}
MIG_MANAGER = {
    "partition": {
        "enabled": True,
        "migManager": {"enabled": True, "namespace": "nvidia", "configMapName": "mig"},
    }
}


def rules_about(objects, resource):
    return [
        (one["kind"], one["metadata"].get("namespace"), rule)
        for one in (*objects.of("ClusterRole"), *objects.of("Role"))
        for rule in one["rules"]
        if resource in rule["resources"]
    ]


def narrowed(objects, username):
    """Return the writes of a user that a policy narrows: group, resource and operation."""
    return {
        (group, resource, operation)
        for policy in objects.of("ValidatingAdmissionPolicy")
        for rule in policy["spec"]["matchConstraints"]["resourceRules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for operation in rule["operations"]
        if policy["spec"].get("matchConditions")
        == [{"name": "username", "expression": f"request.userInfo.username == '{username}'"}]
    }


def test_gpu_nodes_are_the_business_of_no_one_until_layouts_may_change(helm):
    for values in ({}, {"watchNamespaces": ["a"]}):
        objects = helm.objects(values)
        assert rules_about(objects, "gpunodes") == rules_about(objects, "gpunodes/status") == []


def test_the_operator_that_changes_layouts_has_exactly_the_rights_that_it_needs_for_it(helm):
    bound = ("tangram-fleet", "tangram-workloads", "tangram-lease", "tangram-mig-config")
    expected = {key: NEEDED.get(key, set()) | PARTITION.get(key, set()) for key in {**NEEDED, **PARTITION}}
    assert rights(helm.objects(PARTITIONED), *bound) == expected


def test_with_watched_namespaces_pods_elsewhere_are_not_changed(helm):
    objects = helm.objects({**PARTITIONED, "watchNamespaces": ["team-a"]})
    everywhere = rights(objects, "tangram-fleet")
    assert everywhere[("", "pods")] == {"list", "watch"}


def test_mig_manager_takes_one_config_map_and_reading_one_cluster_policy(helm):
    objects = helm.objects(MIG_MANAGER)
    create = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create"]}
    named = {**create, "resourceNames": ["mig"], "verbs": ["get", "patch"]}
    assert rules_about(objects, "configmaps") == [("Role", "nvidia", create), ("Role", "nvidia", named)]
    assert objects.one("RoleBinding", "tangram-mig-config")["metadata"]["namespace"] == "nvidia"
    policy = {
        "apiGroups": ["nvidia.com"],
        "resources": ["clusterpolicies"],
        "resourceNames": ["cluster-policy"],
    }
    assert rules_about(objects, "clusterpolicies") == [("ClusterRole", None, {**policy, "verbs": ["get"]})]
    status = {"apiGroups": ["tangram.dev"], "resources": ["gpunodes/status"], "verbs": ["patch"]}
    assert rules_about(objects, "gpunodes/status") == [("ClusterRole", None, status)]
    assert not rules_about(helm.objects(PARTITIONED), "gpunodes/status")
    assert not rules_about(helm.objects(PARTITIONED), "configmaps")
    assert not rules_about(helm.objects(PARTITIONED), "clusterpolicies")
    edited = {"partition": {"enabled": True, "migManager": {"enabled": True, "editClusterPolicy": True}}}
    ((_, _, rule),) = rules_about(helm.objects(edited), "clusterpolicies")
    assert rule == {**policy, "verbs": ["get", "patch"]}


def test_an_agent_has_exactly_the_rights_that_it_needs(helm):
    objects = helm.objects({"agent": {"enabled": True, "namespace": "agents"}})
    assert rights(objects, "tangram-agent") == AGENT
    assert objects.one("Role", "tangram-agent")["metadata"]["namespace"] == "gpu-operator"
    account = {"kind": "ServiceAccount", "name": "tangram-agent", "namespace": "agents"}
    for kind, role in (("ClusterRoleBinding", "ClusterRole"), ("RoleBinding", "Role")):
        binding = objects.one(kind, "tangram-agent")
        assert binding["subjects"] == [account]
        assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) == (role, "tangram-agent")
    assert objects.one("RoleBinding", "tangram-agent")["metadata"]["namespace"] == "gpu-operator"


def test_every_write_of_an_agent_is_narrowed_by_a_policy(helm):
    objects = helm.objects({"agent": {"enabled": True, "namespace": "agents"}})
    writes = {
        (group, resource, OPERATION[verb])
        for (group, resource), verbs in AGENT.items()
        for verb in verbs & OPERATION.keys()
    }
    assert narrowed(objects, "system:serviceaccount:agents:tangram-agent") == writes


def test_every_write_of_the_operator_beside_kinds_of_tangram_is_narrowed_by_a_policy(helm):
    bound = ("tangram-fleet", "tangram-workloads", "tangram-lease", "tangram-mig-config")
    values = {
        "partition": {"enabled": True, "migManager": {"enabled": True, "editClusterPolicy": True}},
        "prometheusRule": {"perLLMDeployment": True},
    }
    named = {("", "configmaps", "UPDATE")}  # RBAC names the one ConfigMap
    for account in ({}, {"serviceAccount": {"create": False, "name": "mine"}}, {"watchNamespaces": ["a"]}):
        name = account.get("serviceAccount", {}).get("name", "tangram")
        objects = helm.objects({**values, **account})
        writes = {
            (group, resource, OPERATION[verb])
            for (group, resource), verbs in rights(objects, *bound).items()
            for verb in verbs & OPERATION.keys()
        }
        foreign = {write for write in writes if write[0] != "tangram.dev"}
        policies = narrowed(objects, f"system:serviceaccount:tangram-system:{name}")
        assert foreign - policies == named
        assert ("tangram.dev", "gpunodes/status", "UPDATE") in policies


def test_the_policies_on_workloads_can_be_left_out(helm):
    assert helm.objects({"rbac": {"workloadPolicies": False}}).of("ValidatingAdmissionPolicy") == []


def test_after_an_uninstall_holds_are_lifted_with_two_rights_and_one_policy(helm):
    objects = helm.objects(PARTITIONED)
    name = "tangram-lift-holds"
    assert rights(objects, name) == {("", "nodes"): {"list", "patch"}}
    account = {"kind": "ServiceAccount", "name": name, "namespace": "tangram-system"}
    assert objects.one("ClusterRoleBinding", name)["subjects"] == [account]
    username = f"system:serviceaccount:tangram-system:{name}"
    assert narrowed(objects, username) == {("", "nodes", "UPDATE")}


def test_the_state_of_mig_manager_is_a_label_of_the_operator_only_where_it_drives_mig_manager(helm):
    policies = (
        helm.objects(values).one("ValidatingAdmissionPolicy", "tangram-nodes")
        for values in (PARTITIONED, MIG_MANAGER)
    )
    assert [
        "'nvidia.com/mig.config.state'" in yaml.safe_dump(policy, width=10_000) for policy in policies
    ] == [False, True]


def test_every_policy_is_in_force_also_where_the_chart_makes_no_roles(helm):
    values = {**MIG_MANAGER, "agent": {"enabled": True}}
    for more in ({}, {"rbac": {"create": False}}):
        objects = helm.objects({**values, **more})
        policies = objects.of("ValidatingAdmissionPolicy")
        bindings = {
            one["spec"]["policyName"]: one["spec"] for one in objects.of("ValidatingAdmissionPolicyBinding")
        }
        assert len(policies) == len(bindings) == 13
        for policy in policies:
            assert policy["spec"]["failurePolicy"] == "Fail"
            binding = {"policyName": policy["metadata"]["name"], "validationActions": ["Deny"]}
            assert bindings[policy["metadata"]["name"]] == binding
    assert not objects.of("ClusterRole")
