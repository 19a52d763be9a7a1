"""Checkpoints on claims: what pods and Jobs run, what is read back of them, and what is written."""

import json
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tangram.fleet import (
    ApplyModelClaim,
    ClaimFill,
    FetchState,
    ModelClaim,
    ModelClaimKey,
    PinnedRevision,
    RemoveModelClaim,
    StartFill,
)
from tangram.kube.kinds import JOBS, MODEL_CLAIMS, Object, uid_of
from tangram.kube.mirror import Mirror
from tangram.kube.retry_delays import RetrySchedule
from tangram.shell.objects import manifests
from tangram.shell.objects.model_claims import claim_name, key_of_claim, model_claim
from tangram.shell.snapshot.fleet_snapshot import fleet_snapshot
from tangram.shell.snapshot.intents import parsed_intents
from tangram.shell.watch.expectations import Expectations
from tangram.shell.watch.mirror_view import MirrorView
from tangram.shell.watch.mirrors import Mirrors
from tangram.shell.write.action_writer import ActionWriter
from tangram.sources import command
from tests.shell.test_fetched_models import (
    FETCHED,
    FETCHING,
    NOW,
    PIN,
    SETTINGS,
    arguments,
    ended,
    failing,
    inspected,
    kept_pod,
    pod_of,
    report,
)
from tests.shell.test_manifests import action, intent
from tests.support.apiserver import LiveCluster, llm

KEY = ModelClaimKey("ns", "hf://org/model", PIN, "nfs")
NAME = claim_name(KEY)
SETTINGS = SETTINGS.model_copy(update={"models": SETTINGS.models.model_copy(update={"volume_claims": True})})


def deployment() -> Object:
    wanted = replace(intent("hf://org/model"), model_secret="hub")
    return manifests.deployment(wanted, replace(action(), pin=PIN, model_claim=KEY), SETTINGS)


def job() -> Object:
    return manifests.fill_job(manifests.owner_identity(intent()), KEY, SETTINGS, secret="hub")


def model_volume(manifest: Object) -> Object:
    (volume,) = (v for v in pod_of(manifest)["volumes"] if v["name"] == "model")
    return volume


def test_replicas_wait_for_a_claim_that_they_may_not_write_and_have_no_secret() -> None:
    options, pod = arguments(deployment()), pod_of(deployment())
    assert (options.command, options.size) == ("await", PIN.size)
    assert model_volume(deployment())["persistentVolumeClaim"] == {"claimName": NAME, "readOnly": True}
    assert not any("secret" in volume for volume in pod["volumes"])
    mounts = [m for c in (*pod["initContainers"], *pod["containers"]) for m in c["volumeMounts"]]
    assert all(mount["readOnly"] for mount in mounts if mount["name"] == "model")
    assert "ephemeral-storage" not in pod["initContainers"][0]["resources"]["requests"]


def test_one_job_fetches_into_the_claim_what_was_inspected() -> None:
    options = arguments(job())
    assert (options.command, options.uri.revision, options.size) == ("fetch", PIN.revision, PIN.size)
    assert model_volume(job())["persistentVolumeClaim"] == {"claimName": NAME}
    assert job()["metadata"]["name"] == NAME
    assert "ephemeral-storage" not in pod_of(job())["initContainers"][0]["resources"]["requests"]
    evicted = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    assert evicted in job()["spec"]["podFailurePolicy"]["rules"]


def test_a_name_stands_for_namespace_checkpoint_revision_and_class() -> None:
    others = (
        replace(KEY, namespace="team"),
        replace(KEY, model_uri="hf://org/other"),
        replace(KEY, pin=PinnedRevision("d" * 40, PIN.size)),
        replace(KEY, storage_class="ssd"),
    )
    assert len({NAME, *map(claim_name, others)}) == 5


