"""Placements for `kubectl apply`: one at a time, in a process that keeps the fleet."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

from tangram.admission import Review, ReviewedFleet
from tangram.fleet import FleetSnapshot
from tangram.shell.admission.placements import WARM_UP, Placements
from tangram.shell.decide.placement_worker import PlacementFunction, PlacementWorker
from tangram.shell.process.reviewed_fleets import ReviewedFleets
from tangram.shell.settings import Settings
from tangram.shell.watch.mirror_view import MirrorView

FLEET = ReviewedFleet(FleetSnapshot(()), (), 0.0)


def load_slow() -> PlacementFunction:
    """Return a function that takes as many seconds as the review's name says."""

    def warnings(review: Review, fleet: ReviewedFleet | None) -> tuple[str, ...]:
        time.sleep(float(review.name))
        return (review.name, "kept" if fleet is None else "sent")

    return warnings


def of(name: str) -> Review:
    return replace(WARM_UP, name=name)


@asynccontextmanager
async def placements(
    fleet: Callable[[], ReviewedFleet | None] = lambda: FLEET,
) -> AsyncIterator[tuple[Placements, PlacementWorker]]:
    worker = PlacementWorker(load_slow)
    try:
        yield Placements(worker, fleet), worker
    finally:
        worker.stop()


async def test_a_fleet_is_sent_to_the_process_once() -> None:
    fleets = [FLEET]
    async with placements(lambda: fleets[-1]) as (these, worker):
        assert not worker.holds_fleet
        assert await these.warnings(of("0")) == ("0", "sent")
        assert await these.warnings(of("0.0")) == ("0.0", "kept")
        fleets.append(replace(FLEET, now=1.0))
        assert await these.warnings(of("0")) == ("0", "sent")
        assert worker.holds_fleet
        worker._process.kill()
        worker._process.join()
        assert not worker.holds_fleet
        assert await these.warnings(of("0")) == ("0", "sent")


async def test_reviews_wait_for_their_turn_and_leave_at_their_time_limit() -> None:
    async with placements() as (these, worker):
        await these.warnings(of("0"))
        slow = asyncio.create_task(these.warnings(of("0.5")))
        await asyncio.sleep(0.05)
        waiting = [asyncio.create_task(these.warnings(of("0.0"))) for _ in range(100)]
        await asyncio.sleep(0.1)
        for task in (slow, *waiting):
            task.cancel()
        await asyncio.gather(slow, *waiting, return_exceptions=True)

        assert await these.warnings(of("0.01")) == ("0.01", "kept")
        assert worker.calls == 3, "what was begun is finished, what has left is not begun"


async def test_without_a_fleet_there_is_no_warning() -> None:
    async with placements(lambda: None) as (these, worker):
        assert await these.warnings(of("0")) == ()
        assert not worker.running


def test_the_leaders_fleet_is_that_of_its_last_round_and_a_standbys_that_of_its_mirrors() -> None:
    class Mirrors:
        synced = False

        def view(self) -> MirrorView:
            return MirrorView()

    class Elector:
        leading = False

    now, mirrors, elector = [1000.0], Mirrors(), Elector()
    fleets = ReviewedFleets(
        Settings(engine_image="e:1"),
        mirrors,  # type: ignore[arg-type]
        elector,  # type: ignore[arg-type]
        lambda: None,
        lambda: now[0],
    )
    assert fleets.newest() is None
    mirrors.synced = True
    first = fleets.newest()
    assert first is not None
    now[0] += 14
    assert fleets.newest() is first, "no more than once a tick"
    now[0] += 1
    second = fleets.newest()
    assert second is not None
    assert second.now == 1015.0
    elector.leading = True
    assert fleets.newest() is None, "a new leader has planned nothing yet"
