"""The operator on a real control plane with KWOK nodes: latency of one apply, a cold start on a full cluster, silence.

    python -m benchmarks.operator_loop [--deployments 200] [--nodes 50] [--quiet-seconds 60] [--json FILE]

etcd, kube-apiserver, kube-controller-manager and kube-scheduler are the real programs; KWOK plays the kubelets. All
of them share this machine with the operator, so the seconds are those of the whole, not of the operator alone.

    apply            from the answer to `apply` until the watch shows the Deployment, one after the other, with the
                     checkpoint's facts known; and once for a checkpoint that nobody has seen
    synced           from the operator's start until /readyz, with all LLMDeployments there before it
    converged        from the operator's start until every LLMDeployment is Ready
    rss              resident memory of the operator and its plan worker, highest and after convergence
    quiet            writes to the API server while nothing happens, the Lease apart
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from e2e.cluster import binaries
from e2e.cluster.apiserver import ControlPlane, free_port
from e2e.silicon import kwok
from tangram.kube.client import UNGUARDED, ApiClient
from tangram.kube.kinds import DEPLOYMENTS, LLM_DEPLOYMENTS, NODES
from tangram.kube.kubeconfig import load_kubeconfig
from tests.support.apiserver import CRD_FOLDER, CRDS, OperatorProcess, eventually, llm
from tests.support.fault_proxy import FaultProxy

PAGE_BYTES = 4096


async def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--deployments", type=int, default=200)
    parser.add_argument("--nodes", type=int, default=50)
    parser.add_argument("--applies", type=int, default=40)
    parser.add_argument("--quiet-seconds", type=float, default=60)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    binaries.ensure_binaries(
        ("kwok", "kube-apiserver", "etcd", "kube-controller-manager", "kube-scheduler"), print
    )
    with tempfile.TemporaryDirectory(prefix="tangram-bench-") as name:
        folder = Path(name)
        with ControlPlane(folder / "plane", controller_manager=True, scheduler=True) as plane:
            result = await measure(args, plane.kubeconfig, folder)
    show(result)
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


async def measure(args: argparse.Namespace, kubeconfig: Path, folder: Path) -> dict[str, Any]:
    client = ApiClient(load_kubeconfig(str(kubeconfig)))
    try:
        with playing_kubelets(kubeconfig, folder):
            await furnish(client, args.nodes)
            async with FaultProxy(kubeconfig, folder).serving() as proxy:
                started = await cold_start(client, proxy, folder, args)
                return {
                    "versions": versions(),
                    "deployments": args.deployments,
                    "nodes": args.nodes,
                    **started,
                }
    finally:
        await client.close()


async def cold_start(
    client: ApiClient, proxy: FaultProxy, folder: Path, args: argparse.Namespace
) -> dict[str, Any]:
    """Everything is there before the operator: how long until it knows, how long until all is as wanted."""
    await asyncio.gather(*(apply(client, f"model-{n:03}") for n in range(args.deployments)))
    with operator(folder, proxy) as process:
        began = time.monotonic()
        probe = json.loads((folder / "ports.json").read_text())["probe"]
        watching = asyncio.create_task(highest_rss(process.pid))
        await eventually(
            lambda: answers(f"http://127.0.0.1:{probe}/readyz"), 180, "the operator to be synced"
        )
        synced = time.monotonic() - began
        await eventually(lambda: all_ready(client, args.deployments), 300, "every LLMDeployment to be Ready")
        converged = time.monotonic() - began
        await asyncio.sleep(15)  # one tick: what is left to say is said
        settled = rss_mib(process.pid)
        before = len(proxy.writes())
        await asyncio.sleep(args.quiet_seconds)
        quiet = [str(request) for request in proxy.writes()[before:]]
        latencies = [await applied(client, f"late-{n:03}") for n in range(args.applies)]
        unseen = await applied(client, "unseen", uri="image:///models/unseen")
        watching.cancel()
    return {
        "synced_s": synced,
        "converged_s": converged,
        "rss_settled_mib": settled,
        "rss_highest_mib": HIGHEST[0],
        "quiet_s": args.quiet_seconds,
        "quiet_writes": quiet,
        "apply_s": latencies,
        "apply_unseen_checkpoint_s": unseen,
    }


HIGHEST = [0.0]


async def highest_rss(pid: int) -> None:
    """Keep the highest memory seen, until cancelled."""
    while True:
        HIGHEST[0] = max(HIGHEST[0], rss_mib(pid))
        await asyncio.sleep(0.25)


def rss_mib(pid: int) -> float:
    """Resident memory of a process and its children, in MiB. Pages that they share count twice."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    pids = [pid, *map(int, children)]
    pages = (
        int(Path(f"/proc/{p}/statm").read_text().split()[1]) for p in pids if Path(f"/proc/{p}").exists()
    )
    return sum(pages) * PAGE_BYTES / 2**20


