"""The gateway of the chart: its picker, its Envoy, what they may do, and who reaches them."""

import pytest
import yaml

from tangram.gateway.command import _parser as picker_parser
from tangram.gateway.envoy_drain import ENDPOINTS_LAG_S
from tests.chart.test_chart_rights import rights
from tests.chart.test_network_policies import (
    DNS,
    ENGINE,
    MONITORING,
    OPERATOR_IN_ITS_NAMESPACE,
    ports,
    selects,
)

ENVOY = f"docker.io/envoyproxy/envoy@sha256:{'a' * 64}"
ENABLED = {"gateway": {"enabled": True, "envoyImage": ENVOY}}
POLICIES = {"enabled": True, "metricsFrom": [MONITORING], "engines": {"namespaces": ["team-a"]}}


def given(helm, **values):
    return helm.objects({"gateway": ENABLED["gateway"] | values})


def pod_of(objects):
    return objects.one("Deployment", "tangram-gateway")["spec"]["template"]["spec"]


def test_no_object_of_the_gateway_is_there_until_it_is_wanted(helm):
    assert "gateway" not in str(
        [one for one in helm.objects() if one["kind"] != "CustomResourceDefinition"]
    ).replace("gateway_", "")


def test_the_charts_defaults_are_the_pickers_own(helm):
    arguments = vars(picker_parser().parse_args(pod_of(given(helm))["containers"][0]["args"]))
    own = vars(picker_parser().parse_args([]))
    assert arguments == own | {"envoy_admin": "/run/tangram/admin.sock"}


def test_every_setting_reaches_the_picker_or_envoy(helm):
    objects = helm.objects(
        {
            "watchNamespaces": ["team-a", "team-b"],
            "image": {"gateway": {"tag": "v9"}},
            "gateway": ENABLED["gateway"]
            | {
                "replicas": 1,
                "maxRequestSeconds": 7200,
                "drainSeconds": 900,
                "maxBodyBytes": 1 << 20,
                "maxConnections": 1_000_000,
                "envoyThreads": 7,
                "envoyHeapMiB": 100,
                "listenAddress": "::",
                "tls": {"secretName": "door"},
                "service": {"type": "LoadBalancer", "annotations": {"a": "b"}},
                "runAsUser": None,
            },
        }
    )
    pod = pod_of(objects)
    (envoy,), (picker,) = pod["initContainers"], pod["containers"]
    arguments = picker_parser().parse_args(picker["args"])
    assert (arguments.namespace, arguments.drain_s) == (["team-a", "team-b"], 900)
    assert (picker["image"], envoy["image"]) == ("registry.example.com/team/tangram-gateway:v9", ENVOY)
    assert pod["terminationGracePeriodSeconds"] > 900
    assert "runAsUser" not in pod["securityContext"]
    assert objects.of("PodDisruptionBudget") == []
    service = objects.one("Service", "tangram-gateway")
    assert (service["spec"]["type"], service["metadata"]["annotations"]) == ("LoadBalancer", {"a": "b"})
    assert [port["port"] for port in service["spec"]["ports"]] == [443]

    config = yaml.safe_load(objects.one("ConfigMap", "tangram-gateway")["data"]["envoy.yaml"])
    (listener,) = config["static_resources"]["listeners"]
    (chain,) = listener["filter_chains"]
    manager = chain["filters"][0]["typed_config"]
    (host,) = manager["route_config"]["virtual_hosts"]
    assert int(manager["stream_idle_timeout"].removesuffix("s")) > 7200
    assert arguments.max_body_bytes == 1 << 20
    assert int(host["request_body_buffer_limit"]) <= 1 << 20
    assert "--concurrency=7" in envoy["args"]
    monitors = config["overload_manager"]["resource_monitors"]
    assert monitors[0]["typed_config"]["max_active_downstream_connections"] == 1_000_000
    assert monitors[1]["typed_config"]["max_heap_size_bytes"] == 100 << 20
    assert listener["address"]["socket_address"]["address"] == "::"
    assert chain["transport_socket"]["name"] == "envoy.transport_sockets.tls"
    assert {volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume} == {"door"}


