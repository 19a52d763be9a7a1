"""kopf as the intake of the operator's own kinds, against an API server that misbehaves."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tangram.kube.client import ApiClient
from tangram.kube.kinds import GPU_POOLS, LLM_DEPLOYMENTS
from tangram.kube.mirror import MirrorSource
from tangram.kube.response_body import MAX_BODY_BYTES
from tangram.shell.intake import handlers, mirror, session, supervision
from tangram.shell.intake.mirror import IntakeMirror
from tangram.shell.intake.session import MOST_UNHANDLED, BoundedContent, WatchBacklog, kopf_session
from tangram.shell.intake.supervision import KopfSupervisor, intake_of
from tangram.shell.watch import kept_fields
from tests.kube.test_client_calls import served
from tests.support.kopf_api import DEEP, KopfApi, event, supervised
from tests.support.plain_credentials import PlainCredentials

NEVER_S = 3600.0
PATH = "/apis/tangram.dev/v1alpha1/llmdeployments"


@pytest.fixture(autouse=True)
def short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "RESTART_S", (0.02, 0.05))
    monkeypatch.setattr(mirror, "EVENT_GRACE_S", 0.05)
    monkeypatch.setattr(session, "WATCH_PAUSE_S", 0.05)
    usual = handlers.kopf_settings

    def quick() -> Any:
        settings = usual()
        settings.watching.reconnect_backoff = 0.05
        return settings

    monkeypatch.setattr(handlers, "kopf_settings", quick)


@dataclass
class Intake:
    """Mirrors of LLMDeployments and GPUPools with the kopf that feeds them."""

    api: KopfApi
    mirrors: tuple[IntakeMirror, ...]
    restarts: int = 0

    def restarted(self) -> None:
        self.restarts += 1

    def names(self) -> set[str]:
        return {obj["metadata"]["name"] for obj in self.mirrors[0].store}

    async def shows(self, *names: str) -> None:
        assert await self.mirrors[0].wait_for(lambda _: self.names() == set(names), 20.0), self.names()

    async def next_watch(self) -> None:
        await self.until(f"watch GET {PATH}", self.api.requests[f"watch GET {PATH}"] + 1)

    async def until(self, what: str, times: int = 1) -> None:
        """Wait for requests of kopf and the mirrors: method and end of path."""
        async with asyncio.timeout(20.0):
            while self.api.requests[what] < times:
                await self.api.requested.wait()
                self.api.requested.clear()


@asynccontextmanager
async def intake(api: KopfApi, tick_s: float = NEVER_S, **more: float) -> AsyncIterator[Intake]:
    async with api.serving():
        credentials, clock = PlainCredentials(api.url), asyncio.get_running_loop().time
        client = ApiClient(credentials, timeout_s=2.0)
        made = Intake(
            api,
            tuple(
                IntakeMirror(
                    client,
                    MirrorSource(kind, kept_fields.custom_resource, optional=kind is GPU_POOLS),
                    changed=lambda: None,
                    clock=clock,
                    relist_s=tick_s,
                )
                for kind in (LLM_DEPLOYMENTS, GPU_POOLS)
            ),
        )
        supervisor = KopfSupervisor(
            intake_of(credentials, made.mirrors),
            made.mirrors,
            check_s=more.get("check_s", 0.05),
            clock=clock,
            restarted=made.restarted,
        )
        async with supervised(api, supervisor, made.mirrors, client):
            yield made


def new_api(**fields: Any) -> KopfApi:
    api = KopfApi((LLM_DEPLOYMENTS, GPU_POOLS), **fields)
    api.put("a")
    return api


async def test_events_change_the_mirror_without_a_list() -> None:
    async with intake(new_api()) as this:
        await this.until(f"watch GET {PATH}")
        await this.api.send(this.api.put("b"))
        await this.shows("a", "b")
        this.api.put("b")
        await this.api.send(event(this.api.objects.pop("b"), "DELETED"))
        await this.shows("a")
        assert (this.restarts, this.mirrors[0].lists) == (0, 1)


FAULTS = {
    "a 500": b'{"type":"ERROR","object":{"kind":"Status","code":500,"message":"boom"}}\n',
    "an object that nests 10,000 deep": b'{"type":"ADDED","object":' + DEEP + b"}\n",
    "a line that is no JSON": b"<html>\n",
    "an event that is no object": b"[]\n",
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
async def test_a_fault_of_kopf_is_a_restart_while_lists_go_on(fault: bytes) -> None:
    async with intake(new_api(watch_begins_with=fault), tick_s=0.1) as this:
        this.api.put("b")
        await this.shows("a", "b")
        await this.until(f"watch GET {PATH}", 3)
        assert this.restarts >= 1
        this.api.watch_begins_with, this.mirrors[0]._relist_s = b"", NEVER_S
        await this.next_watch()
        await this.api.send(this.api.put("c"))
        await this.shows("a", "b", "c")


async def test_a_410_is_no_restart() -> None:
    gone = b'{"type":"ERROR","object":{"kind":"Status","code":410,"message":"too old"}}\n'
    async with intake(new_api(watch_begins_with=gone)) as this:
        await this.until(f"watch GET {PATH}", 3)
        this.api.put("b")
        await this.shows("a", "b")  # by the LIST of kopf
        assert (this.restarts, this.mirrors[0].lists) == (0, 1)


async def test_deep_managed_fields_stop_neither_lists_nor_watches() -> None:
    meta = b'"name":"%s","namespace":"n","uid":"%s","resourceVersion":"%d","managedFields":[{"fieldsV1":'
    deep = b'{"metadata":{' + meta + DEEP + b'}]},"spec":{}}'
    deep_event = b'{"type":"ADDED","object":' + deep % (b"w", b"w", 99) + b"}\n"
    async with intake(new_api(raw_item=deep % (b"l", b"l", 5))) as this:
        await this.until(f"watch GET {PATH}")
        await this.api.send(deep_event)
        await this.shows("a", "l", "w")
        assert (this.restarts, this.mirrors[0].lists) == (0, 1)


@pytest.mark.parametrize("refused", [{"/apis": 404}, {"/apis": 403}, {"/v1alpha1": 500}])
async def test_lists_stand_in_for_a_kopf_that_never_comes_up(refused: dict[str, int]) -> None:
    async with intake(new_api(refused=refused), tick_s=0.05) as this:
        await this.shows("a")
        this.api.put("b")
        await this.shows("a", "b")
        del this.api.objects["a"]
        this.api.version += 1
        await this.shows("b")


async def test_a_deletion_that_no_event_reports_is_seen_at_the_next_tick() -> None:
    async with intake(new_api(), tick_s=0.05) as this:
        await this.until(f"watch GET {PATH}")
        del this.api.objects["a"]
        this.api.version += 1
        await this.shows()
        assert (this.restarts, this.mirrors[0].lists) == (0, 1)


async def test_kopf_goes_on_after_an_outage_of_the_api_server() -> None:
    async with intake(new_api(watch_begins_with=b"\n")) as this:  # its watches end after 0.2 s
        await this.until(f"watch GET {PATH}")
        this.api.refused["llmdeployments"] = 503
        await this.next_watch()
        this.api.refused.clear()
        this.api.watch_begins_with = b""
        await this.next_watch()
        await this.api.send(this.api.put("b"))
        await this.shows("a", "b")
        assert this.restarts == 0


async def test_500_objects_of_an_outage_arrive_after_it() -> None:
    async with intake(new_api(watch_begins_with=b"\n")) as this:
        await this.until(f"watch GET {PATH}")
        this.api.refused["llmdeployments"] = 503
        await this.next_watch()
        names = [f"m{number}" for number in range(500)]
        for name in names:
            this.api.put(name)
        this.api.refused.clear()
        await this.shows("a", *names)
        assert (this.restarts, this.mirrors[0].lists) == (0, 1)


@pytest.mark.parametrize("status", [403, 404])
async def test_kopf_watches_an_optional_kind_from_when_it_can_be_listed(status: int) -> None:
    pools = "/apis/tangram.dev/v1alpha1/gpupools"
    async with intake(new_api(refused={"gpupools": status}), tick_s=0.05) as this:
        await this.until(f"watch GET {PATH}")
        assert not this.api.requests[f"watch GET {pools}"]
        this.api.refused.clear()
        await this.until(f"watch GET {pools}")
        this.api.refused["gpupools"] = status
        await this.next_watch()
        assert this.restarts == 0


async def test_marks_of_kopf_that_a_tenant_sets_change_nothing() -> None:
    marks = {
        "finalizers": ["kopf.zalando.org/KopfFinalizerMarker"],
        "annotations": {"kopf.zalando.org/last-handled-configuration": "[" * 10_000},
    }
    async with intake(new_api()) as this:
        await this.until(f"watch GET {PATH}")
        await this.api.send(this.api.put("b", **marks))
        await this.shows("a", "b")


async def test_a_login_that_kopf_does_not_take_over_leaves_no_session_open() -> None:
    async with handlers.logins(PlainCredentials("http://127.0.0.1:9"), WatchBacklog()) as log_in:
        first, second = (await log_in()).aiohttp_session, (await log_in()).aiohttp_session
        assert not first.closed
    assert first.closed
    assert second.closed


async def test_kopf_may_not_write_and_follows_no_redirect() -> None:
    async def elsewhere(request: web.Request) -> web.Response:
        raise web.HTTPFound("http://example.invalid/")

    async with served(elsewhere) as (client, _):
        url = client.credentials.server
        async with kopf_session(client.credentials, WatchBacklog()) as reading:
            with pytest.raises(RuntimeError, match="write"):
                await reading.patch(url)
            with pytest.raises(aiohttp.ClientConnectionError, match="redirect"):
                await reading.get(url)


async def test_a_body_that_is_too_large_is_not_read_whole() -> None:
    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(2 * MAX_BODY_BYTES >> 20):
            await response.write(b" " * 2**20)
        return response

    async with (
        served(endless) as (client, _),
        kopf_session(client.credentials, WatchBacklog()) as reading,
        reading.get(client.credentials.server) as response,
    ):
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.json()


class Lines:
    """A watch that has this many events at once."""

    def __init__(self, count: int) -> None:
        self.count = count

    async def iter_any(self) -> AsyncIterator[bytes]:
        yield b'{"type":"MODIFIED","object":{}}\n' * self.count


async def test_no_more_events_are_read_than_handlers_can_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "LONGEST_PAUSE_S", 0.1)
    backlog, read = WatchBacklog(), 0
    lines: Any = Lines(2 * MOST_UNHANDLED)
    async for _ in BoundedContent(lines, backlog).iter_chunked(1):
        read += 1
        assert backlog.unhandled <= MOST_UNHANDLED
        if read == MOST_UNHANDLED:  # from here the handlers take one at a time
            asyncio.get_running_loop().call_later(0.02, setattr, backlog, "unhandled", MOST_UNHANDLED - 1)
    assert read == 2 * MOST_UNHANDLED, "a handler that never ends stops no watch"