async def applied(client: ApiClient, name: str, uri: str = "image:///models/tangram-tiny") -> float:
    """Seconds from the answer to `apply` until a watch shows the Deployment."""
    listing = await client.list(DEPLOYMENTS, "default")
    events = client.watch(DEPLOYMENTS, listing.resource_version, "default", "", server_timeout_s=120)
    seen = asyncio.create_task(_first(events, f"{name}-"))
    await asyncio.sleep(0.05)  # the watch is open
    await apply(client, name, uri)
    began = time.monotonic()
    async with asyncio.timeout(120):
        await seen
    return time.monotonic() - began


async def _first(events: Any, prefix: str) -> None:
    async for event in events:
        if event.object.get("metadata", {}).get("name", "").startswith(prefix):
            return


async def apply(client: ApiClient, name: str, uri: str = "image:///models/tangram-tiny") -> None:
    obj = llm(name, "default", model={"uri": uri}, placement={"mig": "Required"})
    await client.apply(LLM_DEPLOYMENTS, obj, manager="person", force=True, guard=UNGUARDED)


async def all_ready(client: ApiClient, count: int) -> bool:
    await asyncio.sleep(0.2)  # the question costs the API server more than the operator does
    items = (await client.list(LLM_DEPLOYMENTS, "default")).items
    return sum(is_ready(item) for item in items) >= count


def is_ready(item: dict[str, Any]) -> bool:
    conditions = item.get("status", {}).get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


async def furnish(client: ApiClient, count: int) -> None:
    """The CRDs and the nodes."""
    for file in sorted(CRD_FOLDER.glob("*.yaml")):
        await client.apply(
            CRDS, yaml.safe_load(file.read_text()), manager="person", force=True, guard=UNGUARDED
        )
    await eventually(lambda: client.served(LLM_DEPLOYMENTS), what="CRDs served")
    for node in kwok.nodes(count):
        bare = {key: value for key, value in node.items() if key != "status"}
        await client.apply(NODES, bare, manager="person", force=True, guard=UNGUARDED)
        await client.apply(NODES, node, manager="kubelet", force=True, subresource="status", guard=UNGUARDED)

    async def usable() -> bool:
        items = (await client.list(NODES)).items
        return sum(not n["spec"].get("taints") for n in items) >= count

    await eventually(usable, 120, "the fake nodes to be Ready")


@contextmanager
def playing_kubelets(kubeconfig: Path, folder: Path) -> Iterator[None]:
    config = folder / "kwok.yaml"
    config.write_text(kwok.stages(kwok.golden_report()))
    command = kwok.command(binaries.need("kwok"), kubeconfig, config)
    with (folder / "kwok.log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            yield
        finally:
            process.terminate()


@contextmanager
def operator(folder: Path, proxy: FaultProxy) -> Iterator[OperatorProcess]:
    ports = {"probe": free_port(), "metrics": free_port()}
    (folder / "ports.json").write_text(json.dumps(ports))
    config = folder / "operator.yaml"
    settings = {
        "engineImage": "tangram.local/tangram-engine:bench",
        "leaderElection": {"namespace": "default", "name": "tangram-operator"},
        "engine": {"cpuPerGPU": "8", "memoryPerGPU": "64Gi"},
        "listenHost": "127.0.0.1",
        "probePort": ports["probe"],
        "metricsPort": ports["metrics"],
    }
    config.write_text(yaml.safe_dump(settings))
    process = OperatorProcess(config, proxy.operator_kubeconfig, folder / "operator.log").start()
    try:
        yield process
    except BaseException:
        print(process.logs()[-4000:])
        raise
    finally:
        process.kill()


async def answers(url: str) -> bool:
    async with _session() as session, session.get(url) as response:
        return response.status == 200


@asynccontextmanager
async def _session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
        yield session


def versions() -> dict[str, str]:
    return {
        "python": platform.python_version(),
        "kopf": version("kopf"),
        "kubernetes": binaries.KUBERNETES,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
    }


def show(result: dict[str, Any]) -> None:
    latencies = sorted(result["apply_s"])
    p95 = latencies[int(0.95 * (len(latencies) - 1))]
    print(json.dumps(result["versions"]))
    print(f"{result['deployments']} LLMDeployments, {result['nodes']} KWOK nodes")
    print(f"  synced            {result['synced_s']:6.1f} s")
    print(f"  converged         {result['converged_s']:6.1f} s")
    print(
        f"  rss               {result['rss_settled_mib']:6.0f} MiB settled, {result['rss_highest_mib']:.0f} highest"
    )
    print(
        f"  quiet             {len(result['quiet_writes']):6d} writes in {result['quiet_s']:.0f} s but the Lease"
    )
    print(
        f"  apply, known      {statistics.median(latencies):6.3f} s median, {p95:.3f} s p95, n={len(latencies)}"
    )
    print(f"  apply, unseen     {result['apply_unseen_checkpoint_s']:6.3f} s (inspect Job included)")


if __name__ == "__main__":
    asyncio.run(main())
