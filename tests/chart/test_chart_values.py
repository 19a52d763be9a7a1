"""Values that cannot mean anything are refused, and the message says what to do."""

import json
import re
from pathlib import Path

import pytest
import yaml

from charts.generate import REQUIRED, settings_schema
from tests.chart.conftest import merge

CHART = Path(__file__).resolve().parents[2] / "charts" / "tangram"

BAD = {
    "unknown key": {"replica": 2},
    "unknown key below image": {"image": {"tag": "v1"}},
    "unknown key below the operator's image": {"image": {"operator": {"name": "x"}}},
    "registry with a scheme": {"image": {"registry": "https://registry.example.com"}},
    "registry with a blank": {"image": {"registry": "registry example.com"}},
    "registry that is no text": {"image": {"registry": 5}},
    "registry null": {"image": {"registry": None}},
    "tag with a slash": {"image": {"operator": {"tag": "a/b"}}},
    "tag that is a number": {"image": {"operator": {"tag": 1.5}}},
    "digest that is none": {"image": {"engine": {"digest": "sha256:abc"}}},
    "upper-case repository": {"image": {"engine": {"repository": "Tangram"}}},
    "empty repository": {"image": {"engine": {"repository": ""}}},
    "pull policy in lower case": {"image": {"engine": {"pullPolicy": "always"}}},
    "pull secrets as names": {"imagePullSecrets": ["pull"]},
    "engine pull secrets as objects": {"engine": {"imagePullSecrets": [{"name": "pull"}]}},
    "negative replicas": {"replicas": -1},
    "half a replica": {"replicas": 1.5},
    "replicas as text": {"replicas": "two"},
    "prometheus without a scheme": {"prometheus": {"url": "prometheus:9090"}},
    "prometheus as text": {"prometheus": "http://p:9090"},
    "header that is no text": {"prometheus": {"headers": {"X-Scope-OrgID": 5}}},
    "header of two lines": {"prometheus": {"headers": {"X-Scope-OrgID": "a\nX-Admin: b"}}},
    "secret with a capital": {"prometheus": {"auth": {"secretName": "Prometheus"}}},
    "token in the values": {"prometheus": {"auth": {"token": "s3cret"}}},
    "window of nothing": {"prometheus": {"windowSeconds": 0}},
    "window with a unit": {"prometheus": {"windowSeconds": "60s"}},
    "scrapes without a pause": {"scrape": {"intervalSeconds": 0}},
    "scrapes twice a second": {"scrape": {"intervalSeconds": 0.5}},
    "scrapes of another port": {"scrape": {"port": 9000}},
    "negative patience": {"scaling": {"upAfterSeconds": -1}},
    "no patience at all before shrinking": {"scaling": {"downAfterSeconds": 0}},
    "more than the whole load": {"scaling": {"downLoad": 1.2}},
    "no sample needed": {"scaling": {"minSamples": 0}},
    "unknown scaling law": {"scaling": {"algorithm": "pid"}},
    "cpu in words": {"engine": {"cpuPerGPU": "eight"}},
    "memory in words": {"engine": {"memoryPerGPU": "64 gigabytes"}},
    "most cpu in words": {"engine": {"maxCPUPerGPU": "sixteen"}},
    "most memory of nothing": {"engine": {"maxMemoryPerGPU": 0}},
    "toleration with a typo": {"engine": {"tolerations": [{"keys": "a"}]}},
    "toleration with an unknown effect": {"engine": {"tolerations": [{"key": "a", "effect": "Never"}]}},
    "negative price": {"prices": {"L4": -1}},
    "price with a currency": {"prices": {"L4": "1 USD"}},
    "namespaces as text": {"watchNamespaces": "team-a"},
    "a namespace twice": {"watchNamespaces": ["a", "a"]},
    "a namespace with a capital": {"watchNamespaces": ["Team"]},
    "log format xml": {"operator": {"logFormat": "xml"}},
    "admission path with a capital": {"admission": {"path": "ABCDEFGHIJKLMNOP"}},
    "admission path that is guessed": {"admission": {"path": "review"}},
    "issuer with a typo": {"admission": {"certManager": {"issuerRef": {"names": "internal"}}}},
    "kind of an issuer without a name": {"admission": {"certManager": {"issuerRef": {"kind": "Issuer"}}}},
    "tick of nothing": {"operator": {"tickSeconds": 0}},
    "tick so long that liveness would end an idle operator": {"operator": {"tickSeconds": 61}},
    "yes for a switch": {"crds": {"enabled": "yes"}},
    "unknown switch of crds": {"crds": {"install": True}},
    "service account as text": {"serviceAccount": "op"},
    "scrape interval without a unit": {"serviceMonitor": {"interval": "30"}},
    "pod monitor labels as a list": {"podMonitor": {"labels": ["a"]}},
    "yes for rules of each LLMDeployment": {"prometheusRule": {"perLLMDeployment": "yes"}},
    "label of rules with a blank": {"prometheusRule": {"labels": {"release": "a b"}}},
    "label key of rules with a blank": {"prometheusRule": {"labels": {"a b": "c"}}},
    "runbooks at a relative path": {"prometheusRule": {"runbookBaseURL": "docs/runbooks"}},
    "runbooks with a quote": {"prometheusRule": {"runbookBaseURL": 'https://a"b'}},
    "dashboard without a label": {"dashboards": {"label": ""}},
    "resources without a level": {"resources": {"cpu": "1"}},
    "node selector with a number": {"nodeSelector": {"a": 1}},
    "affinity with a typo": {"affinity": {"nodeAfinity": {}}},
    "annotation that is no text": {"podAnnotations": {"a": True}},
    "name with a capital": {"fullnameOverride": "Tangram"},
    "name that is too long": {"fullnameOverride": "a" * 53},
    "agent as a switch": {"agent": True},
    "agent's image in its section": {"agent": {"image": "a"}},
    "agent's namespace with a dot": {"agent": {"namespace": "a.b"}},
    "agent with a relative path of the kubelet": {"agent": {"podResourcesPath": "var/lib"}},
    "agent with a path that ends in a slash": {"agent": {"podResourcesPath": "/var/lib/kubelet/"}},
    "agents that are never unavailable": {"agent": {"maxUnavailable": 0}},
    "more than all agents": {"agent": {"maxUnavailable": "101%"}},
    "node selector of the agent with a number": {"agent": {"nodeSelector": {"a": 1}}},
    "agent with an unknown resource level": {"agent": {"resources": {"cpu": "1"}}},
    "toleration of the agent with a typo": {"agent": {"tolerations": [{"effects": "NoSchedule"}]}},
    "device plugin by a selector": {"agent": {"devicePlugin": {"selector": "app=x"}}},
    "device plugin label that ends the expression": {
        "agent": {"devicePlugin": {"podLabels": {"app": "' || '"}}}
    },
    "device plugin label key with a blank": {"agent": {"devicePlugin": {"podLabels": {"a b": "c"}}}},
    "partition as a switch": {"partition": True},
    "partition with an unknown switch": {"partition": {"evict": True}},
    "config map with a capital": {"partition": {"migManager": {"configMapName": "Mig"}}},
    "pools as a list": {"gpuPools": ["h100"]},
}


