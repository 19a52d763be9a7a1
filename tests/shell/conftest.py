"""One real control plane for all tests of the shell; a namespace, a proxy and operators for each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.cluster.apiserver import free_port
from tests.support.apiserver import LiveCluster, OperatorProcess, live_cluster, prepare
from tests.support.fault_proxy import FaultProxy

OperatorFactory = Callable[..., OperatorProcess]


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from e2e.cluster.apiserver import ControlPlane

    folder = tmp_path_factory.mktemp("plane")
    sync = "--horizontal-pod-autoscaler-sync-period=1s"
    with ControlPlane(folder, controller_manager=True, controller_flags=[sync], scheduler=True) as running:
        asyncio.run(prepare(running.kubeconfig))
        yield running


@pytest.fixture
async def cluster(plane: Any, tmp_path: Path) -> AsyncIterator[LiveCluster]:
    async with live_cluster(plane.kubeconfig, tmp_path) as this:
        yield this


@pytest.fixture
async def proxy(plane: Any, tmp_path: Path) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(plane.kubeconfig, tmp_path).serving() as running:
        yield running


@pytest.fixture
def operator_config(cluster: LiveCluster, tmp_path: Path) -> Callable[..., Path]:
    """Write a settings file for this test's namespace."""

    def write(name: str, operator: Mapping[str, Any] | None = None, **settings: Any) -> Path:
        config = tmp_path / f"{name}.yaml"
        usual = operator_settings(cluster.namespace)
        usual["operator"] |= operator or {}
        config.write_text(yaml.safe_dump(usual | settings))
        return config

    return write


@pytest.fixture
def operator(
    operator_config: Callable[..., Path], proxy: FaultProxy, tmp_path: Path
) -> Iterator[OperatorFactory]:
    """Make operators of this test's namespace; all of them are ended with the test."""
    processes: list[OperatorProcess] = []

    def make(name: str = "operator", **settings: Any) -> OperatorProcess:
        config = operator_config(name, **settings)
        processes.append(OperatorProcess(config, proxy.operator_kubeconfig, tmp_path / f"{name}.log"))
        return processes[-1].start()

    yield make
    for process in processes:
        process.kill()
        print(f"--- {process.log.name}\n{process.logs()[-6000:]}")  # noqa: T201 - pytest shows it on failure


def operator_settings(namespace: str) -> dict[str, Any]:
    """Settings of an operator that serves one namespace and elects its leader there."""
    return {
        "engineImage": "tangram.local/tangram-engine:test",
        "watchNamespaces": [namespace],
        # Quick, so that one that was killed is followed soon; the durations themselves are unit tests.
        "leaderElection": {"namespace": namespace, "name": "tangram-operator"}
        | {"leaseSeconds": 4, "renewSeconds": 3, "retrySeconds": 0.5},
        "advice": {"settleSeconds": 1, "latestSeconds": 5},
        "listenHost": "127.0.0.1",
        "probePort": free_port(),
        "metricsPort": free_port(),
        "operator": {"logFormat": "plain"},
    }
