"""GPUPools: their mirror, which is optional, their place in the snapshot, and their status."""

import asyncio
import logging
from dataclasses import replace
from typing import Any

import pytest

from tangram.fleet import FleetSnapshot, InvalidPool, LeftOut, Node, Pool, PoolUse
from tangram.kube import mirror as module
from tangram.kube.client import WATCH_INACTIVITY_S, ApiError, Listing
from tangram.kube.kinds import GPU_POOLS, LLM_DEPLOYMENTS
from tangram.kube.mirror import UNAVAILABLE_RETRY_S, Mirror, MirrorSource
from tangram.plan.fleet_input.observed.pool_use import pool_use
from tangram.plan.fleet_input.observed.snapshot_input import snapshot_input
from tangram.shell.measure.metrics import OperatorMetrics
from tangram.shell.report.pool_status import pool_statuses
from tangram.shell.settings import Settings
from tangram.shell.snapshot.fleet_snapshot import fleet_snapshot
from tangram.shell.watch import kept_fields
from tangram.shell.watch.mirror_view import MirrorView
from tests.support.fleet import claims, intent, node, shape
from tests.support.fleet import snapshot as fleet

NOW = 1_800_000_000.0


def mirrored(name: str, labels: dict[str, str], gpus: str = "8") -> dict[str, Any]:
    return kept_fields.node(
        {
            "metadata": {"name": name, "labels": {"nvidia.com/gpu.product": "NVIDIA-A10"} | labels},
            "spec": {},
            "status": {
                "allocatable": {"nvidia.com/gpu": gpus, "cpu": "8"},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }
    )


def pool(name: str, selector: dict[str, str], **spec: Any) -> dict[str, Any]:
    meta = {"name": name, "uid": f"uid-{name}", "generation": 4}
    return {"metadata": meta, "spec": {"nodeSelector": selector} | spec}


def snapshot_with(*pools: dict[str, Any], nodes: tuple[dict[str, Any], ...] = ()) -> FleetSnapshot:
    return fleet_snapshot(MirrorView(gpu_pools=pools, nodes=nodes), Settings(engine_image="engine:1"), NOW)


def test_a_snapshot_has_zone_gpus_and_the_labels_that_pools_select_by() -> None:
    labels = {"topology.kubernetes.io/zone": "a", "nvidia.com/gpu.count": "8", "tier": "gold", "rack": "7"}
    snapshot = snapshot_with(pool("gold", {"tier": "gold"}), nodes=(mirrored("n", labels),))

    (gpu_node,) = snapshot.nodes
    assert (gpu_node.zone, gpu_node.gpus, gpu_node.labels) == ("a", 8, (("tier", "gold"),))
    assert [p.name for p in snapshot.pools] == ["gold"]


@pytest.mark.parametrize("count", ["", "many", "-1", "0", "9" * 60])
def test_an_invalid_gpu_count_is_ignored(count: str) -> None:
    assert snapshot_with(nodes=(mirrored("n", {"nvidia.com/gpu.count": count}),)).nodes[0].gpus is None


def test_a_snapshot_keeps_no_labels_of_nodes_without_gpus() -> None:
    plain = {"metadata": {"name": "n", "labels": {"a": "b"}}, "status": {"allocatable": {"cpu": "8"}}}

    assert kept_fields.node(plain)["metadata"]["labels"] == {}


def test_equal_labels_of_nodes_share_one_string() -> None:
    first, other = (mirrored(name, {"tier": f"gold-{len('four')}"}) for name in ("a", "b"))

    assert first["metadata"]["labels"]["tier"] is other["metadata"]["labels"]["tier"]


def test_an_invalid_pool_is_separate_in_the_snapshot() -> None:
    snapshot = snapshot_with(
        pool("good", {"tier": "gold"}), pool("bad", {"tier": "gold"}, pricePerGPUHour=-1)
    )

    assert [p.name for p in snapshot.pools] == ["good"]
    assert [p.name for p in snapshot.invalid_pools] == ["bad"]


def condition(status: dict[str, Any], kind: str) -> dict[str, Any]:
    (matching,) = (candidate for candidate in status["conditions"] if candidate["type"] == kind)
    return matching


GOLD, SILVER = Pool("gold", (("tier", "gold"),)), Pool("silver", (("tier", "gold"),))
NODES = (
    Node("a", "A10", "NVIDIA-A10", True, (("nvidia.com/gpu", 4),), labels=(("tier", "gold"),)),
    Node("b", "A10", "NVIDIA-A10", False, (), gpus=8, labels=(("tier", "gold"),)),
)


def statuses(used: Any, *objects: dict[str, Any], **changes: Any) -> list[dict[str, Any]]:
    snapshot = FleetSnapshot(**{"nodes": NODES, "pools": (GOLD,)} | changes)
    return [status for _, status in pool_statuses(objects, snapshot, used, NOW)]


def test_a_pool_counts_nodes_gpus_and_use() -> None:
    (status,) = statuses({"gold": PoolUse(12, 9, 4.5)}, pool("gold", {}))

    assert {k: status[k] for k in ("nodes", "gpus", "freeGPUs", "costPerHour", "observedGeneration")} == {
        "nodes": 2, "gpus": 12, "freeGPUs": 9, "costPerHour": "4.50", "observedGeneration": 4,
    }  # fmt: skip
    assert status["conditions"][0]["status"] == "True"


def test_the_recorded_use_of_a_pool_stays_until_a_plan_computes_it() -> None:
    before = pool("gold", {}) | {"status": {"freeGPUs": 3, "costPerHour": "1.00"}}

    assert statuses(None, before)[0]["freeGPUs"] == 3
    assert "freeGPUs" not in statuses({}, before)[0]


def test_the_status_of_an_unchanged_pool_is_unchanged() -> None:
    (first,) = statuses({}, pool("gold", {}))
    again = pool("gold", {}) | {"status": first}
    snapshot = FleetSnapshot(nodes=NODES, pools=(GOLD,))

    assert [status for _, status in pool_statuses((again,), snapshot, {}, NOW + 99)] == [first]


def test_nodes_of_two_pools_belong_to_the_first_and_the_second_reports_it() -> None:
    first, second = statuses({}, pool("gold", {}), pool("silver", {}), pools=(GOLD, SILVER))

    assert (first["nodes"], second["nodes"]) == (2, 0)
    assert second["conditions"][0]["reason"] == "Conflict"
    assert second["conditions"][0]["message"] == (
        "node a belongs to GPUPool gold already (and 1 more of its nodes to others): make the selectors"
        " exclude each other"
    )


@pytest.mark.parametrize(
    ("parsed_pool", "remark"),
    [
        (GOLD, ""),
        (replace(GOLD, selector=(("tier", "glod"),)), ""),
        (
            replace(GOLD, selector=(("tier", "glod"),), max_nodes=3),
            "; plans add no nodes, because spec.sku does not say which GPUs they would have",
        ),
        (replace(GOLD, selector=(("tier", "glod"),), max_nodes=3, sku="L4"), ""),
        (replace(GOLD, max_nodes=3), ""),
    ],
)
def test_an_accepted_pool_has_remarks_about_likely_mistakes(parsed_pool: Pool, remark: str) -> None:
    (status,) = statuses({}, pool("gold", {}), pools=(parsed_pool,))

    assert condition(status, "Accepted")["status"] == "True"
    assert condition(status, "Accepted")["message"] == f"the spec is valid{remark}"


def test_a_pool_whose_sku_contradicts_the_labels_of_its_nodes_is_not_accepted() -> None:
    (status,) = statuses({}, pool("gold", {}), pools=(replace(GOLD, sku="L4"),))

    assert condition(status, "Accepted")["reason"] == "SKUMismatch"
    assert condition(status, "Accepted")["message"] == (
        "spec.sku is L4, but node a has the label nvidia.com/gpu.product=NVIDIA-A10 (and 1 more of its nodes"
        " have another model): the label takes precedence, and plans add no nodes; correct spec.sku, or"
        " select these nodes with a GPUPool of their own"
    )
    assert status["nodes"] == 2


def test_an_invalid_pool_reports_the_reason_and_counts_nothing() -> None:
    (status,) = statuses({}, pool("bad", {}), invalid_pools=(InvalidPool("bad", "spec.x: no"),), pools=())

    assert condition(status, "Accepted")["message"] == "spec.x: no"
    assert condition(status, "Ready")["reason"] == "NotAccepted"
    assert "nodes" not in status


def test_pool_use_is_computed_from_the_initial_layout_of_a_plan() -> None:
    owner = intent("one")
    labelled = replace(node("n", gpu=8), labels=(("p", "1"),))
    priced = Pool("p", (("p", "1"),), price_per_gpu_hour=2.0)
    snapshot = fleet(labelled, claims=claims(owner, shape(), "n", 3), pools=(priced,))

    assert pool_use(snapshot_input(snapshot, (owner,)), snapshot) == (("p", PoolUse(8, 5, 6.0)),)


class Api:
    """Answers LISTs as the test says."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)

    async def list(self, *_: Any) -> Listing:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, ApiError):
            raise answer
        return answer

    async def watch(self, *_: Any, **__: Any) -> Any:
        await asyncio.Event().wait()
        yield


NOT_FOUND, FORBIDDEN = ApiError(404, "NotFound", "no"), ApiError(403, "Forbidden", "no")
SOME = Listing([pool("gold", {})], "5")


def of(api: Api, optional: bool = True, **more: Any) -> Mirror:
    kind = GPU_POOLS if optional else LLM_DEPLOYMENTS
    source = MirrorSource(kind, kept_fields.custom_resource, optional=optional)
    return Mirror(api, source, changed=lambda: None, clock=lambda: 0.0, **more)  # type: ignore[arg-type]


async def test_a_mirror_of_an_unserved_kind_is_empty_until_the_kind_is_served(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "UNAVAILABLE_RETRY_S", 0.01)
    mirror = of(Api(NOT_FOUND, NOT_FOUND, NOT_FOUND, SOME))
    task = asyncio.create_task(mirror.run())
    with caplog.at_level(logging.INFO):
        await mirror.wait_synced()
        assert (len(mirror.store), mirror.unavailable) == (0, True)
        assert await mirror.wait_for(lambda store: len(store) == 1, 10)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    assert not mirror.unavailable
    messages = [record.getMessage() for record in caplog.records]
    assert len([text for text in messages if "continuing without" in text]) == 1


async def test_a_kind_that_is_not_served_is_listed_again_after_the_time_of_any_list() -> None:
    mirror = of(Api(NOT_FOUND, SOME), relist_s=0.01)
    task = asyncio.create_task(mirror.run())

    assert await mirror.wait_for(lambda store: len(store) == 1, UNAVAILABLE_RETRY_S / 2)

    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_mirror_keeps_its_objects_when_listing_becomes_forbidden() -> None:
    mirror = of(Api(SOME, FORBIDDEN, NOT_FOUND))
    await mirror.refresh_if_available()
    await mirror.refresh_if_available()
    assert len(mirror.store) == 1
    await mirror.refresh_if_available()
    assert len(mirror.store) == 0


async def test_an_unserved_required_kind_is_an_error() -> None:
    with pytest.raises(ApiError):
        await of(Api(NOT_FOUND), optional=False).refresh_if_available()


async def test_a_silent_watch_leads_to_a_new_list(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent(Api):
        async def watch(self, *_: Any, **__: Any) -> Any:
            now[0] += WATCH_INACTIVITY_S
            raise ApiError(0, "", "Timeout on reading data from socket")
            yield

    now = [0.0]
    monkeypatch.setattr(module.RetryDelays, "next_s", lambda _self: 0.001)
    source = MirrorSource(GPU_POOLS, kept_fields.custom_resource, optional=True)
    mirror = Mirror(Silent(SOME), source, changed=lambda: None, clock=lambda: now[0])  # type: ignore[arg-type]
    task = asyncio.create_task(mirror.run())

    async def listed_again() -> None:
        while mirror.lists < 3:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0)

    await asyncio.wait_for(listed_again(), 10)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert mirror.age_s <= WATCH_INACTIVITY_S


PENDING = LeftOut("MIGChanging", "label nvidia.com/mig.config.state=pending: wait")


def test_a_pool_reports_devices_that_are_left_out() -> None:
    changing = replace(NODES[0], usable=False, left_out=(PENDING,))
    (status,) = statuses({}, pool("gold", {}), nodes=(changing, NODES[1]))

    ready = condition(status, "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "GPUsLeftOut")
    assert "left out: node a: label nvidia.com/mig.config.state=pending" in ready["message"]


def test_nodes_are_counted_by_the_reason_why_their_devices_are_left_out() -> None:
    metrics = OperatorMetrics()
    shared = LeftOut("Shared", "label x", "nvidia.com/gpu")
    metrics.show_nodes(
        [replace(NODES[0], left_out=(PENDING, shared, shared)), replace(NODES[1], left_out=(shared,))]
    )

    def left_out(reason: str) -> float | None:
        return metrics.registry.get_sample_value("tangram_gpu_nodes_left_out", {"reason": reason})

    assert (left_out("Shared"), left_out("MIGChanging")) == (2, 1)
    metrics.show_nodes(NODES)
    assert left_out("Shared") is None
