"""A quantised format, from the first pod in the checkpoint's own format to the move that a report allows."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tangram.kube.client import UNGUARDED
from tangram.kube.kinds import DEPLOYMENTS, JOBS, LLM_DEPLOYMENTS, NODES
from tests.support.apiserver import (
    FACTS,
    LiveCluster,
    add_node,
    evaluation_report,
    eventually,
    gpu_node,
    llm,
    refusal,
    report,
)

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(400)]

URI, NEXT = "image:///models/8b", "image:///models/8b-v2"
LLAMA_8B: dict[str, Any] = {
    "layers": 32,
    "hiddenSize": 4096,
    "headDim": 128,
    "parameters": 8030261248,
    "weightBytes": 16060556376,
    "embeddingBytes": 1050673152,
    "tiedEmbeddings": False,
}
OWN, QUANTISED = "3g.40gb", "1g.10gb"  # which bf16 fits, and which int4 fits alone


@pytest.fixture
async def slices(cluster: LiveCluster) -> AsyncIterator[str]:
    """A node with a slice of each size that no other test's LLMDeployment sees."""
    name = f"{cluster.namespace}-a100"
    sliced_node = gpu_node(name, 0, product="NVIDIA-A100-SXM4-80GB")
    for part in ("allocatable", "capacity"):
        sliced_node["status"][part] |= {f"nvidia.com/mig-{OWN}": "1", f"nvidia.com/mig-{QUANTISED}": "1"}
        del sliced_node["status"][part]["nvidia.com/gpu"]
    await add_node(cluster.client, sliced_node)
    yield name
    await cluster.empty()
    node = await cluster.client.get(NODES, "", name)
    await cluster.client.delete(NODES, "", name, uid=node["metadata"]["uid"], guard=UNGUARDED)


def chat(cluster: LiveCluster, uri: str = URI, **engine: Any) -> dict[str, Any]:
    return llm(
        "chat",
        cluster.namespace,
        model={"uri": uri},
        engine={"precision": "Any", "maxModelLen": 4096} | engine,
        placement={"allowedSKUs": ["A100-80GB-SXM"]},
    )


async def test_a_quantised_format_serves_once_its_report_is_within_tolerance_and_no_longer(
    cluster: LiveCluster, operator, slices: str
) -> None:
    cluster.kubelet.reports[URI] = report(**LLAMA_8B), 0
    cluster.kubelet.reports[NEXT] = report(**LLAMA_8B, digest="sha256:" + "1" * 64), 0
    process = operator(operator={"tickSeconds": 1})

    async def placed(text: str) -> dict[str, Any]:
        async def message_contains_text() -> bool:
            return text in (await cluster.condition("chat", "Placed")).get("message", "")

        await eventually(message_contains_text, 40, f"Placed says {text!r}")
        obj = await cluster.get(LLM_DEPLOYMENTS, "chat")
        assert obj is not None
        return obj["status"]

    async def evaluating() -> list[dict[str, Any]]:
        return [
            job for job in await cluster.all(JOBS) if job["metadata"]["name"].startswith("tangram-evaluate")
        ]

    # It serves in its own format while a Job evaluates int4 on the slice that would be chosen.
    await cluster.apply(chat(cluster))
    await cluster.until("chat", "Ready", "True")
    status = await placed("is evaluated by Job")
    assert (status["placement"]["profile"], status["placement"]["precision"]) == (OWN, "bf16")
    (job,) = await evaluating()
    container = job["spec"]["template"]["spec"]["containers"][0]
    assert container["args"][:5] == ["evaluate", "--model", "/models/8b", "--quantize", "int4"]
    assert container["resources"]["limits"][f"nvidia.com/mig-{QUANTISED}"] == "1"

    # The Job fails: the status says why, and nothing else changes. Deleting it is trying again.
    cluster.kubelet.evaluations[URI] = refusal("OutOfMemory", "no room for the head"), 3
    await placed("failed: no room for the head; it is tried again at")
    assert (await cluster.condition("chat", "Ready"))["status"] == "True"
    del cluster.kubelet.evaluations[URI]
    await cluster.delete(JOBS, job["metadata"]["name"])

    async def another() -> bool:
        return [j["metadata"]["uid"] for j in await evaluating()] not in ([], [job["metadata"]["uid"]])

    await eventually(another, 40, "another Job")

    # The report comes while no operator runs, and is out of tolerance.
    process.kill()
    bad = evaluation_report(quantisedPerplexity=6.186, perplexityIncrease=0.031)
    cluster.kubelet.evaluations[URI] = bad, 0

    async def done() -> bool:
        return any((j.get("status") or {}).get("succeeded") for j in await evaluating())

    await eventually(done, 40, "the Job is complete")
    process.start()
    status = await placed("int4: perplexity +3.1 % is above the tolerance 2 %")
    assert status["placement"]["precision"] == "bf16"
    (recorded,) = status["model"]["evaluations"]
    assert (recorded["precision"], recorded["profile"], recorded["tokens"]) == ("int4", QUANTISED, 4000)

    async def none() -> bool:
        return await evaluating() == []

    await eventually(none, 40, "a recorded report needs no Job")

    # A person accepts the loss: the same report, without another Job.
    await cluster.apply(chat(cluster, precisionTolerance={"perplexityIncrease": "0.05"}))
    status = await placed("int4 evaluated on A100-80GB-SXM: perplexity +3.1 %")
    assert (status["placement"]["profile"], status["placement"]["precision"]) == (QUANTISED, "int4")

    async def moved() -> bool:
        deployments = await cluster.all(DEPLOYMENTS)
        args = [d["spec"]["template"]["spec"]["containers"][0]["args"] for d in deployments]
        return len(deployments) == 1 and args[0][-2:] == ["--quantize", "int4"]

    await eventually(moved, 40, "only int4 serves")
    await cluster.until("chat", "Ready", "True")

    # Another revision of the checkpoint: the report is not about it.
    await cluster.apply(chat(cluster, NEXT, precisionTolerance={"perplexityIncrease": "0.05"}))
    status = await placed("is evaluated by Job")
    assert status["placement"]["precision"] == "bf16"
    assert "evaluations" not in status["model"]
    (job,) = await evaluating()
    assert "/models/8b-v2" in job["spec"]["template"]["spec"]["containers"][0]["args"]
    assert status["model"]["facts"]["digest"] != FACTS["digest"]