# What the schema cannot express: the templates refuse it.
BAD_TOGETHER = {
    "prometheus with a password": {"prometheus": {"url": "http://u:p@prometheus"}},
    "prometheus with a user": {"prometheus": {"url": "https://u@prometheus:9090/x"}},
    "secret without a key": {"prometheus": {"auth": {"secretName": "p"}, "url": "https://p"}},
    "key without a secret": {"prometheus": {"auth": {"tokenKey": "t"}, "url": "https://p"}},
    "two tokens": {
        "prometheus": {
            "auth": {"serviceAccountToken": True, "secretName": "p", "tokenKey": "t"},
            "url": "https://p",
        }
    },
    "authority without tls": {"prometheus": {"auth": {"caKey": "ca", "secretName": "p"}, "url": "http://p"}},
    "window shorter than four scrapes": {"prometheus": {"windowSeconds": 30, "url": "http://p"}},
    "window shorter than four own scrapes": {"scrape": {"windowSeconds": 30}},
    "renewal later than the lease": {"leaderElection": {"renewSeconds": 20}},
    "retry later than renewal": {"leaderElection": {"retrySeconds": 12}},
    "a registry that the chart does not use": {"global": {"imageRegistry": "r.example.com"}},
    "a label of the pod that the chart sets": {"podLabels": {"app.kubernetes.io/name": "a"}},
    "a label of a monitor that the chart sets": {"serviceMonitor": {"labels": {"helm.sh/chart": "a"}}},
    "an annotation of the pod that the chart sets": {"podAnnotations": {"prometheus.io/port": "1"}},
    "mig-manager without partition": {"partition": {"migManager": {"enabled": True}}},
    "cluster policy without mig-manager": {"partition": {"migManager": {"editClusterPolicy": True}}},
    "recommendation later than the latest": {"advice": {"settleSeconds": 31}},
}


