"""Run the operator process under kopf: start, stop, login, signals.

kopf watches and writes nothing here: no change-detecting handlers (they annotate), no timers or daemons (they
add finalizers), no indexes (their start is quadratic), no peering (there is a Lease), no event posting (the
operator deduplicates its own). No event handlers either: an error inside kopf's watch, or an object that its
JSON parser cannot read, ends the process, and any author of an LLMDeployment could write such an object. The
mirrors provide the objects and their changes.
"""

import asyncio
import datetime
import logging
from collections.abc import Callable
from typing import Any

import kopf

from tangram.kube.credentials import TOKEN_REREAD_S, Credentials
from tangram.shell.intake.handlers import EndlessDelays
from tangram.shell.process.app import Operator
from tangram.shell.settings import Settings

log = logging.getLogger(__name__)

EXIT_TIMEOUT_S = 25.0  # below the usual grace period of 30 s


def kopf_settings() -> kopf.OperatorSettings:
    """Return kopf's settings (by the code of version 1.45)."""
    settings = kopf.OperatorSettings()
    settings.scanning.disabled = True  # no dynamic CRDs: needs no cluster-wide right to read them
    settings.peering.standalone = True
    settings.posting.enabled = False
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 5
    settings.networking.error_backoffs = EndlessDelays()
    settings.process.ultimate_exiting_timeout = EXIT_TIMEOUT_S
    return settings


def connection(credentials: Credentials) -> kopf.ConnectionInfo:
    """Return the credentials in the form of kopf."""
    token = credentials.token()
    expiration = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=TOKEN_REREAD_S)
    return kopf.ConnectionInfo(
        server=credentials.server,
        ca_path=credentials.ca_path,
        certificate_path=credentials.cert_path,
        private_key_path=credentials.key_path,
        insecure=credentials.insecure or None,
        scheme="Bearer" if token else None,
        token=token,
        expiration=expiration if token else None,  # tokens rotate: log in again
    )


def registry(
    credentials: Credentials, start: Callable[[], Any], stop: Callable[[], Any]
) -> kopf.OperatorRegistry:
    """Return the registry with the three handlers of the operator."""
    handlers = kopf.OperatorRegistry()

    @kopf.on.login(registry=handlers)
    async def login(**_: Any) -> kopf.ConnectionInfo:
        return connection(credentials)

    @kopf.on.startup(registry=handlers)
    async def startup(**_: Any) -> None:
        await start()

    @kopf.on.cleanup(registry=handlers)
    async def cleanup(**_: Any) -> None:
        await stop()

    return handlers


async def run(settings: Settings, credentials: Credentials) -> int:
    """Run the operator until a signal, or until one of its tasks ends; return the exit code."""
    operator = Operator(settings, credentials)
    stop_flag = asyncio.Event()
    watchdog = asyncio.create_task(_stop_when_failed(operator, stop_flag))
    scope: dict[str, Any] = (
        {"namespaces": settings.watch_namespaces} if settings.watch_namespaces else {"clusterwide": True}
    )
    try:
        await kopf.operator(
            registry=registry(credentials, operator.start, operator.stop),
            settings=kopf_settings(),
            standalone=True,
            stop_flag=stop_flag,
            **scope,
        )
    finally:
        watchdog.cancel()
    return 1 if operator.failed.is_set() else 0


async def _stop_when_failed(operator: Operator, stop_flag: asyncio.Event) -> None:
    await operator.failed.wait()
    stop_flag.set()