def claim(**records: Any) -> Object:
    made = model_claim(KEY, is_filled=False, unused_since=None)
    kept = {name: value for name, value in made["metadata"]["annotations"].items() if value is not None}
    return made | {"metadata": made["metadata"] | {"uid": "claim-uid", "annotations": kept | records}}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "[" * 1000,
        "x" * 5000,
        json.dumps({"uri": "file:///etc", "revision": "a", "size": 1, "storageClass": "nfs"}),
        json.dumps({"uri": "hf://org/other", "revision": "a", "size": 1, "storageClass": "nfs"}),
    ],
)
def test_a_claim_with_another_key_than_its_name_is_not_the_operators(text: str) -> None:
    forged = claim(**{"tangram.dev/model-claim": text})
    assert key_of_claim(claim()) == KEY
    assert key_of_claim(forged) is None
    assert seen(forged).model_claims == ()


def seen(claim: Object, fill: Object | None = None, *pods: Object, fill_pods: tuple[Object, ...] = ()) -> Any:
    """Return the snapshot of an LLMDeployment whose Deployment mounts a claim that a Job fills."""
    owner = llm("chat", "ns", model={"uri": "hf://org/model"})
    owner["metadata"]["uid"] = intent().uid
    owner["metadata"]["name"] = intent().name
    live = deployment()
    live["metadata"] |= {"uid": "deployment-uid", "generation": 1}
    replica_set = {"kind": "ReplicaSet", "apiVersion": "apps/v1", "controller": True}
    for pod in pods:
        pod["metadata"]["labels"]["pod-template-hash"] = "1"
        pod["metadata"]["ownerReferences"] = [replica_set | {"name": f"{live['metadata']['name']}-1"}]
    of_job = {"kind": "Job", "apiVersion": "batch/v1", "controller": True, "name": NAME, "uid": "job"}
    for pod in fill_pods:
        pod["metadata"]["ownerReferences"] = [of_job]
    view = MirrorView(
        llm_deployments=(owner,),
        deployments=(live | {"status": {}},),
        jobs=() if fill is None else (fill,),
        pods=(*pods, *fill_pods),
        model_claims=(claim,),
    )
    return fleet_snapshot(view, SETTINGS, NOW)


def test_a_claim_is_observed_with_its_job_and_its_records() -> None:
    observed = ModelClaim(KEY, NAME, "claim-uid", is_filled=False, is_mounted=True)
    assert seen(claim()).model_claims == (observed,)
    running = job()
    running["metadata"]["uid"] = "job"
    (found,) = seen(claim(), running, fill_pods=(kept_pod(FETCHING),)).model_claims
    assert found == replace(observed, fill=ClaimFill(NAME, "job"))
    done = kept_pod(FETCHED, {"name": "inspect", "state": {"terminated": {"message": inspected()}}})
    (found,) = seen(claim(), ended(job()), fill_pods=(done,)).model_claims
    assert found.fill == ClaimFill(NAME, "job", is_complete=True)
    records = {"tangram.dev/filled": "true", "tangram.dev/unused-since": "1795255200"}
    (found,) = seen(claim(**records)).model_claims
    assert (found.is_filled, found.unused_since) == (True, 1_795_255_200.0)
    assert seen(claim(**{"tangram.dev/unused-since": "9" * 50})).model_claims[0].unused_since is None


def test_the_condition_has_the_progress_and_the_fault_of_the_job() -> None:
    running = job()
    running["metadata"]["uid"] = "job"
    waiting = {"name": "fetch", "state": {"running": {"startedAt": "2020-01-01T00:00:00Z"}}}
    (chat,) = seen(claim(), running, kept_pod(waiting), fill_pods=(kept_pod(FETCHING, name="f"),)).workloads
    assert chat.fetch == FetchState(PIN.size, 1, 0, None, NOW - 10)
    assert chat.model_claim == NAME

    full = failing(report(reason="NoSpace", message="the volume of /mnt/model is full"))
    (chat,) = seen(claim(), running, kept_pod(waiting), fill_pods=(kept_pod(full, name="f"),)).workloads
    assert (chat.fetch.reason, chat.fetch.message) == ("NoSpace", "the volume of /mnt/model is full")