def _leaf(values):
    """The path of the one value of a case."""
    key, value = next(iter(values.items()))
    return (key, *(_leaf(value) if isinstance(value, dict) and value else ()))


def _clash(first, second):
    shared = first.keys() & second.keys()
    return any(
        not (isinstance(first[key], dict) and isinstance(second[key], dict))
        or _clash(first[key], second[key])
        for key in shared
    )


def _batches():
    """Cases side by side in as few documents as possible: a validator names all that is wrong in one."""
    batches = []
    for values in BAD.values():
        batch = next((each for each in batches if not _clash(each, values)), None)
        if batch is None:
            batches.append(values)
        else:
            batches[batches.index(batch)] = merge(batch, values)
    return batches


def _refusal(helm, values):
    registry = {"image": {"registry": "r.example.com"}}
    done = helm.run("template", "t", str(CHART), values=merge(registry, values))
    assert done.returncode != 0
    return done.stderr


@pytest.fixture(scope="module")
def refusals(helm):
    return [(batch, _refusal(helm, batch)) for batch in _batches()]


@pytest.mark.parametrize("values", BAD.values(), ids=BAD)
def test_refused_by_the_schema_with_the_path(refusals, values):
    (refusal,) = [text for batch, text in refusals if merge(batch, values) == batch]
    *above, last = _leaf(values)
    parent = "".join(f"/{key}" for key in above)
    is_named = re.search(f"at '{parent}/{re.escape(last)}['/]", refusal)  # itself, or an item of it
    # Else its key is named: an unknown one, or one that is no name of what the object lists.
    assert is_named or (f"at '{parent}'" in refusal and f"'{last}'" in refusal), refusal


@pytest.mark.parametrize("values", BAD_TOGETHER.values(), ids=BAD_TOGETHER)
def test_refused_by_the_templates_with_the_path(helm, values):
    refusal = _refusal(helm, values)
    assert f"{next(iter(values))}: " in refusal
    assert _leaf(values)[-1] in refusal


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"agent": {"devicePlugin": {"podLabels": {"app": None}}}}, "/agent/devicePlugin/podLabels"),
        ({"gpuPools": {"H100": {"nodeSelector": {"a": "b"}}}}, "invalid propertyName 'H100'"),
        ({"gpuPools": {"h100": {"backend": "NVML"}}}, "missing property 'nodeSelector'"),
        ({"gpuPools": {"h100": {"nodeSelector": {}}}}, "/gpuPools/h100/nodeSelector"),
        ({"gpuPools": {"h100": {"nodeSelector": {"a": "b"}, "mig": 1}}}, "properties 'mig' not allowed"),
        (
            {"gpuPools": {"h100": {"nodeSelector": {"a": "b"}, "pricePerGPUHour": 2.5}}},
            "/h100/pricePerGPUHour",
        ),
    ],
    ids=[
        "any pod as the device plugin",
        "pool with a capital",
        "pool without nodes",
        "pool of all nodes",
        "unknown key",
        "float as price",
    ],
)
def test_what_is_missing_is_named(helm, values, named):
    assert named in _refusal(helm, values)


def _sections(node, *above):
    """The paths of all mappings among the values."""
    for key, value in node.items():
        if isinstance(value, dict):
            yield ".".join((*above, key))
            yield from _sections(value, *above, key)


def _nulls(paths):
    """Values in which these are null, and what is below one of them is not mentioned."""
    values: dict = {}
    for path in sorted(paths):
        *above, last = path.split(".")
        node: dict | None = values
        for key in above:
            node = None if node is None else node.setdefault(key, {})
        if node is not None:
            node[last] = None
    return values


def test_a_section_that_is_null_is_empty_or_named_as_missing(helm):
    """helm takes the chart's own values away where a user's value is null."""
    on = {"enabled": True}
    everything = dict.fromkeys(("agent", "dashboards", "networkPolicy", "prometheusRule", "podMonitor"), on)
    everything["gateway"] = on | {"envoyImage": f"docker.io/envoyproxy/envoy@sha256:{'a' * 64}"}
    everything |= {"partition": on | {"migManager": on}, "prometheus": {"url": "http://p:9090"}}
    sections = set(_sections(yaml.safe_load((CHART / "values.yaml").read_text())))
    values = {path for path in REQUIRED if path not in sections and not path.startswith("gateway.")}
    assert values == {"agent.devicePlugin.namespace", "dashboards.label"}
    optional = sections - set(REQUIRED) - {"image"}
    assert helm.objects(merge(everything, _nulls(optional)))
    for depth in (0, 1, 2):
        paths = [path for path in REQUIRED if path.count(".") == depth]
        refusal = _refusal(helm, _nulls(paths))
        for path in paths:
            *above, last = path.split(".")
            where = "".join(f"/{key}" for key in above)
            assert re.search(f"at '{where}': missing propert[^\n]*'{last}'", refusal), refusal
        assert "nil pointer" not in refusal


