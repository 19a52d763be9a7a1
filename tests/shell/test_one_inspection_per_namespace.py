"""Refusals and false reports in one namespace do not affect another."""

import asyncio

import pytest

from tangram.kube.kinds import JOBS, Kind
from tests.support.apiserver import LiveCluster, live_cluster, llm

pytestmark = pytest.mark.apiserver

QUOTAS = Kind("", "v1", "resourcequotas", "ResourceQuota")


@pytest.fixture
async def elsewhere(plane, tmp_path):
    async with live_cluster(plane.kubeconfig, tmp_path) as other:
        yield other


async def test_a_namespace_that_refuses_jobs_is_reported_and_delays_no_other(
    cluster: LiveCluster, elsewhere: LiveCluster, operator
) -> None:
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "no-jobs", "namespace": cluster.namespace},
        "spec": {"hard": {"count/jobs.batch": "0"}},
    }
    await cluster.apply(quota, QUOTAS)
    await cluster.apply(llm("oldest", cluster.namespace))
    await asyncio.sleep(1.1)  # creation times have whole seconds
    await elsewhere.apply(llm("younger", elsewhere.namespace))
    operator(watchNamespaces=[cluster.namespace, elsewhere.namespace])

    condition = await cluster.until("oldest", "Ready", "False", "Forbidden")
    await elsewhere.until("younger", "Ready", "True")

    assert "quota" in condition["message"]
    assert await cluster.all(JOBS) == []
