"""NetworkPolicies of the chart, read as a network reads them: the pods that they select, and what passes."""

import pytest
import yaml

from tangram.fleet import EvaluationKey, FactsKey, StartEvaluation
from tangram.shell.objects import manifests
from tests.chart.conftest import merge
from tests.shell.test_manifests import SETTINGS, SLICE, action, intent

MONITORING = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
GATEWAY = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "gateway"}}}
ON = {"networkPolicy": {"enabled": True, "metricsFrom": [MONITORING]}}
DNS = {(53, "UDP"), (53, "TCP")}
API_SERVER = {(443, "TCP"), (6443, "TCP")}
ENGINE = ("http", "TCP")  # the bundled engine and EngineRuntimes have numbers of their own
OPERATOR_IN_ITS_NAMESPACE = {
    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "tangram-system"}},
    "podSelector": {
        "matchLabels": {
            "app.kubernetes.io/name": "tangram",
            "app.kubernetes.io/instance": "tangram",
            "app.kubernetes.io/component": "operator",
        }
    },
}


def selects(policy, labels):
    selector = policy["spec"]["podSelector"]
    return all(labels.get(key) == value for key, value in selector["matchLabels"].items()) and all(
        labels.get(each["key"]) in each["values"] for each in selector.get("matchExpressions", ())
    )


def ports(rules):
    return {(port["port"], port["protocol"]) for rule in rules for port in rule["ports"]}


def of_template(obj):
    return obj["spec"]["template"]["metadata"]["labels"]


def engine_pods():
    """Labels of the pods of the operator's own builders, by their component."""
    owner, uri = manifests.owner_identity(intent()), "image:///m"
    evaluation = StartEvaluation("uid-1", EvaluationKey("ns", uri, "d", SLICE.sku, "int4"), SLICE, ("p",))
    return {
        "engine": of_template(manifests.deployment(intent(), action(), SETTINGS)),
        "inspect": of_template(manifests.inspect_job(owner, FactsKey("ns", uri, "e:1"), SETTINGS)),
        "evaluate": of_template(manifests.evaluate_job(intent(), evaluation, SETTINGS)),
    }


def test_without_the_value_there_are_none(helm):
    assert helm.objects({"watchNamespaces": ["a"]}).of("NetworkPolicy") == []


def test_prometheus_alone_reaches_the_operator_and_only_its_metrics(helm):
    objects = helm.objects(ON)
    policy = objects.one("NetworkPolicy", "tangram")
    pod = objects.one("Deployment")["spec"]["template"]

    assert selects(policy, pod["metadata"]["labels"])
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
    (rule,) = policy["spec"]["ingress"]
    assert rule == {"from": [MONITORING], "ports": [{"port": "metrics", "protocol": "TCP"}]}
    assert "metrics" in {port["name"] for port in pod["spec"]["containers"][0]["ports"]}
    for each in helm.objects({"networkPolicy": {"enabled": True}}).of("NetworkPolicy"):
        assert each["spec"]["ingress"] == []  # no empty list of peers, which would be everything


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, {ENGINE}),
        ({"scrape": {"enabled": False}}, set()),
        ({"prometheus": {"url": "http://prometheus.monitoring:9090/prefix"}}, {(9090, "TCP")}),
        ({"prometheus": {"url": "http://prometheus"}}, {(80, "TCP")}),
        ({"prometheus": {"url": "https://prometheus.example.com"}}, {(443, "TCP")}),
        ({"prometheus": {"url": "http://[fd00::1]:9091"}}, {(9091, "TCP")}),
    ],
    ids=str,
)
def test_the_operator_reaches_the_api_server_names_and_its_source_of_metrics(helm, values, expected):
    egress = helm.objects({**ON, **values}).one("NetworkPolicy", "tangram")["spec"]["egress"]

    assert ports(egress) == DNS | API_SERVER | expected
    (engines,) = [rule for rule in egress if ENGINE in ports([rule])] or [None]
    assert (engines is None) == (ENGINE not in expected)
    if engines:
        assert engines["to"][0]["podSelector"]["matchLabels"].items() <= engine_pods()["engine"].items()