def test_a_missing_registry_is_explained_by_the_schema(helm):
    done = helm.run("template", "t", str(CHART))
    assert done.returncode != 0
    assert "/image/registry" in done.stderr
    assert "--set image.registry=registry.example.com/team" in done.stderr
    assert "make images push REGISTRY=registry.example.com/team" in done.stderr


def test_a_missing_registry_is_explained_where_the_schema_is_skipped(helm):
    done = helm.run("template", "t", str(CHART), "--skip-schema-validation")
    assert done.returncode != 0
    assert "image.registry is not set: Tangram publishes no images" in done.stderr


@pytest.mark.parametrize(
    "registry", ["tangram.local", "127.0.0.1:5000/t", "ghcr.io/a-b/c_d", "r.example.com/team/"]
)
def test_any_real_registry_is_taken(helm, registry):
    objects = helm.objects({"image": {"registry": registry}})
    image = objects.one("Deployment")["spec"]["template"]["spec"]["containers"][0]["image"]
    assert image == registry.rstrip("/") + "/tangram-operator:0.1.0"


SCHEMA = json.loads((CHART / "values.schema.json").read_text())
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())


def _differences(values, schema, at=""):
    """Keys of values that the schema does not describe, and keys of the schema that values lack."""
    properties = schema.get("properties")
    if properties is None:  # a value, or a map with keys of the installer's
        return
    for key in values.keys() ^ properties.keys():
        yield f"{at}{key}"
    for key in values.keys() & properties.keys():
        if not properties[key].get("description"):
            yield f"{at}{key} without a description"
        yield from _differences(values[key], properties[key], f"{at}{key}.")


def test_values_and_schema_have_the_same_keys_each_with_a_description():
    affinity = ("affinity.nodeAffinity", "affinity.podAffinity", "affinity.podAntiAffinity")
    assert set(_differences(VALUES, SCHEMA)) == {"global", *affinity}


def test_every_value_has_a_comment_above_it():
    lines = (CHART / "values.yaml").read_text().splitlines()
    bare = []
    for number, line in enumerate(lines):
        match = re.match(r"^( *)([A-Za-z]+):(.*)$", line)
        if not match:
            continue
        opens_section = not match[3].strip() and lines[number + 1].lstrip().startswith("#")
        if not opens_section and not lines[number - 1].lstrip().startswith("#"):
            bare.append(line.strip())
    of_a_container = ["requests:", "cpu: 100m", "memory: 128Mi", "limits:", "memory: 1Gi"]
    assert bare == [
        *(*of_a_container, *of_a_container),
        *("requests:", "cpu: 100m", "memory: 512Mi", "limits:", "memory: 2Gi"),
    ]


def _leaves(schema, at=()):
    for key, each in schema["properties"].items():
        yield from _leaves(each, (*at, key)) if "properties" in each else [(*at, key)]


HANDED_ON = (
    "resources",
    "agent.resources",
    "gateway.resources",
    "gateway.envoyResources",
    "affinity",
)  # whole, to the pod
OPENED = {  # what a template calls a section that it opens
    **dict.fromkeys(("image.operator", "image.engine", "image.fetch", "image.agent"), ".image"),
    "agent.devicePlugin": "$plugin",
    "image.gateway": ".image",
    **{section: f"${section}" for section in ("gateway", "gateway.service", "gateway.tls")},
    "prometheus.auth": "",
}


def test_every_value_that_is_no_setting_is_used_by_a_template():
    text = "".join(path.read_text() for path in sorted((CHART / "templates").iterdir()))
    for path in set(_leaves(SCHEMA)) - set(_leaves(settings_schema())) - {("global",)}:
        section, name = ".".join(path[:-1]), path[-1]
        if section in HANDED_ON:
            assert f"with .Values.{section} }}}}" in text
        else:
            places = (f".Values.{'.'.join(path)}", f"{OPENED.get(section, '-')}.{name}")
            assert any(re.search(rf"{re.escape(place)}\b", text) for place in places), ".".join(path)
