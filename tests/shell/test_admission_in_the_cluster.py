"""The webhook behind a real API server: what kubectl prints, and that nothing waits for it."""

import asyncio
import base64
import json
import re
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.cluster import certificates
from e2e.cluster.apiserver import free_port
from e2e.cluster.binaries import need
from e2e.cluster.certificates import Authority
from tangram.admission import NO_ANSWER
from tangram.kube.client import UNGUARDED, ApiError
from tangram.kube.kinds import DEPLOYMENTS, GPU_POOLS, LLM_DEPLOYMENTS, Kind
from tests.chart.conftest import CHART
from tests.shell.test_outages import _fetch, _metric, _port
from tests.support.apiserver import MANAGER, LiveCluster, OperatorProcess, eventually, llm
from tests.support.webhook import URL_PATH, issue

pytestmark = pytest.mark.apiserver

WEBHOOKS = Kind(
    "admissionregistration.k8s.io",
    "v1",
    "validatingwebhookconfigurations",
    "ValidatingWebhookConfiguration",
    namespaced=False,
)
LONGEST_PLAN_S = 5.0  # without a flood, half a second
LONGEST_APPLY_S = 3.0  # timeoutSeconds of the webhook, and the API server's own work


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("authority")
    Authority(folder).ensure()
    return folder


