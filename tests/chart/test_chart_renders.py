"""What `helm install` would put into a cluster."""

import re
import shutil
from pathlib import Path

import pytest
import yaml

from tangram.kube.credentials import SERVICE_ACCOUNT
from tangram.shell.settings import Settings, parse_settings

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "tangram"
EVERYTHING = {
    "nameOverride": "tgm",
    "replicas": 3,
    "image": {
        "operator": {"digest": "sha256:" + "a" * 64},
        "engine": {"tag": "v7", "pullPolicy": "Never"},
        "agent": {"tag": "v8", "pullPolicy": "Always"},
    },
    "imagePullSecrets": [{"name": "pull"}],
    "prometheus": {
        "url": "http://prometheus.monitoring:9090",
        "windowSeconds": 20,
        "scrapeIntervalSeconds": 5,
        "headers": {"X-Scope-OrgID": "ml"},
        "auth": {"secretName": "prometheus-access", "tokenKey": "bearer", "headersKey": "extra.txt"},
    },
    "scaling": {"upAfterSeconds": 10, "downAfterSeconds": 45, "downLoad": 0.5},
    "engine": {
        "cpuPerGPU": 16,
        "memoryPerGPU": "128Gi",
        "maxCPUPerGPU": 24,
        "maxMemoryPerGPU": "256Gi",
        "serviceAccountName": "engines",
        "imagePullSecrets": ["pull"],
        "runtimeClassName": "nvidia",
        "runAsUser": None,
        "tmpSizeLimit": "4Gi",
        "shmSizeLimit": "2Gi",
        "nodeRemoval": "Block",
        "tolerations": [{"key": "dedicated", "operator": "Equal", "value": "llm", "effect": "NoSchedule"}],
    },
    "prices": {"H100-80GB-SXM": 2.5, "L4": 0},
    "watchNamespaces": ["team-a", "team-b"],
    "operator": {"tickSeconds": 5, "planDeadlineSeconds": 2.5, "relistSeconds": 60, "logFormat": "plain"},
    "advice": {"deadlineSeconds": 120, "settleSeconds": 2, "latestSeconds": 20, "idleSeconds": 30},
    "gpuPools": {"h100": {"nodeSelector": {"pool": "h100"}, "backend": "NVML", "nodes": {"max": 4}}},
    "partition": {"enabled": True, "migManager": {"enabled": True, "editClusterPolicy": True}},
    "agent": {
        "enabled": True,
        "namespace": "agents",
        "nodeSelector": {"nvidia.com/gpu.present": None, "nvidia.com/gpu.deploy.client": "true"},
        "tolerations": [{"key": "dedicated"}],
        "runtimeClassName": "",
        "podResourcesPath": "/data/kubelet/pod-resources",
        "devicePlugin": {
            "namespace": "kube-system",
            "podLabels": {"app": None, "app.kubernetes.io/name": "nvidia-device-plugin", "a": "b"},
        },
        "metrics": {"port": 9500, "podMonitor": True, "interval": "10s", "labels": {"release": "kps"}},
        "maxUnavailable": 3,
        "priorityClassName": "",
        "resources": {"requests": {"cpu": 1}},
    },
    "leaderElection": {"leaseSeconds": 30, "renewSeconds": 20, "retrySeconds": 4},
    "serviceAccount": {"name": "op", "annotations": {"a": "b"}},
    "serviceMonitor": {"enabled": True, "labels": {"release": "kps"}, "interval": "10s"},
    "podMonitor": {"enabled": True, "labels": {"release": "kps"}},
    "prometheusRule": {
        "enabled": True,
        "perLLMDeployment": True,
        "labels": {"release": "kps"},
        "runbookBaseURL": "https://wiki.example.com/tangram/",
    },
    "dashboards": {"enabled": True, "annotations": {"folder": "LLM"}},
    "resources": {"requests": {"cpu": 1}, "limits": {"memory": "2Gi"}},
    "nodeSelector": {"pool": "system"},
    "tolerations": [{"operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "podAnnotations": {"x": "y"},
    "podLabels": {"team": "ml"},
    "priorityClassName": "system-cluster-critical",
}
VALUE_SETS = {
    "defaults": {},
    "everything": EVERYTHING,
    "no-crds-no-rbac": {
        "crds": {"enabled": False},
        "rbac": {"create": False},
        "serviceAccount": {"create": False},
    },
    "demo": yaml.safe_load((ROOT / "e2e" / "demo" / "values.yaml").read_text()),
}


def config_of(objects):
    """The operator's settings file."""
    (config,) = (one for one in objects.of("ConfigMap") if "config.yaml" in one["data"])
    return config["data"]["config.yaml"]


def settings_of(objects):
    return parse_settings(config_of(objects), "config.yaml")


@pytest.mark.parametrize("values", VALUE_SETS.values(), ids=VALUE_SETS)
def test_helm_lint_finds_nothing_with(helm, values):
    merged = {**values, "image": {**values.get("image", {}), "registry": "r.example.com"}}
    done = helm.run("lint", "--strict", str(CHART), values=merged)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("values", VALUE_SETS.values(), ids=VALUE_SETS)
def test_every_object_is_well_formed_with(helm, values):
    objects = helm.objects(values)
    seen = [(one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]) for one in objects]
    assert len(set(seen)) == len(seen)
    for one in objects:
        assert one["apiVersion"]
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", one["metadata"]["name"])
        labels = one["metadata"]["labels"]
        assert labels["app.kubernetes.io/part-of"] == "tangram"
        assert labels["app.kubernetes.io/managed-by"] == "Helm"
        for value in labels.values():
            assert re.fullmatch(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?", value)


@pytest.mark.parametrize("values", VALUE_SETS.values(), ids=VALUE_SETS)
def test_the_operator_accepts_the_configuration_that_the_chart_writes(helm, values):
    settings = settings_of(helm.objects(values))
    assert settings.engine_image.startswith("registry.example.com/team/tangram-engine:")
    assert settings.leader_election.namespace == "tangram-system"


def test_every_setting_that_the_chart_offers_reaches_the_operator(helm):
    s = settings_of(helm.objects(EVERYTHING))
    assert s.engine_image == "registry.example.com/team/tangram-engine:v7"
    assert s.engine_image_pull_policy == "Never"
    engine = s.engine
    assert (engine.service_account_name, engine.runtime_class_name) == ("engines", "nvidia")
    assert (s.pod_needs.cpu_per_gpu, s.pod_needs.memory_per_gpu) == (16, 128 * 2**30)
    assert (s.pod_needs.max_cpu_per_gpu, s.pod_needs.max_memory_per_gpu) == (24, 256 * 2**30)
    assert engine.image_pull_secrets == ("pull",)
    assert (engine.run_as_user, engine.tmp_size_limit, engine.shm_size_limit, engine.node_removal) == (
        None,
        "4Gi",
        "2Gi",
        "Block",
    )
    assert engine.tolerations[0]["value"] == "llm"
    assert s.prometheus is not None
    assert (s.prometheus.window_seconds, s.prometheus.scrape_interval_seconds) == (20, 5)
    assert s.prometheus.headers == {"X-Scope-OrgID": "ml"}
    mounted = Path("/etc/tangram-prometheus")
    assert (s.prometheus.bearer_token_file, s.prometheus.headers_file) == (
        mounted / "token",
        mounted / "headers",
    )
    assert s.prometheus.ca_file is None
    assert (s.scaling.up_after_seconds, s.scaling.down_after_seconds, s.scaling.down_load) == (10, 45, 0.5)
    assert s.prices == {"H100-80GB-SXM": 2.5, "L4": 0}
    assert s.watch_namespaces == ("team-a", "team-b")
    assert (s.operator.tick_seconds, s.operator.plan_deadline_seconds, s.operator.relist_seconds) == (
        5,
        2.5,
        60,
    )
    advice = s.advice
    assert (advice.deadline_seconds, advice.settle_seconds) == (120, 2)
    assert (advice.latest_seconds, advice.idle_seconds) == (20, 30)
    assert s.operator.log_format == "plain"
    assert s.partition.enabled is True
    lease = s.leader_election
    assert (lease.name, lease.lease_seconds, lease.renew_seconds, lease.retry_seconds) == (
        "tangram-tgm",
        30,
        20,
        4,
    )


@pytest.mark.parametrize(("user", "ids"), [(None, set()), (1000660000, {1000660000}), (65532, {65532})])
def test_the_operators_user_is_the_installers_or_the_clusters_choice(helm, user, ids):
    rendered = helm.objects({"operator": {"runAsUser": user}}).one("Deployment")
    security = rendered["spec"]["template"]["spec"]["securityContext"]
    assert {security[key] for key in ("runAsUser", "runAsGroup", "fsGroup") if key in security} == ids
    assert security["runAsNonRoot"] is True


def test_the_charts_defaults_are_the_operators_own(helm):
    rendered = helm.objects({"prometheus": {"url": "http://p"}})
    own = Settings.model_validate(
        {
            "engineImage": "registry.example.com/team/tangram-engine:0.1.0",
            "fetchImage": "registry.example.com/team/tangram-fetch:0.1.0",
            "prometheus": {"url": "http://p"},
            "leaderElection": {"name": "tangram"},
            "defaultPriorityClassName": "tangram-standard",
        }
    )
    assert settings_of(rendered) == own


def test_the_settings_file_has_every_setting_but_the_addresses(helm):
    fields = {field.alias for field in Settings.model_fields.values()}
    certificate = {"path": "0123456789abcdef", "certManager": {"enabled": True}}
    config = yaml.safe_load(
        config_of(helm.objects({"prometheus": {"url": "http://p"}, "admission": certificate}))
    )
    assert fields - config.keys() == {"metricsPort", "probePort", "listenHost"}


def test_without_a_prometheus_url_the_operator_scrapes_the_engines(helm):
    settings = settings_of(helm.objects())
    assert settings.prometheus is None
    assert settings.scrape.enabled


def test_the_operator_scrapes_no_engine_where_the_values_say_so(helm):
    assert settings_of(helm.objects({"scrape": {"enabled": False}})).scrape.enabled is False


def test_the_keys_for_prometheus_are_mounted_read_only_where_the_operator_reads_them(helm):
    auth = {"secretName": "p", "tokenKey": "t", "caKey": "ca.pem", "headersKey": "h"}
    objects = helm.objects({"prometheus": {"url": "https://p", "auth": auth}})
    prometheus = settings_of(objects).prometheus
    pod = objects.one("Deployment")["spec"]["template"]["spec"]

    (volume,) = [one for one in pod["volumes"] if one["name"] == "prometheus"]
    (mount,) = [one for one in pod["containers"][0]["volumeMounts"] if one["name"] == "prometheus"]
    assert (volume["secret"]["secretName"], volume["secret"]["optional"]) == ("p", True)
    assert mount["readOnly"] is True
    assert "subPath" not in mount  # the kubelet never replaces the files of one
    files = {item["key"]: Path(mount["mountPath"]) / item["path"] for item in volume["secret"]["items"]}
    assert files == {
        "t": prometheus.bearer_token_file,
        "ca.pem": prometheus.ca_file,
        "h": prometheus.headers_file,
    }


def test_the_token_of_the_service_account_is_the_one_that_the_kubelet_mounts(helm):
    objects = helm.objects({"prometheus": {"url": "https://p", "auth": {"serviceAccountToken": True}}})

    assert settings_of(objects).prometheus.bearer_token_file == SERVICE_ACCOUNT / "token"
    pod = objects.one("Deployment")["spec"]["template"]["spec"]
    assert [volume["name"] for volume in pod["volumes"]] == ["config", "tmp"]


@pytest.mark.parametrize(
    "prometheus",
    [
        {},
        {"url": "https://p"},
        {"auth": {"secretName": "p", "tokenKey": "t"}},
        {"url": "http://p", "auth": None},
    ],
    ids=["no metrics", "no secret", "a secret without a url", "values of a chart without prometheus.auth"],
)
def test_a_secret_that_is_not_needed_is_not_mounted(helm, prometheus):
    pod = helm.objects({"prometheus": prometheus}).one("Deployment")["spec"]["template"]["spec"]
    assert [volume["name"] for volume in pod["volumes"]] == ["config", "tmp"]
    assert {mount["name"] for mount in pod["containers"][0]["volumeMounts"]} == {"config", "tmp"}


def test_the_operator_pod_meets_the_restricted_pod_security_standard(helm):
    pod = helm.objects().one("Deployment")["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    assert {kind for volume in pod["volumes"] for kind in volume if kind != "name"} <= {
        "configMap",
        "emptyDir",
    }
    for container in pod["containers"]:
        security = container["securityContext"]
        assert security["allowPrivilegeEscalation"] is False
        assert security["readOnlyRootFilesystem"] is True
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert "limits" in container["resources"]
        assert container["livenessProbe"]["httpGet"]["path"] == "/livez"
        assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
        assert container["startupProbe"]["httpGet"]["path"] == "/livez"


def test_ports_of_probes_and_metrics_are_those_of_the_configuration(helm):
    objects = helm.objects()
    settings = settings_of(objects)
    container = objects.one("Deployment")["spec"]["template"]["spec"]["containers"][0]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"metrics": settings.metrics_port, "probes": settings.probe_port}
    service = objects.one("Service")
    assert service["spec"]["ports"][0]["targetPort"] == "metrics"
    template = objects.one("Deployment")["spec"]["template"]["metadata"]
    assert service["spec"]["selector"].items() <= template["labels"].items()


def test_engine_pods_are_never_behind_the_operators_service(helm):
    engine = {"app.kubernetes.io/managed-by": "tangram", "app.kubernetes.io/component": "engine"}
    selector = helm.objects().one("Service")["spec"]["selector"]
    assert selector["app.kubernetes.io/component"] != engine["app.kubernetes.io/component"]


def test_a_changed_configuration_makes_new_pods_and_an_unchanged_one_does_not(helm):
    def checksum(values):
        return helm.objects(values).one("Deployment")["spec"]["template"]["metadata"]["annotations"][
            "checksum/config"
        ]

    assert checksum({}) == checksum({"podLabels": {"a": "b"}})
    assert checksum({}) != checksum({"operator": {"tickSeconds": 5}})


def test_a_digest_decides_whatever_the_tag_says(helm):
    values = {"image": {"operator": {"tag": "v1", "digest": "sha256:" + "b" * 64}}}
    container = helm.objects(values).one("Deployment")["spec"]["template"]["spec"]["containers"][0]
    assert container["image"] == "registry.example.com/team/tangram-operator@sha256:" + "b" * 64


def test_a_disruption_budget_exists_only_where_there_is_someone_to_take_over(helm):
    assert not helm.objects().of("PodDisruptionBudget")
    budget = helm.objects({"replicas": 2}).one("PodDisruptionBudget")
    assert budget["spec"]["maxUnavailable"] == 1


def _read(path):
    return yaml.safe_load(path.read_text())


def _as_go_reads(value):
    """helm writes 1000000 as 1e+06, which YAML 1.1 takes for text, and the API server for a number."""
    if isinstance(value, dict):
        return {key: _as_go_reads(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_as_go_reads(item) for item in value]
    return float(value) if isinstance(value, str) and re.fullmatch(r"-?\de[+-]\d\d", value) else value


def test_crds_are_those_of_the_repository_and_are_kept(helm):
    sources = {source["metadata"]["name"]: source for source in map(_read, (ROOT / "crds").glob("*.yaml"))}
    rendered = helm.objects().of("CustomResourceDefinition")
    assert {one["metadata"]["name"]: _as_go_reads(one["spec"]) for one in rendered} == {
        name: source["spec"] for name, source in sources.items()
    }
    assert {one["metadata"]["annotations"]["helm.sh/resource-policy"] for one in rendered} == {"keep"}
    for loose in helm.objects({"crds": {"keep": False}}).of("CustomResourceDefinition"):
        assert "helm.sh/resource-policy" not in loose["metadata"].get("annotations", {})
    assert not helm.objects({"crds": {"enabled": False}}).of("CustomResourceDefinition")


def test_monitors_rules_and_dashboards_are_off_until_wanted(helm):
    kinds = {one["kind"] for one in helm.objects()}
    assert not kinds & {"ServiceMonitor", "PodMonitor", "PrometheusRule"}
    assert len(helm.objects().of("ConfigMap")) == 1
    everything = helm.objects(EVERYTHING)
    for kind in ("ServiceMonitor", "PrometheusRule"):
        assert everything.one(kind)["metadata"]["labels"]["app.kubernetes.io/part-of"] == "tangram"
    for name in ("tangram-tgm-engines", "tangram-tgm-agents"):
        labels = everything.one("PodMonitor", name)["metadata"]["labels"]
        assert (labels["app.kubernetes.io/part-of"], labels["release"]) == ("tangram", "kps")
    assert everything.one("ServiceMonitor")["metadata"]["labels"]["release"] == "kps"
    dashboards = everything.one("ConfigMap", "tangram-tgm-dashboards")
    assert dashboards["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert list(dashboards["data"]) == ["tangram-fleet.json"]


def test_the_operator_is_scraped_once_not_twice(helm):
    def annotations(values):
        return helm.objects(values).one("Deployment")["spec"]["template"]["metadata"]["annotations"]

    assert annotations({})["prometheus.io/scrape"] == "true"
    assert "prometheus.io/scrape" not in annotations({"serviceMonitor": {"enabled": True}})


def test_the_pod_monitor_selects_the_pods_that_the_operator_makes(helm):
    from tangram.fleet import labels

    monitor = helm.objects({"podMonitor": {"enabled": True}}).one("PodMonitor")["spec"]
    assert monitor["selector"]["matchLabels"] == {
        labels.MANAGED_BY_LABEL: labels.MANAGED_BY,
        labels.COMPONENT_LABEL: "engine",
    }
    assert monitor["podMetricsEndpoints"][0]["port"] == "http"
    assert monitor["namespaceSelector"] == {"any": True}


def test_runbook_links_begin_with_what_was_asked(helm):
    def links(values, annotation):
        rule = helm.objects(values).one("PrometheusRule")
        return [r["annotations"][annotation] for group in rule["spec"]["groups"] for r in group["rules"]]

    published = links(EVERYTHING, "runbook_url")
    assert len(published) == 13
    assert all(link.startswith("https://wiki.example.com/tangram/Tangram") for link in published)
    nowhere = links({"prometheusRule": {"enabled": True}}, "runbook")
    assert all(page.startswith("docs/runbooks/Tangram") for page in nowhere)


def test_the_operator_is_told_how_prometheus_selects_its_rules(helm):
    def settings(values):
        return settings_of(helm.objects(values)).prometheus_rule

    assert not settings({}).per_llm_deployment
    assert not settings({"prometheusRule": {"enabled": True}}).per_llm_deployment
    told = settings(EVERYTHING)
    assert (told.per_llm_deployment, told.labels) == (True, {"release": "kps"})
    assert told.runbook_base_url == "https://wiki.example.com/tangram/"
    alone = helm.objects({"prometheusRule": {"perLLMDeployment": True}})
    assert not alone.of("PrometheusRule")


def test_notes_tell_the_next_command_and_what_is_missing(helm, tmp_path):
    others = {path.name for path in (CHART / "templates").glob("*.yaml")} | {"crds"}
    # helm prints notes only on an install; so a copy of the chart renders them, as its only template.
    chart = tmp_path / "tangram"
    shutil.copytree(CHART, chart, ignore=lambda _, names: [name for name in names if name in others])
    (chart / "templates" / "NOTES.txt").rename(chart / "files" / "NOTES.txt")
    wrapped = 'notes: {{ tpl (.Files.Get "files/NOTES.txt") . | toJson }}'
    (chart / "templates" / "notes.yaml").write_text(wrapped)

    def notes(**values):
        registry = ("--set", "image.registry=r")
        done = helm.run("template", "t", str(chart), "--namespace", "ns", *registry, values=values)
        assert done.returncode == 0, done.stderr
        return yaml.safe_load(done.stdout)["notes"]

    bare = notes()
    assert "kubectl apply" in bare
    assert "kubectl get llmdep" in bare
    assert "kubectl get fleetplans" in bare
    assert "GPUPool" in bare
    assert "from the engines' pods itself" in bare
    assert "from the engines' pods itself" in notes(scrape=None)  # values of a release before it had them
    assert "the number of replicas is held" in notes(scrape={"enabled": False})
    assert "prometheus.url is not set" not in notes(prometheus={"url": "http://p:9090"})
    assert "REMOVES" in notes(crds={"keep": False})
    assert "-n team-a" in notes(watchNamespaces=["team-a"])
    assert "gpunodes" not in bare
    rules = notes(prometheusRule={"perLLMDeployment": True})
    assert "kubectl get prometheusrules -A" in rules
    assert "NOTE: prometheusRule.labels is empty" in rules
    labelled = notes(prometheusRule={"perLLMDeployment": True, "labels": {"release": "kps"}})
    assert 'with the labels {"release":"kps"}' in labelled
    assert "NOTE: prometheusRule.labels" not in labelled
    assert "prometheusrules" not in bare
    agents = notes(agent={"enabled": True, "namespace": "agents"})
    assert "kubectl -n agents rollout status daemonset/t-tangram-agent\n  kubectl get gpunodes" in agents
    assert "NOTE: gpuPools is empty" in agents
    pools = {"h100": {"nodeSelector": {"pool": "h100"}}}
    assert "NOTE: gpuPools is empty" not in notes(agent={"enabled": True}, gpuPools=pools)


@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["defaults", "everything"])
def test_a_long_release_name_still_gives_legal_names(helm, values):
    for one in helm.objects(values, release="a" * 53):
        assert len(one["metadata"]["name"]) <= 63
