"""The command line of the node agent, and its loop until it is told to stop."""

import argparse
import logging
import os
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path

from tangram.kube.client import ApiError
from tangram.kube.credentials import SERVICE_ACCOUNT, AuthError, Credentials, in_cluster_credentials
from tangram.kube.kubeconfig import load_kubeconfig
from tangram.partition.agent.api_thread import ApiThread
from tangram.partition.agent.cluster import Cluster
from tangram.partition.agent.driver_thread import DEADLINE_S, DriverHangs, DriverThread
from tangram.partition.agent.loop import NodeAgent
from tangram.partition.agent.metrics import PORT, AgentMetrics, MetricsServer
from tangram.partition.agent.pod_resources import SOCKET, PodResources
from tangram.partition.agent.round_trigger import RoundTrigger
from tangram.partition.agent.watch import NodeWatch
from tangram.partition.nvml import NVMLDriver
from tangram_http.log_limit import LimitedLogHandler

log = logging.getLogger(__name__)

EXIT_USAGE, EXIT_HANGS = 2, 4
NODE_NAME = "NODE_NAME"


def main(argv: list[str] | None = None) -> int:
    """Run the agent until SIGTERM; return the exit code."""
    arguments = _parser().parse_args(sys.argv[1:] if argv is None else argv)
    if not arguments.node_name:
        print(f"tangram-agent: --node-name or ${NODE_NAME} is needed", file=sys.stderr)  # noqa: T201
        return EXIT_USAGE
    try:
        api = ApiThread(_credentials(arguments.kubeconfig))
    except (AuthError, OSError, ValueError) as error:
        print(f"tangram-agent: {error}", file=sys.stderr)  # noqa: T201
        return EXIT_USAGE
    _log_to_stderr()
    try:
        return _run_on(api, arguments)
    finally:
        api.close()


def _credentials(kubeconfig: str | None) -> Credentials:
    """Return the credentials of a kubeconfig, else those of the pod. Raises AuthError."""
    if kubeconfig is not None:
        try:
            return load_kubeconfig(kubeconfig)
        except ModuleNotFoundError as error:
            raise AuthError(f"--kubeconfig needs the package {error.name}, which is not installed") from error
    of_pod = in_cluster_credentials()
    if of_pod is None:
        where = f"{SERVICE_ACCOUNT} and $KUBERNETES_SERVICE_HOST"
        raise AuthError(f"no access to the API server by {where}: this is no pod with a service account")
    return of_pod


def _run_on(api: ApiThread, arguments: argparse.Namespace) -> int:
    cluster = Cluster(
        api,
        arguments.node_name,
        plugin_namespace=arguments.device_plugin_namespace,
        plugin_selector=arguments.device_plugin_selector,
    )
    trigger = RoundTrigger()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: trigger.stop())
    watch = NodeWatch(api.client, arguments.node_name, trigger.change)
    api.begin(watch.follow())
    agent = NodeAgent(
        cluster,
        DriverThread(NVMLDriver, arguments.driver_deadline_s),
        PodResources(arguments.pod_resources_socket),
        lambda: datetime.now(UTC),
        watch.copies,
        _served_metrics(arguments.node_name, arguments.metrics_port),
    )
    return run(agent, arguments.interval_s, trigger)


def _served_metrics(node_name: str, port: int) -> AgentMetrics:
    """Return the metrics, on a port unless it is 0. A node is partitioned without them, too."""
    metrics = AgentMetrics(node_name)
    if port:
        try:
            MetricsServer(port, metrics.registry).start()
        except OSError as error:
            log.warning("no metrics: port %d: %s", port, error)
    return metrics


def run(agent: NodeAgent, interval_s: float, trigger: RoundTrigger) -> int:
    """Do round after round. An operation that has begun is finished before the process ends.

    A change of the objects begins a round at once, and a back-off when it is over. Else the kubelet and the
    driver are read every `interval_s`, and the API server where no watch shows its objects.
    """
    from_copies = False
    while not trigger.is_stopping:
        try:
            goes_on, has_failed = agent.round(from_copies=from_copies), False
        except ApiError as error:
            log.warning("%s", error)
            goes_on, has_failed = False, True
        except DriverHangs as error:
            log.critical("%s: ending, so that another process calls it", error)
            return EXIT_HANGS
        agent.metrics.count_round(has_failed=has_failed)
        if goes_on:
            from_copies = False
            continue
        wait_s = interval_s if agent.due_s is None else min(agent.due_s, interval_s)
        from_copies = not trigger.wait(wait_s) and not has_failed
    return 0


def _log_to_stderr() -> None:
    """Send the log of this process to stderr. It changes the root logger, so usage errors come before it."""
    logging.basicConfig(
        level=logging.INFO,
        handlers=[LimitedLogHandler()],
        format="%(asctime)s %(levelname)-7s %(name)s: %(message)s",
        force=True,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("tangram-agent", description="Partition the GPUs of this node by MIG.")
    add = parser.add_argument
    add("--node-name", default=os.environ.get(NODE_NAME), help=f"name of this node (default: ${NODE_NAME})")
    add("--kubeconfig", help="kubeconfig (default: the pod's service account)")
    add("--pod-resources-socket", type=Path, default=SOCKET, help="of the kubelet (default: %(default)s)")
    add("--interval-s", type=float, default=15.0, help="seconds between rounds (default: %(default)s)")
    add("--driver-deadline-s", type=float, default=DEADLINE_S, help="seconds (default: %(default)s)")
    add("--metrics-port", type=int, default=PORT, help="of /metrics; 0: none (default: %(default)s)")
    plugin = "nvidia-device-plugin-daemonset"  # of the GPU Operator
    add("--device-plugin-namespace", default="gpu-operator", help="(default: %(default)s)")
    add("--device-plugin-selector", default=f"app={plugin}", help="label selector (default: %(default)s)")
    return parser
