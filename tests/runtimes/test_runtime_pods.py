"""Pods of the four runtimes as they are rendered: words, numbers of the plan, probes, drain, security."""

import json
import shlex
from dataclasses import replace
from typing import Any

import pytest

from tangram.fleet import (
    ApplyDeployment,
    Launch,
    Objective,
    RuntimeOption,
    RuntimeRequest,
    Shape,
)
from tangram.runtimes.flag_tables import flag_table
from tangram.shell.objects import manifests
from tangram.shell.objects.manifest_match import up_to_date
from tangram.shell.objects.owned_objects import shape_of
from tests.shell.test_manifests import SETTINGS, container, intent
from tests.support.runtimes import OTHERS, shipped

WEIGHTS = 16 << 30
INTENT = replace(
    intent("pvc://weights/olmo"),
    ttft=Objective(90, 800),
    tpot=Objective(90, 33),
    max_request_s=300,
    max_running_requests=48,
)


def launch(name: str, **changed: Any) -> Launch:
    return Launch(shipped(name, **changed), WEIGHTS, 1488, 0.9, 0.8123)


def deployment(name, wanted=INTENT, at=("1g.10gb", 1), **changed):
    shape = Shape("H100-80GB-SXM", at[0], at[1], "bf16", name)
    action = ApplyDeployment(
        "uid-1", shape, 3, ("NVIDIA-H100-80GB-HBM3",), 4096, launch=launch(name, **changed)
    )
    return manifests.deployment(wanted, action, SETTINGS)


def options(words: list[str]) -> dict[str, list[str]]:
    """Return the values of each flag of a command line."""
    found: dict[str, list[str]] = {}
    flag = ""
    for word in words:
        if word.startswith("--"):
            flag, mark, value = word.partition("=")
            found[flag] = [value] if mark else []
        elif flag:
            found[flag].append(word)
    return found


def variables(rendered) -> dict[str, Any]:
    return {entry["name"]: entry.get("value") for entry in container(rendered)["env"]}


def test_vllm_on_a_slice_has_the_numbers_of_the_plan():
    rendered = deployment("vllm")
    words = container(rendered)["args"]
    flags = options(words)

    assert container(rendered)["command"] == ["vllm", "serve"]
    assert words[0] == "/mnt/model/olmo"
    assert flags["--max-num-batched-tokens"] == ["1488"]
    assert flags["--max-num-seqs"] == ["48"]
    assert flags["--gpu-memory-utilization"] == ["0.90"]
    assert flags["--max-model-len"] == ["4096"]
    assert flags["--tensor-parallel-size"] == ["1"]
    assert flags["--shutdown-timeout"] == ["300"]
    assert flags["--load-format"] == ["safetensors"]
    edges = json.loads(flags["--custom-histogram-buckets"][0])
    assert 0.8 in edges["time_to_first_token"]
    assert 0.033 in edges["inter_token_latency"]
    assert edges["time_to_first_token"] == sorted(edges["time_to_first_token"])


def test_sglang_listens_shows_metrics_and_closes_its_routes_of_administration():
    rendered = deployment("sglang")
    flags = options(container(rendered)["args"])

    assert flags["--host"] == ["0.0.0.0"]
    assert flags["--enable-metrics"] == []
    assert flags["--admin-api-key"] == ["$(TANGRAM_POD_UID)"]
    assert container(rendered)["env"][0] == {
        "name": "TANGRAM_POD_UID",
        "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}},
    }
    assert flags["--mem-fraction-static"] == ["0.81"]
    assert "0.8" in flags["--bucket-time-to-first-token"]
    assert "0.033" in flags["--bucket-inter-token-latency"]


def test_a_nim_has_its_flags_in_one_variable_and_its_paths_behind_v1():
    rendered = deployment("nim")
    values, probes = variables(rendered), container(rendered)

    assert probes["args"] == []
    flags = options(shlex.split(values["NIM_PASSTHROUGH_ARGS"]))
    assert flags["--max-num-batched-tokens"] == ["1488"]
    assert json.loads(flags["--custom-histogram-buckets"][0])["time_to_first_token"]
    assert values["NIM_MODEL_PATH"] == "/mnt/model/olmo"
    assert values["NIM_SERVED_MODEL_NAME"] == "chat"
    assert values["NIM_SERVER_PORT"] == "8000"
    assert probes["readinessProbe"]["httpGet"]["path"] == "/v1/health/ready"
    assert probes["livenessProbe"]["httpGet"]["path"] == "/v1/health/live"
    annotations = rendered["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/path"] == "/v1/metrics"


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_every_rendered_flag_is_one_of_the_version(name):
    runtime = shipped(name)
    table = flag_table(runtime.kind, runtime.version)

    assert table is not None
    for word in container(deployment(name))["args"]:
        assert not word.startswith("--") or not table.problem(word)


@pytest.mark.parametrize("name", OTHERS)
def test_pods_of_runtimes_keep_the_security_of_engine_pods(name):
    rendered = deployment(name)
    pod, engine = rendered["spec"]["template"]["spec"], container(rendered)

    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["runAsUser"] == (1000 if name == "nim" else 65_532)
    assert pod["automountServiceAccountToken"] is False
    assert engine["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": name != "nim",
        "capabilities": {"drop": ["ALL"]},
    }
    assert "@sha256:" in engine["image"]
    assert [mount["mountPath"] for mount in engine["volumeMounts"]][:3] == ["/tmp", "/mnt/model", "/dev/shm"]  # noqa: S108
    model = next(volume for volume in pod["volumes"] if volume["name"] == "model")
    assert model["persistentVolumeClaim"]["readOnly"]


