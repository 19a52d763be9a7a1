"""Lets the Envoy of this pod finish its requests before the pod ends.

At SIGTERM, Envoy ends at once. It is a sidecar, which the kubelet stops after the picker: so the picker, once
it is to stop, has Envoy fail its readiness, close its listeners and finish what runs, and ends after that.
"""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import aiohttp

log = logging.getLogger(__name__)

ENDPOINTS_LAG_S = 5.0  # in which new connections still come: kube-proxies and load balancers follow late
POLL_S = 0.5
CALL_S = 2.0
MOST_TRIES = 10  # of one call: an Envoy that is busy answers late, and its streams must not be cut for that
MAX_PAGE_BYTES = 1 << 16
Result = TypeVar("Result")
_ACTIVE = re.compile(r"^http\.gateway\.downstream_rq_active: (\d+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class EnvoyAdmin:
    """The administration interface of Envoy, on a socket of the pod."""

    socket: str

    async def post(self, path: str) -> None:
        """Have Envoy do something."""
        await self._call("POST", path)

    async def active_requests(self) -> int:
        """Return the number of requests that run."""
        page = await self._call("GET", "/stats?filter=^http.gateway.downstream_rq_active$")
        count = _ACTIVE.search(page)
        return int(count[1]) if count else 0

    async def _call(self, method: str, path: str) -> str:
        timeout = aiohttp.ClientTimeout(total=CALL_S)
        connector = aiohttp.UnixConnector(self.socket)
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
            session.request(method, f"http://envoy{path}") as response,
        ):
            response.raise_for_status()
            return (await response.content.read(MAX_PAGE_BYTES)).decode()


async def end_earlier_drain(admin: EnvoyAdmin) -> None:
    """Let Envoy be ready again, where a picker was stopped alone and had begun to drain it."""
    try:
        await admin.post("/healthcheck/ok")
    except (aiohttp.ClientError, OSError) as error:
        log.info("Envoy does not answer yet: %s", error)


async def drain(admin: EnvoyAdmin, deadline_s: float, lag_s: float = ENDPOINTS_LAG_S) -> bool:
    """Return once Envoy has answered every request; False where some still run after `deadline_s`."""
    try:
        async with asyncio.timeout(deadline_s):
            await _repeated(partial(admin.post, "/healthcheck/fail"))
            await asyncio.sleep(lag_s)
            await _repeated(partial(admin.post, "/drain_listeners?graceful&skip_exit"))
            while running := await _repeated(admin.active_requests):
                log.info("draining: %d requests run", running)
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        log.warning("requests still run after %.0f s", deadline_s)
        return False
    except aiohttp.ClientError as error:
        log.warning("Envoy does not answer, so it is drained no longer: %s", error)
        return False
    return True


async def _repeated(call: Callable[[], Awaitable[Result]]) -> Result:
    """Return what a call returns, in `MOST_TRIES` of them at most. Raises aiohttp.ClientError."""
    tries = 0
    while True:
        try:
            return await call()
        except (aiohttp.ClientError, OSError) as error:
            tries += 1
            if tries == MOST_TRIES:
                raise aiohttp.ClientError(str(error) or type(error).__name__) from error
        await asyncio.sleep(POLL_S)
