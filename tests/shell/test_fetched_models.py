"""Models of a hub: what pods run, what their reports become, and what a person reads meanwhile."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tangram.api import facts_from_status, parse_report
from tangram.fleet import (
    CheckpointFacts,
    EvaluationKey,
    FactsKey,
    FetchState,
    InspectionFailure,
    PinnedRevision,
    StartEvaluation,
)
from tangram.fleet.times import rfc3339
from tangram.kube.kinds import Object
from tangram.plan.status.fetch_condition import fetch_condition
from tangram.plan.status.status_block import facts_block
from tangram.shell.objects import manifests
from tangram.shell.objects.fetch_container import SECRET_FOLDER, SECRET_KEYS
from tangram.shell.objects.job_results import evaluation, evaluation_subject, inspection
from tangram.shell.settings import Settings
from tangram.shell.snapshot.workloads import workload
from tangram.shell.watch import kept_fields
from tangram.sources import command, open_source
from tangram_engine.checkpoint import read_checkpoint
from tangram_engine.inspect import facts as inspect_facts
from tests.shell.test_manifests import SLICE, action, intent
from tests.sources.conftest import TINY
from tests.support.apiserver import FACTS
from tests.support.fleet import intent as fleet_intent
from tests.support.fleet import shape as fleet_shape
from tests.support.fleet import workload as observed
from tests.support.hub_server import hub_server

SETTINGS = Settings.model_validate(
    {
        "engineImage": "registry/engine:1",
        "fetchImage": "registry/fetch:1",
        "models": {"hubEndpoint": "http://hub"},
    }
)
PIN = PinnedRevision("c" * 40, 16_100_000_000)
KEY = FactsKey("ns", "hf://org/model@main", "registry/engine:1")
NOW = 1_795_255_200.0


def deployment(secret: str = "", pin: PinnedRevision = PIN) -> Object:
    wanted = replace(intent("hf://org/model"), model_secret=secret)
    return manifests.deployment(wanted, replace(action(), pin=pin), SETTINGS)


def job(secret: str = "", revision: str = "") -> Object:
    owner = manifests.owner_identity(intent())
    return manifests.inspect_job(owner, KEY, SETTINGS, secret=secret, revision=revision)


def pod_of(manifest: Object) -> Object:
    return manifest["spec"]["template"]["spec"]


def arguments(manifest: Object) -> Any:
    """Parse the arguments of the container that fetches, as the program itself does."""
    (container,) = pod_of(manifest)["initContainers"]
    return command._parser().parse_args(container["args"])


def test_pods_fetch_the_pinned_commit_before_the_engine_reads_it() -> None:
    pod = pod_of(deployment())
    options, (engine,) = arguments(deployment()), pod["containers"]

    assert (options.command, options.uri.revision, options.size) == ("fetch", PIN.revision, PIN.size)
    assert options.hub == "http://hub"
    assert pod["initContainers"][0]["image"] == "registry/fetch:1"
    assert engine["args"][engine["args"].index("--model") + 1] == str(options.to)
    (volume,) = (v for v in pod["volumes"] if v["name"] == "model")
    assert volume["emptyDir"]["sizeLimit"] == "15572Mi"
    written, read = (
        {m["name"]: m for m in c["volumeMounts"]}["model"] for c in (pod["initContainers"][0], engine)
    )
    assert options.to.is_relative_to(written["mountPath"])
    assert not written.get("readOnly")
    assert read["readOnly"] is True


def test_a_fetch_leaves_cpu_and_memory_of_the_pod_as_they_are_and_asks_for_its_disk() -> None:
    pod = pod_of(deployment())
    fetch, engine = pod["initContainers"][0]["resources"], pod["containers"][0]["resources"]

    assert fetch["requests"].pop("ephemeral-storage") == "15572Mi"
    assert fetch["requests"] == fetch["limits"] == {k: engine["limits"][k] for k in ("cpu", "memory")}


def test_the_secret_is_mounted_where_bytes_are_fetched_and_nowhere_else() -> None:
    for manifest in (deployment("hub"), job("hub")):
        pod, options = pod_of(manifest), arguments(manifest)
        (volume,) = (v for v in pod["volumes"] if "secret" in v)
        assert volume["secret"]["secretName"] == options.secret_name == "hub"
        assert [item["key"] for item in volume["secret"]["items"]] == [*SECRET_KEYS["hf"]]
        assert str(options.secret) == SECRET_FOLDER
        mounts = [m["name"] for m in pod["containers"][0]["volumeMounts"]]
        assert volume["name"] not in mounts
        assert "env" not in pod["initContainers"][0]
    assert SECRET_KEYS == {
        "hf": open_source.TOKEN_KEYS,
        "s3": open_source.STORE_KEYS,
        "oci": open_source.REGISTRY_KEYS,
    }


def test_without_a_secret_none_is_mounted() -> None:
    assert arguments(deployment()).secret is None
    assert not any("secret" in volume for volume in pod_of(deployment())["volumes"])


def test_fetches_have_the_proxy_and_the_authorities_of_the_chart_and_engines_have_not() -> None:
    models = {"proxy": "http://proxy:3128", "noProxy": ".svc", "caBundle": "corporate"}
    settings = Settings.model_validate({"engineImage": "e", "fetchImage": "f", "models": models})
    manifest = manifests.deployment(intent("hf://org/model"), replace(action(), pin=PIN), settings)
    options, pod = arguments(manifest), pod_of(manifest)
    assert (options.proxy, options.no_proxy) == ("http://proxy:3128", ".svc")
    mounts = [{m["name"]: m for m in c["volumeMounts"]} for c in (*pod["initContainers"], *pod["containers"])]
    assert str(options.ca_bundle.parent) == mounts[0]["ca-bundle"]["mountPath"]
    assert "ca-bundle" not in mounts[1]
    (volume,) = (v["configMap"] for v in pod["volumes"] if v["name"] == "ca-bundle")
    assert (volume["name"], volume["items"]) == ("corporate", [{"key": "ca.crt", "path": "ca.crt"}])


def test_a_rollout_has_the_time_that_a_fetch_may_take() -> None:
    before = manifests.deployment(intent(), action(), SETTINGS)["spec"]["progressDeadlineSeconds"]
    assert deployment()["spec"]["progressDeadlineSeconds"] == before + 1610


def test_another_commit_is_another_pod() -> None:
    other = replace(PIN, revision="d" * 40)
    assert pod_of(deployment()) != pod_of(deployment(pin=other))


@pytest.mark.parametrize(("revision", "read"), [("", "main"), ("c" * 40, "c" * 40)])
def test_an_inspect_job_reads_headers_at_the_pin_of_an_earlier_inspection(revision: str, read: str) -> None:
    options = arguments(job(revision=revision))
    assert (options.command, options.uri.revision) == ("headers", read)


def test_an_inspect_job_ends_at_once_where_either_container_refuses() -> None:
    rules = job()["spec"]["podFailurePolicy"]["rules"]
    exits = [rule["onExitCodes"] for rule in rules if "onExitCodes" in rule]
    assert [(rule["containerName"], rule["values"]) for rule in exits] == [
        ("fetch", [command.EXIT_REFUSED]),
        ("inspect", [command.EXIT_REFUSED]),
    ]


def run_inspect_job(files: dict[str, bytes], directory: Path) -> tuple[str, Object, dict[str, str]]:
    """Give the rendered arguments to the two programs: a hub, a copy of headers, an inspection. Return the
    commit, the Job and the reports.
    """
    from tangram_engine import __main__ as engine

    with hub_server() as hub:
        commit = hub.repository().push(files)
        settings = SETTINGS.model_copy(
            update={"models": SETTINGS.models.model_copy(update={"hub_endpoint": hub.endpoint})}
        )
        manifest = manifests.inspect_job(manifests.owner_identity(intent()), KEY, settings)
        reports = {}
        for name, program in (("fetch", command.main), ("inspect", engine.main)):
            pod = pod_of(manifest)
            (container,) = (c for c in (*pod["initContainers"], *pod["containers"]) if c["name"] == name)
            log = directory / name
            args = [a.replace("/mnt/model", str(directory)) for a in container["args"][:-1]] + [str(log)]
            assert program(args) == 0
            reports[name] = log.read_text()
    return commit, manifest, reports


def tiny_files() -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in TINY.iterdir()}


def test_what_an_inspect_job_runs_ends_in_facts_with_the_pin(tmp_path: Path) -> None:
    commit, manifest, reports = run_inspect_job(tiny_files(), tmp_path)

    result = inspection(ended(manifest), [pod_with(**reports)], NOW).result
    assert isinstance(result, CheckpointFacts)
    loaded = [path for path in TINY.iterdir() if path.suffix in (".json", ".safetensors")]
    assert result.pin == PinnedRevision(commit, sum(path.stat().st_size for path in loaded))
    assert result == replace(parse_report(inspected(), NOW), pin=result.pin)


def test_a_repository_that_the_bundled_engine_refuses_is_pinned_with_its_config(tmp_path: Path) -> None:
    files = tiny_files()
    config = json.loads(files["config.json"]) | {"architectures": ["Olmo2ForCausalLM"]}
    files["config.json"] = json.dumps(config | {"model_type": "olmo2"}).encode()
    commit, manifest, reports = run_inspect_job(files, tmp_path)

    result = inspection(ended(manifest), [pod_with(**reports)], NOW).result
    assert isinstance(result, CheckpointFacts)
    assert result.architecture == "Olmo2ForCausalLM"
    assert "is not one this engine implements" in result.refused_by_engine
    assert result.pin is not None
    assert result.pin.revision == commit
    model = {"uri": KEY.uri, "engineImage": KEY.engine_image, "facts": facts_block(result)}
    assert facts_from_status({"metadata": {"namespace": "ns"}, "status": {"model": model}}) == (KEY, result)
    assert len(reports["inspect"]) <= kept_fields.MAX_MESSAGE / 2  # what a kubelet keeps


@pytest.mark.parametrize("name", ["inspect", "evaluate"])
def test_a_command_that_was_killed_after_its_fetch_is_named(name: str) -> None:
    killed = {"name": name, "state": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}}
    pods = [kept_pod(FETCHED, killed)]
    if name == "inspect":
        result: Any = inspection(ended(job()), pods, NOW).result
    else:
        evaluate = ended(evaluate_job())
        subject = evaluation_subject(evaluate)
        assert subject is not None
        result = evaluation(evaluate, subject, pods, NOW).result

    assert "without a report" in result.message
    assert "(OOMKilled)" in result.message


def evaluate_job() -> Object:
    key = EvaluationKey("ns", "hf://org/model", "d", SLICE.sku, "int4")
    wanted = intent("hf://org/model")
    return manifests.evaluate_job(wanted, StartEvaluation("uid-1", key, SLICE, ("p",), pin=PIN), SETTINGS)


def inspected() -> str:
    """Return the report of an inspection of the checkpoint itself."""
    checkpoint = read_checkpoint(TINY)
    return json.dumps({"schema": 1, "facts": inspect_facts(checkpoint)})


def ended(manifest: Object) -> Object:
    conditions = [{"type": "Complete", "status": "True"}]
    meta = manifest["metadata"] | {"uid": "job", "creationTimestamp": "2026-01-01T00:00:00Z"}
    return manifest | {"metadata": meta, "status": {"conditions": conditions}}


def pod_with(**messages: str) -> Object:
    statuses = [
        {"name": name, "state": {"terminated": {"reason": "Completed", "exitCode": 0, "message": message}}}
        for name, message in messages.items()
    ]
    return kept_pod(*statuses)


def kept_pod(*statuses: Object, name: str = "p") -> Object:
    """A pod as the mirror keeps it."""
    labels = {"app.kubernetes.io/managed-by": "tangram"}
    meta = {"name": name, "namespace": "ns", "labels": labels, "creationTimestamp": rfc3339(NOW - 60)}
    kept = kept_fields.pod({"metadata": meta, "status": {"initContainerStatuses": list(statuses)}})
    assert kept is not None
    return kept


def report(**error: str) -> str:
    return json.dumps({"schema": 1, "error": error})


SOURCE = json.dumps(
    {"schema": 1, "source": {"revision": "c" * 40, "size": 16_100_000_000, "seconds": 143.75}}
)


def test_the_refusal_of_a_hub_is_the_result_of_the_inspection() -> None:
    pod = pod_with(fetch=report(reason="AccessDenied", message="hf://org/model is gated: accept its terms"))
    result = inspection(ended(job()), [pod], NOW).result
    assert result == InspectionFailure("AccessDenied", "hf://org/model is gated: accept its terms", result.at)


@pytest.mark.parametrize(
    "source",
    [
        "",
        "{}",
        "[]",
        "not JSON",
        '{"source": {"revision": 7, "size": 1}}',
        '{"source": {"revision": "c"}}',
        '{"source": {"revision": "a b --hub http://evil", "size": 1}}',
    ],
)
def test_facts_without_a_pin_stay_without_one(source: str) -> None:
    facts = json.dumps({"schema": 1, "facts": FACTS})
    result = inspection(ended(job()), [pod_with(fetch=source, inspect=facts)], NOW).result
    assert isinstance(result, CheckpointFacts)
    assert result.pin is None


def live() -> Object:
    manifest = deployment()
    meta = manifest["metadata"] | {"uid": "u", "generation": 1}
    return manifest | {"metadata": meta, "status": {}}


FETCHED = {"name": "fetch", "state": {"terminated": {"exitCode": 0, "message": SOURCE}}}
FETCHING = {"name": "fetch", "state": {"running": {"startedAt": rfc3339(NOW - 10)}}}


def failing(message: str) -> Object:
    return {
        "name": "fetch",
        "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s"}},
        "lastState": {"terminated": {"exitCode": 4, "reason": "Error", "message": message}},
    }


def test_pods_that_fetch_are_counted_with_bytes_and_rate() -> None:
    pods = [kept_pod(FETCHED), kept_pod(FETCHING), kept_pod()]
    state = workload(live(), pods, NOW).fetch
    assert state == FetchState(16_100_000_000, 3, 1, 112_000_000.0, NOW - 10)


def test_a_failing_fetch_is_named_by_its_sentence_in_place_of_the_back_off() -> None:
    pods = [kept_pod(failing(report(reason="NoSpace", message="the volume of /mnt/model is full")))]
    seen = workload(live(), pods, NOW)
    assert seen.fetch is not None
    assert (seen.fetch.reason, seen.fetch.message) == ("NoSpace", "the volume of /mnt/model is full")
    assert seen.message == "pod p: the volume of /mnt/model is full"


@pytest.mark.parametrize(
    "message", ["", "garbage", "[" * 5000, json.dumps({"schema": 1, "source": {"seconds": 0}})]
)
def test_a_report_that_is_none_of_a_fetch_breaks_nothing(message: str) -> None:
    seen = workload(live(), [kept_pod(failing(message))], NOW)
    assert seen.fetch is not None
    assert seen.fetch.bytes_per_second is None


def state(**changes: Any) -> FetchState:
    return replace(FetchState(16_100_000_000, 3, 1, 112e6, NOW), **changes)


@pytest.mark.parametrize(
    ("fetch", "text"),
    [
        (None, ""),
        (state(fetched=3, since=None), ""),
        (state(), "; fetched by 1 of 3 pods, 16.1 GB each at 112 MB/s, the next at 2026-11-21T10:02:23Z"),
        (
            state(fetched=0, bytes_per_second=None),
            "; fetched by 0 of 3 pods, 16.1 GB each, the first under way since 2026-11-21T10:00:00Z",
        ),
        (
            state(reason="NoSpace", message="full", since=None),
            "; fetched by 1 of 3 pods, 16.1 GB each at 112 MB/s; the last fetch failed: full",
        ),
    ],
)
def test_model_ready_tells_how_far_the_fetch_is(fetch: FetchState | None, text: str) -> None:
    workloads = (replace(observed(fleet_intent(), fleet_shape()), fetch=fetch),)
    assert fetch_condition(workloads) == (None, text)


def test_a_fetch_that_no_pod_can_make_is_the_fault_of_the_model() -> None:
    workloads = (
        replace(
            observed(fleet_intent(), fleet_shape()),
            fetch=state(fetched=0, reason="AccessDenied", message="gated"),
        ),
    )
    assert fetch_condition(workloads) == (("AccessDenied", "gated"), "")