def test_the_kubelet_stops_envoy_after_the_picker(helm):
    pod = pod_of(given(helm))
    assert [(one["name"], one.get("restartPolicy")) for one in pod["initContainers"]] == [("envoy", "Always")]
    (picker,) = pod["containers"]
    assert picker["livenessProbe"]["terminationGracePeriodSeconds"] < ENDPOINTS_LAG_S


def test_envoy_has_no_token_and_the_picker_lists_and_watches_two_kinds(helm):
    objects = helm.objects(ENABLED | {"watchNamespaces": ["team-a"]})
    pod = pod_of(objects)
    assert pod["automountServiceAccountToken"] is False
    assert "token" not in [mount["name"] for mount in pod["initContainers"][0]["volumeMounts"]]
    assert rights(objects, "tangram-gateway") == {
        ("tangram.dev", "llmdeployments"): {"list", "watch"},
        ("discovery.k8s.io", "endpointslices"): {"list", "watch"},
    }
    bindings = [one for one in objects.of("RoleBinding") if one["metadata"]["name"] == "tangram-gateway"]
    assert [one["metadata"]["namespace"] for one in bindings] == ["team-a"]
    assert "tangram-gateway" not in [one["metadata"]["name"] for one in objects.of("ClusterRoleBinding")]


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"gateway": {"enabled": True}}, "gateway: envoyImage is not set"),
        ({"gateway": ENABLED["gateway"] | {"exclusive": True}}, "gateway: exclusive needs"),
    ],
)
def test_what_is_missing_is_named(helm, values, told):
    merged = {"image": {"registry": "registry.example.com/team"}} | values
    done = helm.run("template", "tangram", "charts/tangram", values=merged)
    assert told in done.stderr


def test_the_gateway_reaches_engines_and_the_api_server_alone(helm):
    objects = helm.objects(ENABLED | {"networkPolicy": POLICIES})
    policy = objects.one("NetworkPolicy", "tangram-gateway")
    template = objects.one("Deployment", "tangram-gateway")["spec"]["template"]
    assert selects(policy, template["metadata"]["labels"])
    assert ports(policy["spec"]["egress"]) == DNS | {(443, "TCP"), (6443, "TCP"), ENGINE}
    everyone, prometheus = policy["spec"]["ingress"]
    assert everyone == {"ports": [{"port": "gateway", "protocol": "TCP"}]}
    assert prometheus["from"] == [MONITORING]


@pytest.mark.parametrize("exclusive", [False, True])
def test_engines_accept_the_gateway_and_where_it_is_exclusive_no_other_client(helm, exclusive):
    gateway = ENABLED["gateway"] | {"exclusive": exclusive}
    objects = helm.objects({"gateway": gateway, "networkPolicy": POLICIES})
    (rule,) = objects.one("NetworkPolicy", "tangram-engines")["spec"]["ingress"]
    operator, door, *others = rule["from"]
    assert operator == OPERATOR_IN_ITS_NAMESPACE
    assert door["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "gateway"
    assert others == ([MONITORING] if exclusive else [MONITORING, {"namespaceSelector": {}}])


@pytest.mark.apiserver
def test_a_namespace_that_enforces_the_restricted_standard_takes_the_gateways_pod(cluster, helm):
    objects = helm.objects({"gateway": ENABLED["gateway"] | {"tls": {"secretName": "door"}}})
    own = [one for one in objects if one["metadata"]["name"] == "tangram-gateway"]
    meta = {"name": "door", "namespace": "tangram-system"}
    spec = {**pod_of(objects), "serviceAccountName": "tangram"}  # its own is not there yet
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
    made = yaml.safe_dump_all([*own, pod])
    told = cluster.ok("kubectl", "create", "--dry-run=server", "-f", "-", stdin=made)
    assert "deployment.apps/tangram-gateway created (server dry run)" in told
    assert "Warning" not in told