@pytest.fixture(scope="module")
def chart_webhook() -> dict[str, Any]:
    """The chart's webhook configuration."""
    values = ["image.registry=registry.example.com/team", "admission.certManager.enabled=true"]
    done = subprocess.run(
        [str(need("helm")), "template", "tangram", str(CHART), "--show-only", "templates/admission.yaml"]
        + [part for value in (*values, f"admission.path={URL_PATH}") for part in ("--set", value)],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    (found,) = [one for one in yaml.safe_load_all(done.stdout) if one["kind"] == WEBHOOKS.kind]
    return found


class Admission:
    """An operator's webhook, registered with the API server."""

    def __init__(self, cluster: LiveCluster, folder: Path, port: int) -> None:
        self.cluster, self.folder, self.port = cluster, folder, port
        self.settings = {"certificateFolder": str(folder), "port": port}

    async def apply(self, obj: dict[str, Any], *flags: str) -> subprocess.CompletedProcess[str]:
        """Run `kubectl apply`."""
        command = [str(need("kubectl")), "--kubeconfig", str(self.cluster.kubeconfig), "apply", *flags]
        return await asyncio.to_thread(
            subprocess.run,
            [*command, "-f", "-"],
            input=json.dumps(obj),
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )

    async def dry_run(self, name: str) -> subprocess.CompletedProcess[str]:
        """Return what kubectl prints about a dry run; on a busy machine, predictions may be late at first."""

        async def predicted() -> subprocess.CompletedProcess[str] | None:
            done = await self.apply(llm(name, self.cluster.namespace), "--dry-run=server")
            return None if any(NO_ANSWER in word for word in words(done)) else done

        done: subprocess.CompletedProcess[str] = await eventually(predicted)
        return done

    async def register(self, configuration: dict[str, Any], authority: Path) -> None:
        """Send reviews of this namespace to the operator, and of cluster-wide objects."""
        (webhook,) = configuration["webhooks"]
        bundle = base64.b64encode(Authority(authority).certificate.read_bytes()).decode()
        client = {"url": f"https://127.0.0.1:{self.port}/{URL_PATH}", "caBundle": bundle}
        own = {"matchLabels": {"kubernetes.io/metadata.name": self.cluster.namespace}}
        name = self.cluster.namespace
        registered = {
            "apiVersion": WEBHOOKS.api_version,
            "kind": WEBHOOKS.kind,
            "metadata": {"name": name},
            "webhooks": [webhook | {"clientConfig": client, "namespaceSelector": own}],
        }
        await self.cluster.client.apply(WEBHOOKS, registered, manager=MANAGER, force=True, guard=UNGUARDED)

    async def outcomes(self, process: OperatorProcess) -> dict[str, float]:
        """Return how many reviews the operator counted, by their outcome."""
        _, text = await _fetch(f"http://127.0.0.1:{_port(process, 'metricsPort')}/metrics")
        lines = [line for line in text.splitlines() if line.startswith("tangram_admission_reviews_total{")]
        return {line.split('"')[1]: float(line.split()[-1]) for line in lines}

    async def listens(self) -> bool:
        """Whether the port is open."""
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return False
        writer.close()
        return True


def words(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return what kubectl printed beside a success, without policies that other files left behind."""
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    return [line for line in lines if "ValidatingAdmissionPolicy" not in line]


@pytest.fixture
async def admission(
    cluster: LiveCluster, tmp_path: Path, authority: Path, chart_webhook: dict[str, Any]
) -> AsyncIterator[Admission]:
    this = Admission(cluster, issue(tmp_path / "webhook", authority), free_port())
    await this.register(chart_webhook, authority)
    yield this
    registered = await cluster.client.get(WEBHOOKS, "", cluster.namespace)
    assert registered is not None
    uid = registered["metadata"]["uid"]
    await cluster.client.delete(WEBHOOKS, "", cluster.namespace, uid=uid, guard=UNGUARDED)


async def test_without_an_operator_apply_works_without_a_word(
    admission: Admission, cluster: LiveCluster, operator: Callable[..., OperatorProcess]
) -> None:
    began = time.monotonic()
    done = await admission.apply(llm("down", cluster.namespace))
    assert words(done) == []
    assert time.monotonic() - began < LONGEST_APPLY_S

    process = operator(admission=admission.settings)
    await eventually(admission.listens)
    done = await admission.apply(llm("up", cluster.namespace))
    assert words(done)
    assert sum((await admission.outcomes(process)).values()) == 1

    process.kill()
    done = await admission.apply(llm("killed", cluster.namespace))
    assert words(done) == []


async def test_kubectl_prints_where_a_model_would_run_and_a_dry_run_writes_nothing(
    admission: Admission, cluster: LiveCluster, operator: Callable[..., OperatorProcess]
) -> None:
    process = operator(admission=admission.settings)
    await eventually(admission.listens)
    await cluster.apply(llm("first", cluster.namespace))
    await cluster.until("first", "Ready", "True")

    said = await admission.dry_run("second")
    unknown = llm("third", cluster.namespace, placement={"allowedSKUs": ["H1000-80GB"]})
    refused = await admission.apply(unknown)
    with pytest.raises(ApiError) as error:
        await cluster.apply(unknown)

    assert said.stdout.endswith("second created (server dry run)\n")
    warnings = words(said)
    assert re.fullmatch(r"Warning: second runs on \S+: 1 replica at [0-9.]+ \$/h", warnings[0]), warnings
    assert refused.returncode != 0
    assert (
        "denied the request: spec.placement.allowedSKUs[0]: no GPU is called 'H1000-80GB'" in refused.stderr
    )
    assert error.value.status == 422
    assert {obj["metadata"]["name"] for obj in await cluster.all(LLM_DEPLOYMENTS)} == {"first"}
    assert "H1000" not in process.logs()


async def test_updates_are_reviewed_where_the_spec_changes_and_pools_wherever_they_are(
    admission: Admission, cluster: LiveCluster, operator: Callable[..., OperatorProcess]
) -> None:
    dry = ("--server-side", "--force-conflicts", "--dry-run=server")
    process = operator(admission=admission.settings)
    await eventually(admission.listens)
    await cluster.apply(llm("first", cluster.namespace))
    labelled = llm("first", cluster.namespace)
    labelled["metadata"]["labels"] = {"a": "b"}

    assert words(await admission.apply(labelled, *dry)) == []
    assert words(await admission.apply(llm("first", cluster.namespace, paused=True), *dry))
    pool = {"apiVersion": GPU_POOLS.api_version, "kind": GPU_POOLS.kind, "metadata": {"name": "h1000"}}
    refused = await admission.apply(
        pool | {"spec": {"sku": "H1000-80GB", "nodeSelector": {"pool": "h1000"}}}, "--dry-run=server"
    )
    assert "denied the request: spec.sku: " in refused.stderr

    async def counted() -> dict[str, float] | None:  # a page of metrics is shown for a second
        outcomes = await admission.outcomes(process)
        return outcomes if "refused" in outcomes else None

    assert sum((await eventually(counted)).values()) == 3, "all but the label"


async def test_a_standby_says_the_same_from_its_mirrors(
    admission: Admission, cluster: LiveCluster, operator: Callable[..., OperatorProcess]
) -> None:
    operator("leader")
    await cluster.apply(llm("first", cluster.namespace))
    await cluster.until("first", "Ready", "True")
    standby = operator("standby", admission=admission.settings)
    await eventually(admission.listens)

    said = await admission.dry_run("second")

    assert await _metric(standby, "tangram_lease_held") == 0
    assert words(said)[0].startswith("Warning: second runs on ")


async def test_a_flood_of_dry_runs_is_bounded_and_delays_no_plan(
    admission: Admission, cluster: LiveCluster, operator: Callable[..., OperatorProcess]
) -> None:
    process = operator(admission=admission.settings)
    await eventually(admission.listens)
    await cluster.apply(llm("first", cluster.namespace))
    await cluster.until("first", "Ready", "True")
    longest, over = 0.0, asyncio.Event()
    path = cluster.client.credentials.server + LLM_DEPLOYMENTS.path(cluster.namespace) + "?dryRun=All"

    async def flood(number: int) -> None:
        nonlocal longest
        while not over.is_set():
            began = time.monotonic()
            body = llm(f"dry-{number}", cluster.namespace)
            async with cluster.client._session.post(path, json=body) as response:
                assert response.status == 201, await response.text()
            longest = max(longest, time.monotonic() - began)

    async def planned() -> bool:
        return len(await cluster.all(DEPLOYMENTS)) == 2

    floods = [asyncio.create_task(flood(number)) for number in range(32)]
    try:
        await asyncio.sleep(1.0)
        began = time.monotonic()
        await cluster.apply(llm("second", cluster.namespace))
        await eventually(planned)
        planned_s = time.monotonic() - began
    finally:
        over.set()
        await asyncio.gather(*floods)

    outcomes = await admission.outcomes(process)
    assert sum(outcomes.values()) > 30
    assert outcomes["admitted"] > 0
    assert longest < LONGEST_APPLY_S
    assert planned_s < LONGEST_PLAN_S


async def test_an_expired_certificate_silences_it_until_a_renewal(
    admission: Admission,
    cluster: LiveCluster,
    operator: Callable[..., OperatorProcess],
    authority: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(certificates, "VALID_DAYS", "0")
        issue(admission.folder, authority, "expired")
    process = operator(admission=admission.settings)
    await eventually(admission.listens)

    done = await admission.apply(llm("silent", cluster.namespace), "--dry-run=server")
    assert words(done) == []
    assert await admission.outcomes(process) == {}
    assert 0 < await _metric(process, "tangram_admission_certificate_expires_seconds") < time.time()
    assert process.logs().count("it expired at ") == 1

    issue(admission.folder, authority)

    async def reviewed() -> bool:
        await admission.apply(llm("said", cluster.namespace), "--dry-run=server")
        return bool(await admission.outcomes(process))

    await eventually(reviewed, 20)
