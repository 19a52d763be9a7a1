"""vLLM, SGLang and NIM with models that their pods fetch: rendered, planned and reached."""

import copy
from dataclasses import replace

import pytest

from tangram.fleet import ApplyDeployment, FactsKey, PinnedRevision, RuntimeRequest
from tangram.shell.objects import manifests
from tangram.shell.objects.fetch_reports import fetch_state
from tangram.shell.objects.manifest_match import up_to_date
from tests.runtimes.test_runtime_choice import OLMO_FACTS, VLLM, decided, fleet
from tests.runtimes.test_runtime_pods import INTENT, launch
from tests.shell.test_fetched_models import PIN, SETTINGS
from tests.support.fleet import IMAGE, intent, shape
from tests.support.runtimes import OTHERS

HUB = "hf://org/model"


def deployment(name, pin=PIN, uri=HUB):
    wanted = replace(INTENT, model_uri=uri, model_secret="hub" if pin else "")
    at = replace(shape(), runtime=name)
    action = ApplyDeployment("uid-1", at, 1, ("p",), 4096, pin=pin, launch=launch(name))
    return manifests.deployment(wanted, action, SETTINGS)


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


def test_another_commit_replaces_the_pods_of_a_runtime():
    rendered = deployment("vllm")
    other = deployment("vllm", replace(PIN, revision="d" * 40))

    assert up_to_date(copy.deepcopy(rendered), rendered)
    assert not up_to_date(rendered, other)
    state = fetch_state(rendered, [], 0.0)
    assert state is not None
    assert state.size == PIN.size


@pytest.mark.parametrize("named", ["", "vllm"])
def test_a_runtime_serves_the_pinned_commit_of_what_the_bundled_engine_refuses(named):
    pin = PinnedRevision("e" * 40, OLMO_FACTS.weight_bytes)
    facts = (FactsKey("ns", HUB, IMAGE), replace(OLMO_FACTS, pin=pin))
    wanted = intent(uri=HUB, runtime=RuntimeRequest(named))

    decision, (applied,) = decided(replace(fleet(VLLM), facts=(facts,)), wanted)

    assert decision.placed == 1
    assert (applied.pin, applied.launch.runtime) == (pin, VLLM)
    assert f"pinned to {pin.revision}" in decision.model_message
