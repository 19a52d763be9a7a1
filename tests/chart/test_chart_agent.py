"""The DaemonSet of the node agent: its arguments, its rights on the node, and where it runs."""

import re

import pytest

from tangram.partition.agent.api_thread import DEADLINE_S as API_DEADLINE_S
from tangram.partition.agent.command import NODE_NAME
from tangram.partition.agent.command import _parser as agent_parser
from tangram.partition.agent.driver_thread import DEADLINE_S as DRIVER_DEADLINE_S
from tangram.partition.agent.metrics import PORT
from tests.chart.test_chart_renders import EVERYTHING

ENABLED = {"agent": {"enabled": True}}


def pod_of(helm, values):
    return helm.objects(values).one("DaemonSet")["spec"]["template"]["spec"]


def container_of(helm, values):
    (container,) = pod_of(helm, values)["containers"]
    return container


def test_no_object_of_the_agent_is_there_until_it_is_wanted(helm):
    text = str(helm.objects())
    assert "DaemonSet" not in text
    assert "tangram-agent" not in text
    users = {
        condition["expression"]
        for policy in helm.objects().of("ValidatingAdmissionPolicy")
        for condition in policy["spec"]["matchConditions"]
    }
    assert users == {"request.userInfo.username == 'system:serviceaccount:tangram-system:tangram'"}


def test_the_charts_defaults_are_the_agents_own(helm):
    given = vars(agent_parser().parse_args(container_of(helm, ENABLED)["args"]))
    assert given == vars(agent_parser().parse_args([]))


def test_every_setting_that_the_chart_offers_reaches_the_agent(helm):
    objects = helm.objects(EVERYTHING)
    daemon_set = objects.one("DaemonSet")
    pod = daemon_set["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    arguments = agent_parser().parse_args(container["args"])
    assert str(arguments.pod_resources_socket) == "/data/kubelet/pod-resources/kubelet.sock"
    assert arguments.device_plugin_namespace == "kube-system"
    assert arguments.device_plugin_selector == "a=b,app.kubernetes.io/name=nvidia-device-plugin"
    assert arguments.metrics_port == container["ports"][0]["containerPort"] == 9500
    assert container["image"] == "registry.example.com/team/tangram-agent:v8"
    assert container["imagePullPolicy"] == "Always"
    assert container["resources"]["requests"] == {"cpu": 1, "memory": "128Mi"}
    (mount,), (volume,) = container["volumeMounts"], pod["volumes"]
    assert mount["mountPath"] == volume["hostPath"]["path"] == "/data/kubelet/pod-resources"
    assert pod["nodeSelector"] == {"nvidia.com/gpu.deploy.client": "true"}
    assert pod["tolerations"] == [{"key": "dedicated"}]
    assert pod["imagePullSecrets"] == [{"name": "pull"}]
    assert not {"runtimeClassName", "priorityClassName"} & pod.keys()
    assert daemon_set["spec"]["updateStrategy"]["rollingUpdate"] == {"maxUnavailable": 3}
    assert daemon_set["metadata"]["namespace"] == "agents"
    assert objects.one("ServiceAccount", pod["serviceAccountName"])["metadata"]["namespace"] == "agents"


def test_the_metrics_of_agents_are_scraped_by_a_monitor_or_by_annotations_or_not_at_all(helm):
    def scraped(**metrics):
        objects = helm.objects({"agent": {"enabled": True, "namespace": "agents", "metrics": metrics}})
        template = objects.one("DaemonSet")["spec"]["template"]
        annotations = template["metadata"].get("annotations", {})
        ports = template["spec"]["containers"][0].get("ports", [])
        return objects, annotations, [port["containerPort"] for port in ports]

    objects, annotations, ports = scraped()
    assert (annotations["prometheus.io/port"], ports, objects.of("PodMonitor")) == (str(PORT), [PORT], [])

    objects, annotations, ports = scraped(podMonitor=True)
    monitor = objects.one("PodMonitor")["spec"]
    assert (annotations, ports) == ({}, [PORT])
    labels = objects.one("DaemonSet")["spec"]["template"]["metadata"]["labels"]
    assert monitor["selector"]["matchLabels"].items() <= labels.items()
    assert monitor["namespaceSelector"] == {"matchNames": ["agents"]}
    (endpoint,) = monitor["podMetricsEndpoints"]
    assert (endpoint["port"], endpoint["honorLabels"]) == ("metrics", True)

    objects, annotations, ports = scraped(port=0, podMonitor=True)
    assert (annotations, ports, objects.of("PodMonitor")) == ({}, [], [])


def test_the_agent_learns_its_node_from_its_pod(helm):
    env = {each["name"]: each for each in container_of(helm, ENABLED)["env"]}
    assert env[NODE_NAME]["valueFrom"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}
    given = {name: each["value"] for name, each in env.items() if "value" in each}
    assert given == {
        "NVIDIA_VISIBLE_DEVICES": "all",
        "NVIDIA_DRIVER_CAPABILITIES": "utility",
        "NVIDIA_MIG_CONFIG_DEVICES": "all",
        "NVIDIA_MIG_MONITOR_DEVICES": "all",
    }


def test_the_agent_has_one_capability_and_of_the_host_process_ids_and_one_directory(helm):
    pod = pod_of(helm, ENABLED)
    (container,) = pod["containers"]
    security = container["securityContext"]
    assert security == {
        "privileged": False,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"], "add": ["SYS_ADMIN"]},
    }
    assert pod["securityContext"] == {
        "runAsUser": 0,
        "runAsGroup": 0,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert pod["hostPID"] is True
    assert not {"hostNetwork", "hostIPC"} & pod.keys()
    assert [volume["hostPath"]["path"] for volume in pod["volumes"]] == ["/var/lib/kubelet/pod-resources"]
    assert [mount["readOnly"] for mount in container["volumeMounts"]] == [True]
    assert "limits" in container["resources"]


def test_the_agent_may_finish_an_operation_before_it_is_killed(helm):
    longest = DRIVER_DEADLINE_S + API_DEADLINE_S
    assert pod_of(helm, ENABLED)["terminationGracePeriodSeconds"] > longest


def test_the_pods_of_the_agent_are_its_own_and_not_the_operators(helm):
    objects = helm.objects(ENABLED)
    daemon_set, deployment = objects.one("DaemonSet")["spec"], objects.one("Deployment")["spec"]
    labels = daemon_set["template"]["metadata"]["labels"]
    assert daemon_set["selector"]["matchLabels"].items() <= labels.items()
    assert not deployment["selector"]["matchLabels"].items() <= labels.items()
    assert not objects.one("Service")["spec"]["selector"].items() <= labels.items()


@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["defaults", "everything"])
def test_pools_of_the_values_are_rendered_as_they_are(helm, values):
    pools = {one["metadata"]["name"]: one["spec"] for one in helm.objects(values).of("GPUPool")}
    assert pools == values.get("gpuPools", {})


def test_values_say_that_without_a_pool_no_layout_changes(helm):
    done = helm.run("show", "values", "charts/tangram")
    comment = re.search(r"((?:^#.*\n)+)gpuPools:", done.stdout, re.MULTILINE)
    assert comment is not None
    assert "Without a GPUPool, no MIG layout ever changes" in comment[1]
