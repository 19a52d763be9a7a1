"""Watches with invalid data: the mirror survives, requests at a bounded rate, and becomes correct."""

import asyncio
import json
from typing import Any

import pytest

from tangram.kube import mirror as module
from tangram.kube.client import ApiError, Listing, WatchEvent, _event
from tangram.kube.kinds import PODS
from tangram.kube.mirror import Mirror, MirrorSource

GARBAGE = [
    "",
    "null",
    "[]",
    '"x"',
    "<html>",
    "{}",
    '{"type": "ADDED"}',
    '{"type": "ADDED", "object": null}',
    '{"type": "ADDED", "object": []}',
    '{"type": "ADDED", "object": {}}',
    '{"type": "ADDED", "object": {"metadata": []}}',
    '{"type": "MODIFIED", "object": {"metadata": {"name": 7}}}',
    '{"type": "BOOKMARK", "object": "x"}',
    '{"type": "ERROR", "object": 410}',
    '{"type": "ADDED", "object": ' + "[" * 100_000,
    "\xff\xfe",
]


@pytest.mark.parametrize("line", GARBAGE, ids=range(len(GARBAGE)))
def test_invalid_data_in_a_watch_is_a_connection_error(line: str) -> None:
    with pytest.raises(ApiError) as error:
        _event(line.encode("latin-1"))
    assert error.value.status == 0


EVENTS = {
    "410 at once": [WatchEvent("ERROR", {"code": 410, "message": "too old"})],
    "500 at once": [WatchEvent("ERROR", {"code": 500})],
    "an error with a text for its code": [WatchEvent("ERROR", {"code": "Gone", "message": {}})],
    "an end at once": [],
    "an odd bookmark": [WatchEvent("BOOKMARK", {"metadata": {"resourceVersion": "odd"}})],
    "a bookmark of nothing": [WatchEvent("BOOKMARK", {})],
    "a type of tomorrow": [WatchEvent("MOVED", {"metadata": {"name": "x"}})],
}


class Api:
    """Answers each watch with the same events and then ends it."""

    def __init__(self, events: list[WatchEvent]) -> None:
        self.events, self.lists, self.watches = events, 0, 0

    async def list(self, *_: Any) -> Listing:
        self.lists += 1
        return Listing([{"metadata": {"name": "a", "namespace": "n", "resourceVersion": "5"}}], "5")

    async def watch(self, *_: Any, **__: Any) -> Any:
        self.watches += 1
        for event in self.events:
            yield WatchEvent(event.type, json.loads(json.dumps(event.object)))


@pytest.mark.parametrize("events", EVENTS.values(), ids=EVENTS.keys())
async def test_repeatedly_broken_watches_reconnect_at_most_every_five_seconds(
    events: list[WatchEvent], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An hour of it: a back-off of up to 10 s stands between any two tries, however the first ones went."""
    now, real_sleep = [0.0], asyncio.sleep

    async def sleep(seconds: float) -> None:
        now[0] += seconds
        await real_sleep(0)
        if now[0] > 3600:
            raise asyncio.CancelledError

    api = Api(events)
    mirror = Mirror(api, MirrorSource(PODS, lambda obj: obj), changed=lambda: None, clock=lambda: now[0])  # type: ignore[arg-type]

    async def no_checks() -> None:
        await asyncio.Event().wait()

    mirror._check_drift = no_checks  # type: ignore[method-assign]
    monkeypatch.setattr(module.asyncio, "sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        await mirror.run()

    assert api.watches <= 3600 / 5 + 10
    assert api.lists <= 3600 / 5 + 10
    assert len(mirror.store) == 1
