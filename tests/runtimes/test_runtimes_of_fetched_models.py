"""vLLM, SGLang and NIM with models that their pods fetch: rendered, planned and reached."""

import copy
import json
from dataclasses import replace

import pytest

from tangram.fleet import (
    ApplyDeployment,
    EngineRuntime,
    FactsKey,
    PinnedRevision,
    RuntimeOption,
    RuntimeRequest,
)
from tangram.runtimes.checks import MOST_ADDED_CHARACTERS, RuntimeProblem, request_problems
from tangram.shell.objects import manifests
from tangram.shell.objects.fetch_reports import fetch_state
from tangram.shell.objects.manifest_match import up_to_date
from tangram.shell.snapshot.workloads import workload
from tangram.shell.watch import kept_fields
from tests.runtimes.test_runtime_choice import OLMO_FACTS, VLLM, decided, fleet
from tests.runtimes.test_runtime_pods import INTENT, WEIGHTS, launch
from tests.shell.test_fetched_models import PIN, SETTINGS
from tests.support.fleet import IMAGE, intent, shape
from tests.support.runtimes import OTHERS, parsed, refusal, shipped, shipped_spec

HUB = "hf://org/model"


def deployment(started, pin=PIN, uri=HUB, wanted=INTENT):
    """Return the Deployment of a runtime of the chart, by its name, or of a Launch."""
    started = launch(started) if isinstance(started, str) else started
    at = replace(shape(), runtime=started.runtime.name)
    action = ApplyDeployment("uid-1", at, 1, ("p",), 4096, pin=pin, launch=started)
    secret = "hub" if pin else ""
    return manifests.deployment(replace(wanted, model_uri=uri, model_secret=secret), action, SETTINGS)


def pod_of(rendered):
    return rendered["spec"]["template"]["spec"]


def mounts(container):
    return {mount["name"]: mount for mount in container["volumeMounts"]}


@pytest.mark.parametrize("name", OTHERS)
def test_a_runtime_reads_what_its_pod_fetched_and_not_the_secret(name):
    pod = pod_of(deployment(name))
    (fetch,), (engine,) = pod["initContainers"], pod["containers"]
    volumes = [volume["name"] for volume in pod["volumes"]]

    written = fetch["args"][fetch["args"].index("--to") + 1]
    values = [variable.get("value") for variable in engine["env"]]
    assert written in [*engine["args"], *values]
    assert mounts(engine)["model"]["readOnly"] is True
    assert "source-secret" in mounts(fetch).keys() - mounts(engine).keys()
    assert sorted({*mounts(fetch), *mounts(engine)}) == sorted(volumes)


@pytest.mark.parametrize("name", OTHERS)
def test_files_and_secret_of_a_fetch_belong_to_the_user_of_the_runtime(name):
    pod = pod_of(deployment(name))
    (fetch,), security = pod["initContainers"], pod["securityContext"]

    assert security["fsGroup"] == security["runAsUser"] == security["runAsGroup"]
    assert not fetch["securityContext"].keys() & {"runAsUser", "runAsGroup", "runAsNonRoot"}
    assert fetch["securityContext"]["readOnlyRootFilesystem"]  # also of a NIM, whose own root is not
    assert "env" not in fetch


@pytest.mark.parametrize("name", OTHERS)
def test_a_rollout_of_a_runtime_has_the_time_of_its_fetch_and_of_its_start(name):
    on_a_claim = deployment(name, pin=None, uri="pvc://weights/olmo")["spec"]["progressDeadlineSeconds"]

    assert deployment(name)["spec"]["progressDeadlineSeconds"] == on_a_claim + 1610


def test_the_start_budget_is_read_back_from_a_deployment_of_a_runtime_alone():
    rendered = deployment("nim")
    live = rendered | {"metadata": rendered["metadata"] | {"uid": "u", "generation": 1}}

    assert workload(live, [], 0.0).start_budget_s >= 1200 + (WEIGHTS >> 20) / 100
    live["spec"]["template"]["spec"]["containers"][0]["startupProbe"] = {"failureThreshold": "many"}
    assert workload(live, [], 0.0).start_budget_s == 0
    bundled = manifests.deployment(INTENT, ApplyDeployment("uid-1", shape(), 1, (), 4096), SETTINGS)
    bundled["metadata"] |= {"uid": "u", "generation": 1}
    assert workload(bundled, [], 0.0).start_budget_s == 0


def test_another_commit_replaces_the_pods_of_a_runtime():
    rendered = deployment("vllm")
    other = deployment("vllm", replace(PIN, revision="d" * 40))

    assert up_to_date(copy.deepcopy(rendered), rendered)
    assert not up_to_date(rendered, other)
    state = fetch_state(rendered, [], 0.0)
    assert state is not None
    assert state.size == PIN.size


def test_the_longest_words_are_kept_whole_and_longer_ones_refused():
    """A Deployment that mirrors cut down is written again in each round."""
    base = shipped_spec("vllm")["arguments"]
    longer = [[*base, *(["--chat-template={modelPath}/" + "x" * 990] * n)] for n in range(1, 40)]
    accepted = [words for words in longer if isinstance(parsed("vllm", arguments=words), EngineRuntime)]
    runtime = shipped("vllm", arguments=accepted[-1])
    option = RuntimeOption("--tool-call-parser", "x" * 1024)
    most = MOST_ADDED_CHARACTERS // (len(option.name) + 1024)
    wanted = replace(INTENT, runtime=RuntimeRequest("vllm", (option,) * most))

    assert 10 < len(accepted) < len(longer)
    assert "shorten it to 40960" in refusal("vllm", arguments=longer[len(accepted)])
    too_many = replace(wanted.runtime, arguments=(option,) * (most + 1))
    assert "shorten it to 8192" in next(request_problems(too_many, runtime)).text
    assert "shorten" not in next(request_problems(wanted.runtime, runtime), RuntimeProblem((), "")).text
    started, uri = replace(launch("vllm"), runtime=runtime), "pvc://w/" + "x" * 504
    rendered = deployment(started, None, uri, wanted)
    assert len(json.dumps(rendered)) > 30_000
    kept = kept_fields.owned_object(copy.deepcopy(rendered))
    assert kept is not None
    assert up_to_date(kept, rendered)


@pytest.mark.parametrize("named", ["", "vllm"])
def test_a_runtime_serves_the_pinned_commit_of_what_the_bundled_engine_refuses(named):
    pin = PinnedRevision("e" * 40, OLMO_FACTS.weight_bytes)
    facts = (FactsKey("ns", HUB, IMAGE), replace(OLMO_FACTS, pin=pin))
    wanted = intent(uri=HUB, runtime=RuntimeRequest(named))

    decision, (applied,) = decided(replace(fleet(VLLM), facts=(facts,)), wanted)

    assert decision.placed == 1
    assert (applied.pin, applied.launch.runtime) == (pin, VLLM)
    assert f"pinned to {pin.revision}" in decision.model_message