@pytest.mark.parametrize("name", OTHERS)
def test_no_stream_is_cut_within_the_longest_request(name):
    rendered = deployment(name)
    pod, engine = rendered["spec"]["template"]["spec"], container(rendered)

    before_sigterm = engine["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert before_sigterm >= 5
    assert pod["terminationGracePeriodSeconds"] >= before_sigterm + 300 + 10


@pytest.mark.parametrize(("weights", "longest"), [(1 << 30, 700), (400 << 30, 5000)])
def test_a_start_may_take_as_long_as_the_weights_need(weights, longest):
    slow = replace(launch("vllm"), weight_bytes=weights)
    shape = Shape("H100-80GB-SXM", "gpu", 1, "bf16", "vllm")
    rendered = manifests.deployment(
        INTENT, ApplyDeployment("uid-1", shape, 1, (), 4096, launch=slow), SETTINGS
    )
    probe = container(rendered)["startupProbe"]

    budget = probe["failureThreshold"] * probe["periodSeconds"]
    assert 600 + weights / (100 << 20) <= budget < longest
    assert rendered["spec"]["progressDeadlineSeconds"] > budget


def test_several_gpus_get_shared_memory_and_nccl_without_a_network():
    rendered = deployment("vllm", at=("gpu", 4))
    values, pod = variables(rendered), rendered["spec"]["template"]["spec"]

    assert options(container(rendered)["args"])["--tensor-parallel-size"] == ["4"]
    assert container(rendered)["resources"]["limits"]["nvidia.com/gpu"] == "4"
    assert values["NCCL_IB_DISABLE"] == "1"
    assert values["NCCL_SOCKET_IFNAME"] == "lo"
    shm = next(volume for volume in pod["volumes"] if volume["name"] == "shm")
    assert shm["emptyDir"] == {"medium": "Memory", "sizeLimit": "8Gi"}
    assert "NCCL_P2P_DISABLE" not in values
    assert "NCCL_IB_DISABLE" not in variables(deployment("vllm"))


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("vllm", {"--tensor-parallel-size": "2", "--pipeline-parallel-size": "4"}),
        ("sglang", {"--tp-size": "2", "--pp-size": "4"}),
    ],
)
def test_a_pipeline_takes_the_gpus_of_all_stages(name, flags):
    shape = Shape("RTX-4090", "gpu", 2, "bf16", name, pipeline_parallel=4)
    action = ApplyDeployment("uid-1", shape, 1, (), 4096, launch=launch(name))
    rendered = manifests.deployment(INTENT, action, SETTINGS)

    words = options(container(rendered)["args"])
    assert {flag: words[flag] for flag in flags} == {flag: [value] for flag, value in flags.items()}
    assert container(rendered)["resources"]["requests"]["nvidia.com/gpu"] == "8"
    assert variables(rendered)["NCCL_P2P_DISABLE"] == "1"  # the driver of this board forbids it
    assert shape_of(rendered) == shape


def test_what_an_author_adds_is_one_word_and_expands_nothing():
    wanted = replace(
        INTENT,
        runtime=RuntimeRequest(
            "vllm",
            (
                RuntimeOption("--tool-call-parser", "--trust-remote-code"),
                RuntimeOption("--reasoning-parser", "$(TANGRAM_POD_UID)"),
                RuntimeOption("--enforce-eager"),
            ),
            (RuntimeOption("VLLM_LOGGING_LEVEL", "$(TANGRAM_POD_UID)"),),
        ),
    )
    rendered = deployment("vllm", wanted)

    # A word of its own could become a flag: argparse never reads one out of --flag=value.
    assert container(rendered)["args"][-3:] == [
        "--tool-call-parser=--trust-remote-code",
        "--reasoning-parser=$$(TANGRAM_POD_UID)",
        "--enforce-eager",
    ]
    assert variables(rendered)["VLLM_LOGGING_LEVEL"] == "$$(TANGRAM_POD_UID)"


@pytest.mark.parametrize("name", OTHERS)
def test_a_rendered_deployment_is_read_back_and_stays_as_it_is(name):
    rendered = deployment(name)
    live = json.loads(json.dumps(rendered))
    live["spec"]["template"]["spec"]["containers"][0]["env"][0]["valueFrom"]["fieldRef"]["apiVersion"] = "v1"

    assert up_to_date(live, rendered)
    assert shape_of(rendered).runtime == name
    assert rendered["spec"]["template"]["metadata"]["labels"]["tangram.dev/runtime"] == name


def test_a_deployment_of_the_bundled_engine_is_as_before_there_were_runtimes():
    shape = Shape("H100-80GB-SXM", "1g.10gb")
    rendered = manifests.deployment(intent(), ApplyDeployment("uid-1", shape, 1, (), 4096), SETTINGS)

    assert "runtime" not in rendered["metadata"]["annotations"]["tangram.dev/shape"]
    assert "tangram.dev/runtime" not in rendered["spec"]["template"]["metadata"]["labels"]
    assert container(rendered)["args"][0] == "serve"
    assert "env" not in container(rendered)