@pytest.mark.parametrize("port", [9408, 0])
def test_prometheus_alone_reaches_the_agents(helm, port):
    agent = {"enabled": True, "namespace": "agents", "metrics": {"port": port}}
    objects = helm.objects({**ON, "agent": agent})
    policy = objects.one("NetworkPolicy", "tangram-agent")

    assert policy["metadata"]["namespace"] == "agents"
    assert selects(policy, of_template(objects.one("DaemonSet")))
    allowed = [{"from": [MONITORING], "ports": [{"port": port, "protocol": "TCP"}]}]
    assert policy["spec"]["ingress"] == (allowed if port else [])
    assert ports(policy["spec"]["egress"]) == DNS | API_SERVER


def test_pods_that_fetch_models_reach_names_and_the_ports_of_hubs(helm):
    engines = {"namespaces": ["team-a"], "sourcePorts": [443, 8443]}
    objects = helm.objects(merge(ON, {"networkPolicy": {"engines": engines}}))
    policies = [one for one in objects.of("NetworkPolicy") if one["metadata"]["namespace"] == "team-a"]
    for policy in policies:
        assert ports(policy["spec"]["egress"]) == DNS | {(443, "TCP"), (8443, "TCP")}
    assert len(policies) == 2


@pytest.mark.parametrize(
    "values",
    [
        {"watchNamespaces": ["team-a", "team-b"]},
        {"networkPolicy": {"engines": {"namespaces": ["team-a", "team-b"]}}},
    ],
    ids=["watched", "named"],
)
def test_engines_answer_clients_and_connect_to_nothing(helm, values):
    objects = helm.objects(merge(ON, values))
    pods = engine_pods()
    for name, components in (("tangram-engines", {"engine"}), ("tangram-jobs", {"inspect", "evaluate"})):
        policies = [one for one in objects.of("NetworkPolicy") if one["metadata"]["name"] == name]
        assert [one["metadata"]["namespace"] for one in policies] == ["team-a", "team-b"]
        for policy in policies:
            assert {component for component, labels in pods.items() if selects(policy, labels)} == components
            assert (policy["spec"]["policyTypes"], policy["spec"]["egress"]) == (["Ingress", "Egress"], [])
            if components != {"engine"}:
                assert policy["spec"]["ingress"] == []
                continue
            (rule,) = policy["spec"]["ingress"]
            assert rule["ports"] == [{"port": "http", "protocol": "TCP"}]
            # By default every pod of the cluster sends requests, as without a NetworkPolicy.
            assert rule["from"] == [OPERATOR_IN_ITS_NAMESPACE, MONITORING, {"namespaceSelector": {}}]


def test_clients_that_are_named_are_the_only_ones(helm):
    engines = {"namespaces": ["team-a"], "clients": [GATEWAY]}
    for clients, expected in (([GATEWAY], [GATEWAY]), ([], [])):
        values = {"networkPolicy": {"enabled": True, "engines": {**engines, "clients": clients}}}
        (rule,) = helm.objects(values).one("NetworkPolicy", "tangram-engines")["spec"]["ingress"]
        assert rule["from"] == [OPERATOR_IN_ITS_NAMESPACE, *expected]


@pytest.mark.apiserver
def test_the_api_server_takes_every_policy(cluster, helm):
    engines = {"namespaces": ["default"], "clients": [GATEWAY, {"ipBlock": {"cidr": "10.0.0.0/8"}}]}
    agent = {"enabled": True, "namespace": "default"}
    values = {"networkPolicy": {**ON["networkPolicy"], "engines": engines}, "agent": agent}
    policies = helm.objects(values).of("NetworkPolicy")

    assert len(policies) == 4
    cluster.ok("kubectl", "create", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump_all(policies))
