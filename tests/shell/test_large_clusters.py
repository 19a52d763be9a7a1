"""A term of the Lease on a cluster whose LISTs last longer than the Lease and than one request may."""

from typing import Any

from e2e.cluster.apiserver import free_port
from tangram.fleet import Plan
from tangram.shell.process.app import Operator
from tangram.shell.settings import LeaderElectionSettings, ProcessSettings, Settings
from tests.support.apiserver import eventually
from tests.support.plain_credentials import PlainCredentials
from tests.support.stand_in_api import StandInApi

PAGES, PAGE, LIST_S = 50, 20, 4.0


class Planner:
    """Takes every snapshot, in no time."""

    async def plan(self, *_: Any) -> Plan:
        return Plan()


async def test_a_large_cluster_is_planned_while_the_lease_is_held_and_probes_succeed() -> None:
    """50 pages in 4 s, four times what a leader may be silent: the lease goes on, and the LISTs are not
    repeated when the term begins.
    """
    pods = [{"metadata": {"name": f"p{i}", "namespace": "n"}, "spec": {}} for i in range(PAGES * PAGE)]
    api = StandInApi({"pods": pods}, lambda plural: LIST_S / PAGES if plural == "pods" else 0.0, PAGE)
    settings = Settings(
        engine_image="e",
        leader_election=LeaderElectionSettings(lease_seconds=1.5, renew_seconds=1.0, retry_seconds=0.2),
        listen_host="127.0.0.1",
        probe_port=free_port(),
        metrics_port=free_port(),
        operator=ProcessSettings(tick_seconds=0.5),
    )
    async with api.serving():
        operator = Operator(settings, PlainCredentials(api.url))
        operator.loop.worker = Planner()  # type: ignore[assignment]
        await operator.start()
        try:

            async def planned() -> bool:
                assert operator.live() == ""
                assert operator.elector.term <= 1
                return operator.loop.heartbeat.planned_at is not None

            await eventually(planned, 15)
            assert operator.ready() == ""
            assert operator.elector.term == 1
            assert api.lists["pods"] == 1
        finally:
            await operator.stop()