def test_a_class_counts_only_where_the_operator_may_write_claims() -> None:
    spec = {"nodeSelector": {"pool": "a"}, "modelStorageClass": "nfs"}
    pool = {"metadata": {"name": "a"}, "spec": spec}
    view = MirrorView(gpu_pools=(pool,))
    off = SETTINGS.model_copy(update={"models": SETTINGS.models.model_copy(update={"volume_claims": False})})
    assert [fleet_snapshot(view, each, NOW).pools[0].model_storage_class for each in (SETTINGS, off)] == [
        "nfs",
        "",
    ]


def test_a_replica_starts_when_the_checkpoint_is_whole(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(command, "_POLL_S", 0.02)
    target, log = tmp_path / "checkpoint", tmp_path / "log"
    args = ["await", "--uri", "hf://org/model@main", "--to", str(target), "--termination-log", str(log)]
    statuses: list[int] = []
    waiting = threading.Thread(target=lambda: statuses.append(command.main(args)))
    waiting.start()
    (tmp_path / ".checkpoint.1").mkdir()
    (tmp_path / ".checkpoint.1" / "config.json").write_text("{}")
    waiting.join(0.1)
    assert waiting.is_alive()
    (tmp_path / ".checkpoint.1").rename(target)
    waiting.join(10)
    assert (statuses, json.loads(log.read_text())["source"]["size"]) == ([0], 2)

    monkeypatch.setattr(command, "_AWAIT_S", 0.0)
    assert command.main([*args[:4], str(tmp_path / "none"), *args[5:]]) == command.EXIT_RETRY
    assert "look at the Job" in json.loads(log.read_text())["error"]["message"]


@pytest.mark.apiserver
async def test_claims_and_their_jobs_are_written_on_a_real_api_server(cluster: LiveCluster) -> None:
    await cluster.apply(llm("chat", cluster.namespace))
    key = replace(KEY, namespace=cluster.namespace)
    new_mirror = partial(Mirror, cluster.client, changed=lambda: None, clock=lambda: 0.0)
    mirrors = Mirrors((cluster.namespace,), new_mirror, model_claims=True)
    expectations = Expectations(mirrors.store)
    writer = ActionWriter(
        cluster.client, lambda: 10.0, mirrors, SETTINGS, expectations, RetrySchedule(), lambda: 0.0
    )

    async def observed(*actions: Any) -> tuple[ModelClaim, ...]:
        await mirrors.refresh(float("inf"))
        (chat,) = parsed_intents(mirrors.view())
        asked = (replace(a, owner_uid=chat.uid) if isinstance(a, StartFill) else a for a in actions)
        await writer.perform(tuple(asked), {chat.uid: chat})
        assert writer.problems == {}
        await mirrors.refresh(float("inf"))
        return fleet_snapshot(mirrors.view(), SETTINGS, NOW).model_claims

    (made,) = await observed(ApplyModelClaim("", key))
    assert (made.key, made.is_filled, made.unused_since) == (key, False, None)
    (filling,) = await observed(StartFill("", key, "hub"))
    assert filling.fill is not None
    (marked,) = await observed(ApplyModelClaim("", key, is_filled=True, unused_since=NOW))
    assert (marked.is_filled, marked.unused_since, marked.uid) == (True, NOW, made.uid)
    (used,) = await observed(ApplyModelClaim("", key, is_filled=True))
    assert used.unused_since is None
    foreign = RemoveModelClaim("", key.namespace, made.name, "another-uid")
    assert await observed(foreign) == (used,)
    assert await observed(replace(foreign, uid=made.uid)) == ()
    live = await cluster.client.get(MODEL_CLAIMS, key.namespace, made.name)
    assert live is None or live["metadata"]["deletionTimestamp"]  # kubelets release it
    assert uid_of(await cluster.client.get(JOBS, key.namespace, made.name)) == filling.fill.job_uid
