"""A cluster for what a person lives through; every test starts from an installed, quiet Tangram.

A model takes most of a minute to become Ready and to end again: the tests of a module share one. A test waits
for most of its time. So two processes run side by side where clusters can be made at will, each with one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI

from e2e.cluster import providers
from e2e.cluster.base import ClusterError
from e2e.demo import install
from e2e.demo.graph import run_steps, stderr_line
from e2e.demo.stage import Stage, registry_for
from e2e.kube import Kube, wait_until

CLUSTERS = 2  # side by side on two cores; each takes 7 GB of disk for its copy of the images
if worker := os.environ.get("PYTEST_XDIST_WORKER"):  # its cluster has its number
    os.environ["TANGRAM_CLUSTER"] = worker.removeprefix("gw")

QUICK = Path(__file__).with_name("values.yaml")


def pytest_xdist_auto_num_workers() -> int:
    """`--numprocesses auto`: how many clusters there can be."""
    return CLUSTERS if providers.select("auto").name == "local" else 1


def pytest_keyboard_interrupt() -> None:
    """End the clusters of processes that are interrupted: pytest-xdist kills them before they could."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        for provider in providers.ours():
            provider.down(stderr_line)


@pytest.fixture(scope="session")
def stage() -> Iterator[Stage]:
    """Bring up whatever provider this machine has, with everything installed; end it afterwards."""
    provider = providers.select("auto")
    made = Stage(provider, registry_for(provider.name), values=(install.VALUES, QUICK))
    try:
        run_steps(made.steps())
        yield made
    finally:
        provider.down(print)


@pytest.fixture
def kube(stage: Stage, request: pytest.FixtureRequest) -> Iterator[Kube]:
    """The cluster, with no LLMDeployment in it before and after."""
    beside = [item for item in request.session.items if item.path == request.path]
    assert not any("model" in getattr(item, "fixturenames", ()) for item in beside), (
        "it would end their model"
    )
    line = stage.cluster()
    clear(line)
    yield line
    clear(line)


@pytest.fixture(scope="module")
def own_model(stage: Stage) -> Iterator[Kube]:
    """The cluster with the example's model Ready and nothing else, started anew for each module."""
    line = stage.cluster()
    clear(line)
    install.model(line)
    yield line
    clear(line)


@pytest.fixture
def model(own_model: Kube) -> Kube:
    """The cluster with the example's model Ready: the module's, as it was applied at first."""
    install.model(own_model)
    return own_model


@pytest.fixture
def client(model: Kube) -> Iterator[OpenAI]:
    """The official client, connected to one replica."""
    with model.port_forward(f"svc/{install.NAME}", 80) as port:
        yield OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", timeout=60, max_retries=0)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """When a test or a fixture of it fails, print what a person would type next."""
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    stage = getattr(item, "funcargs", {}).get("stage")
    if report.when in ("setup", "call") and report.failed and stage is not None:
        report.sections.append(("cluster", _look(stage.cluster())))


def _look(kube: Kube) -> str:
    looks = (
        ("get", "llmdep,deploy,pods,jobs", "-A", "-o", "wide"),
        ("get", "fleetplans,gpunodes", "-o", "wide"),
        ("describe", "llmdep"),
        ("get", "events", "-A", "--sort-by=.lastTimestamp"),
        ("logs", "-n", install.SYSTEM, "deploy/tangram", "--tail=60"),
    )
    return "\n".join(f"$ kubectl {' '.join(look)}\n{_try(kube, look)}" for look in looks)


def _try(kube: Kube, look: tuple[str, ...]) -> str:
    try:
        return kube.kubectl(*look)[-6000:]
    except ClusterError as error:
        return str(error)


def clear(kube: Kube) -> None:
    """End all LLMDeployments and Jobs in the default namespace, and wait for their pods."""
    kube.kubectl("delete", "llmdep,job", "--all", "-n", "default", "--wait", "--timeout=60s")
    wait_until(lambda: not pods(kube), 60, "engine pods to end")


def pods(kube: Kube, selector: str = "app.kubernetes.io/managed-by=tangram") -> list[str]:
    """Names of our pods in the default namespace."""
    found = kube.kubectl("get", "pods", "-n", "default", "-l", selector, "-o", "name")
    return found.split()
