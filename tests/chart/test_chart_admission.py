"""The chart's webhook: what it sends to the operator, and where its certificate comes from."""

import base64
import ssl

import pytest
import yaml

from tangram.shell.admission import reviewer
from tangram.shell.admission.certificate import WebhookCertificate
from tangram.shell.settings import parse_settings
from tests.chart.conftest import merge

PATH = "0123456789abcdef"
CERT_MANAGER = {"admission": {"path": PATH, "certManager": {"enabled": True}}}
HOST = "tangram-admission.tangram-system.svc"


def settings_of(objects):
    return parse_settings(objects.one("ConfigMap", "tangram")["data"]["config.yaml"], "config")


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"admission": {"path": PATH}},
        {"admission": {"certManager": {"enabled": True}}},
        merge(CERT_MANAGER, {"admission": {"enabled": False}}),
        merge(CERT_MANAGER, {"rbac": {"create": False}}),
    ],
    ids=["no cluster", "no certificate", "no path", "switched off", "no rights"],
)
def test_where_neither_certificate_nor_path_can_be_kept_there_is_no_webhook(helm, values):
    objects = helm.objects(values)

    kinds = ("ValidatingWebhookConfiguration", "Secret", "Certificate", "Issuer")
    assert not any(objects.of(kind) for kind in kinds)
    assert [one["metadata"]["name"] for one in objects.of("Service")] == ["tangram-metrics"]
    assert settings_of(objects).admission is None
    (container,) = objects.one("Deployment")["spec"]["template"]["spec"]["containers"]
    assert {port["name"] for port in container["ports"]} == {"metrics", "probes"}


def test_the_api_server_waits_for_no_operator(helm):
    objects = helm.objects(CERT_MANAGER)
    (webhook,) = objects.one("ValidatingWebhookConfiguration")["webhooks"]

    assert (webhook["failurePolicy"], webhook["sideEffects"]) == ("Ignore", "None")
    assert reviewer.ANSWER_S < webhook["timeoutSeconds"] <= 2
    resources = {resource: rule["operations"] for rule in webhook["rules"] for resource in rule["resources"]}
    both = ["CREATE", "UPDATE"]
    assert resources == {
        "llmdeployments": both,
        "gpupools": both,
        "engineruntimes": both,
        "fleetplans": ["UPDATE"],
    }
    expressions = [condition["expression"] for condition in webhook["matchConditions"]]
    account = objects.one("Deployment")["spec"]["template"]["spec"]["serviceAccountName"]
    assert f"request.userInfo.username != 'system:serviceaccount:tangram-system:{account}'" in expressions


@pytest.mark.parametrize("watched", [[], ["team-a", "team-b"]], ids=str)
def test_objects_of_namespaces_that_are_not_served_are_not_reviewed(helm, watched):
    objects = helm.objects(CERT_MANAGER | {"watchNamespaces": watched})
    (webhook,) = objects.one("ValidatingWebhookConfiguration")["webhooks"]

    key = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": watched}
    assert webhook.get("namespaceSelector", {}).get("matchExpressions", []) == ([key] if watched else [])


def test_reviews_reach_the_port_that_the_operator_listens_on(helm):
    objects = helm.objects(merge(CERT_MANAGER, {"networkPolicy": {"enabled": True}}))
    (webhook,) = objects.one("ValidatingWebhookConfiguration")["webhooks"]
    target = webhook["clientConfig"]["service"]
    service = objects.one("Service", target["name"])
    pod = objects.one("Deployment")["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    (port,) = [port for port in container["ports"] if port["name"] == "admission"]
    admission = settings_of(objects).admission

    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert service["spec"]["ports"][0]["port"] == target["port"]
    assert service["spec"]["ports"][0]["targetPort"] == port["name"]
    assert port["containerPort"] == admission.port
    rules = objects.one("NetworkPolicy", "tangram")["spec"]["ingress"]
    assert rules == [{"ports": [{"port": "admission", "protocol": "TCP"}]}]
    (mount,) = [one for one in container["volumeMounts"] if one["name"] == "admission"]
    assert mount["mountPath"] == str(admission.certificate_folder)
    (volume,) = [one for one in pod["spec"]["volumes"] if one["name"] == "admission"]
    sources = [source["secret"] for source in volume["projected"]["sources"]]
    files = {item["path"] for source in sources for item in source["items"]}
    assert files == {"tls.crt", "tls.key", "path"}
    secret = objects.one("Secret", "tangram-admission-path")
    assert base64.b64decode(secret["data"]["path"]).decode() == PATH
    assert target["path"] == f"/{PATH}"


@pytest.mark.parametrize("issuer", [{}, {"name": "internal", "kind": "ClusterIssuer"}], ids=str)
def test_cert_manager_issues_the_certificate_that_the_pod_mounts(helm, issuer):
    objects = helm.objects(merge(CERT_MANAGER, {"admission": {"certManager": {"issuerRef": issuer}}}))
    certificate = objects.one("Certificate")
    volumes = objects.one("Deployment")["spec"]["template"]["spec"]["volumes"]
    (volume,) = [one for one in volumes if one["name"] == "admission"]

    assert certificate["spec"]["secretName"] in {
        source["secret"]["name"]
        for source in volume["projected"]["sources"]
        if source["secret"].get("optional")
    }
    assert certificate["spec"]["dnsNames"] == [HOST]
    own = {"name": "tangram-admission", "kind": "Issuer", "group": "cert-manager.io"}
    assert certificate["spec"]["issuerRef"] == (issuer or own)
    assert len(objects.of("Issuer")) == (not issuer)
    annotations = objects.one("ValidatingWebhookConfiguration")["metadata"]["annotations"]
    assert annotations == {"cert-manager.io/inject-ca-from": "tangram-system/tangram-admission"}


@pytest.mark.apiserver
def test_the_charts_own_certificate_and_path_are_kept_by_upgrades(cluster, tmp_path):
    def made():
        secrets = [
            yaml.safe_load(cluster.ok("kubectl", "get", "secret", name, "-n", "tangram-system", "-o", "yaml"))
            for name in ("tangram-admission", "tangram-admission-path")
        ]
        kind = "validatingwebhookconfigurations"
        configuration = yaml.safe_load(cluster.ok("kubectl", "get", kind, "tangram-admission", "-o", "yaml"))
        return secrets[0]["data"] | secrets[1]["data"], configuration["webhooks"][0]["clientConfig"]

    cluster.helm("upgrade", "--set", "admission.enabled=true")
    try:
        data, client = made()
        cluster.helm("upgrade", "--set", "admission.enabled=true", "--set", "replicas=2")
        assert made() == (data, client)
    finally:
        cluster.helm("upgrade", "--set", "replicas=2")
    for name in ("tls.crt", "tls.key", "path"):
        (tmp_path / name).write_bytes(base64.b64decode(data[name]))
    loaded = WebhookCertificate(tmp_path, lambda: 0.0, lambda _: None)
    loaded.refresh()

    assert client["service"]["path"] == f"/{loaded.path}"
    assert len(loaded.path) == 40
    authority = ssl.create_default_context(cadata=base64.b64decode(client["caBundle"]).decode())
    shake_hands(
        loaded.in_force(), authority, f"{client['service']['name']}.{client['service']['namespace']}.svc"
    )


def shake_hands(server_context, client_context, host):
    """Raise `ssl.SSLError` where a client that asks for `host` trusts the server not."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    client = client_context.wrap_bio(to_client, to_server, server_hostname=host)
    for side in (client, server, client, server):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    assert client.getpeercert()
