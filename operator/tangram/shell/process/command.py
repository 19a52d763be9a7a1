"""The command line of the operator: read settings and credentials, check the CRD, run."""

import argparse
import asyncio
import faulthandler
import logging
import signal
import sys
from pathlib import Path

from tangram.eligibility.devices.tolerations import HOLD_PREFIX
from tangram.kube.client import ApiClient, ApiError
from tangram.kube.credentials import AuthError, Credentials
from tangram.kube.kinds import LLM_DEPLOYMENTS
from tangram.kube.kubeconfig import find_credentials
from tangram.kube.retry_delays import RetryDelays
from tangram.shell import logs
from tangram.shell.process.app import Operator
from tangram.shell.repartition.lift_holds import lift_holds
from tangram.shell.settings import Settings, SettingsError, load_settings

log = logging.getLogger(__name__)

EXIT_USAGE = 2
EXIT_NO_CRD = 3
EXIT_HELD = 4
EXIT_TIMEOUT_S = 25.0  # below the usual grace period of 30 s


def run(argv: list[str]) -> int:
    """Parse the command line, check settings, credentials and the CRD, and run; return the exit code."""
    parser = argparse.ArgumentParser("tangram-operator", description="Serve open LLMs on a fleet of GPUs.")
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--config", type=Path, help="settings file (YAML)")
    lift_help = "lift the holds that an operator left on nodes, and end: for the time after an uninstall"
    mode.add_argument("--lift-holds", action="store_true", help=lift_help)
    default = "the pod's service account, then $KUBECONFIG"
    parser.add_argument("--kubeconfig", help=f"kubeconfig (default: {default})")
    arguments = parser.parse_args(argv)
    try:
        settings = None if arguments.lift_holds else load_settings(arguments.config)
        logs.configure("plain" if settings is None else settings.operator.log_format)
        credentials = find_credentials(arguments.kubeconfig)
    except (SettingsError, AuthError) as error:
        print(f"tangram-operator: {error}", file=sys.stderr)  # noqa: T201 - before the log is configured
        return EXIT_USAGE
    return asyncio.run(_lift_holds(credentials) if settings is None else _run(settings, credentials))


async def _lift_holds(credentials: Credentials) -> int:
    client = ApiClient(credentials)
    try:
        if await lift_holds(client):
            return 0
    finally:
        await client.close()
    log.critical("nodes are still held: remove their taints %s*", HOLD_PREFIX)
    return EXIT_HELD


async def _run(settings: Settings, credentials: Credentials) -> int:
    if not await _crd_served(credentials):
        log.critical(
            "the API server does not serve %s in %s/%s: install the CRD first "
            "(helm does, or `kubectl apply -f crds/`)",
            LLM_DEPLOYMENTS.plural,
            LLM_DEPLOYMENTS.group,
            LLM_DEPLOYMENTS.version,
        )
        return EXIT_NO_CRD
    return await _run_until_stopped(Operator(settings, credentials))


async def _run_until_stopped(operator: Operator) -> int:
    """Run the operator until a signal, or until one of its tasks ends; return the exit code."""
    stopping, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    ends = [asyncio.create_task(event.wait()) for event in (stopping, operator.failed)]
    try:
        await operator.start()
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    finally:
        # Where the end takes too long: the stack of each thread, and exit.
        faulthandler.dump_traceback_later(EXIT_TIMEOUT_S, exit=True)
        await operator.stop()
        faulthandler.cancel_dump_traceback_later()
        for end in ends:
            end.cancel()
    return 1 if operator.failed.is_set() else 0


async def _crd_served(credentials: Credentials) -> bool:
    """Say whether the API server serves the CRD. Retry until it responds: it may start after the operator."""
    client, delays = ApiClient(credentials), RetryDelays()
    try:
        while True:
            try:
                return await client.served(LLM_DEPLOYMENTS)
            except ApiError as error:
                delay = delays.next_s()
                log.warning("API server: %s; retrying in %.1f s", error, delay)
                await asyncio.sleep(delay)
    finally:
        await client.close()
