"""A round over the nodes of mig-manager: one write of entries, refusals, bugs and lost leadership."""

import copy
import logging
from datetime import UTC, datetime, timedelta

import pytest
import yaml

from tangram.kube.client import ApiError, Listing
from tangram.kube.kinds import CLUSTER_POLICIES, CONFIG_MAPS, GPU_NODES, NODES, PODS
from tangram.partition.mig_manager.node_counts import ENTRY_PREFIX
from tangram.shell.lead.lease import NotLeader
from tangram.shell.mig_manager import managed_layouts
from tangram.shell.mig_manager.managed_layouts import ManagedLayouts
from tangram.shell.watch.kept_fields import node as kept_node
from tests.support.mig_manager_node import wanted_gpu

CONFIG, STATE = "nvidia.com/mig.config", "nvidia.com/mig.config.state"
CUT, OTHER = ["4g.40gb@0", "3g.40gb@4"], ["3g.40gb@0", "3g.40gb@4"]
START = datetime(2030, 1, 1, tzinfo=UTC)


class MemoryApi:
    """Objects by kind and name, each with a version; `writes` holds verb, kind and name."""

    def __init__(self):
        self.objects, self.writes, self.refusals, self.version = {}, [], {}, 0
        self.now = START

    def put(self, kind, obj):
        self.version += 1
        obj = copy.deepcopy(obj)
        obj["metadata"] |= {"resourceVersion": str(self.version)}
        obj["metadata"].setdefault("uid", f"uid-{self.version}")
        stamp = self.now.strftime("%Y-%m-%dT%H:%M:%SZ")
        obj["metadata"]["managedFields"] = [{"time": stamp}]
        self.objects[kind, obj["metadata"]["name"]] = obj
        return copy.deepcopy(obj)

    async def get(self, kind, _namespace, name):
        return copy.deepcopy(self.objects.get((kind, name)))

    async def list(self, kind, field_selector=""):
        matching = [
            obj
            for (one, _), obj in self.objects.items()
            if one == kind and field_selector in ("", f"spec.nodeName={obj['spec']['nodeName']}")
        ]
        return Listing(matching, str(self.version))

    def of(self, kind):
        return [copy.deepcopy(obj) for (one, _), obj in self.objects.items() if one == kind]

    async def create(self, kind, obj, *, manager, guard):
        return self._write("create", kind, obj["metadata"], guard, lambda _live: obj)

    async def merge(self, kind, _namespace, name, patch, *, manager, guard):
        def merged(live):
            return _merged(live, patch)

        return self._write("merge", kind, {"name": name, **patch["metadata"]}, guard, merged)

    async def apply(self, kind, obj, *, manager, force, subresource, guard):
        def applied(live):
            return {**live, "status": obj["status"]}

        return self._write("status", kind, obj["metadata"], guard, applied)

    def _write(self, verb, kind, meta, guard, change):
        guard()
        if (verb, kind) in self.refusals:
            raise self.refusals[verb, kind]
        live = self.objects.get((kind, meta["name"]))
        if live is not None and meta.get("resourceVersion") != live["metadata"]["resourceVersion"]:
            raise ApiError(409, "Conflict", "the object has been modified")
        self.writes.append((verb, kind.kind, meta["name"]))
        return self.put(kind, change(live))


def _merged(live, patch):
    parts = {
        key: _merged(live.get(key) or {}, value) if isinstance(value, dict) else value
        for key, value in patch.items()
    }
    return {**live, **parts}


class Fleet:
    """Nodes of mig-manager in memory, and the operator's rounds over them."""

    def __init__(self, *names):
        self.api, self.names, self.faults, self.seconds = MemoryApi(), names, [], 0.0
        self.leads = True
        self.put_policy("tangram-mig-config")
        for name in names:
            self.api.put(NODES, node(name))
            self.api.put(GPU_NODES, {"metadata": {"name": name, "generation": 1}, "spec": {}})
        self.layouts = self.operator()

    def operator(self, **more):
        def clock():
            return self.seconds

        def now():
            return self.api.now

        def guard():
            if not self.leads:
                raise NotLeader
            return 10.0

        def failed(*fault):
            self.faults.append(fault)

        return ManagedLayouts(self.api, guard, clock, now, "gpu-operator", "0.1", failed=failed, **more)

    def put_policy(self, name):
        spec = {"migManager": {"config": {"name": name}}, "other": 1}
        self.api.put(CLUSTER_POLICIES, {"metadata": {"name": "cluster-policy"}, "spec": spec})

    def want(self, name, *gpus):
        obj = self.api.objects[GPU_NODES, name]
        spec = {"gpus": [wanted_gpu(index, placements) for index, placements in gpus]}
        self.api.put(GPU_NODES, {**obj, "spec": spec})

    def pass_s(self, seconds):
        self.seconds += seconds
        self.api.now += timedelta(seconds=seconds)

    async def round(self, managed=None):
        objects = (self.api.of(GPU_NODES), [kept_node(obj) for obj in self.api.of(NODES)], self.api.of(PODS))
        await self.layouts.round(*objects, set(self.names) if managed is None else managed)

    def reason(self, name, kind="Applied"):
        status = self.api.objects[GPU_NODES, name].get("status") or {}
        found = [each for each in status.get("conditions", ()) if each["type"] == kind]
        return found[0]["reason"] if found else None

    def label(self, name):
        return self.api.objects[NODES, name]["metadata"]["labels"][CONFIG]

    def entries(self):
        data = self.api.objects[CONFIG_MAPS, "tangram-mig-config"]["data"]["config.yaml"]
        return yaml.safe_load(data)["mig-configs"]


def warnings(caplog):
    return sum(record.levelno >= logging.WARNING for record in caplog.records)


def node(name):
    labels = {
        "nvidia.com/gpu.count": "2",
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
        "nvidia.com/mig.capable": "true",
        "nvidia.com/mig.strategy": "mixed",
        "nvidia.com/gpu.deploy.mig-manager": "true",
        CONFIG: "all-disabled",
        STATE: "success",
    }
    devices = {"nvidia.com/gpu": "2"}
    status = {"allocatable": devices, "capacity": devices, "nodeInfo": {"bootID": "boot-1"}}
    return {"metadata": {"name": name, "labels": labels}, "status": status}


async def test_entries_of_all_nodes_are_one_write_and_labels_follow_once_the_file_has():
    fleet = Fleet("a", "b")
    fleet.want("a", (0, CUT))
    fleet.want("b", (0, OTHER))

    await fleet.round()
    assert [write for write in fleet.api.writes if write[1] == "ConfigMap"] == [
        ("create", "ConfigMap", "tangram-mig-config")
    ]
    assert len(fleet.entries()) == 3
    await fleet.round()
    assert (fleet.reason("a"), fleet.label("a")) == ("ConfigSyncing", "all-disabled")
    fleet.pass_s(151)
    await fleet.round()

    assert {fleet.label("a"), fleet.label("b")} < set(fleet.entries())
    assert fleet.api.objects[NODES, "a"]["metadata"]["labels"][STATE] == "pending"
    assert (fleet.reason("a"), fleet.reason("b")) == ("Applying", "Applying")
    status = fleet.api.objects[GPU_NODES, "a"]["status"]
    assert (status["bootID"], status["migConfig"]) == ("boot-1", fleet.label("a"))


async def test_what_others_wrote_into_the_config_map_stays():
    fleet = Fleet("a")
    theirs = "version: v1\nmig-configs:\n  theirs: [{devices: all, mig-enabled: false}]\n"
    data = {"config.yaml": theirs, "note": "kept"}
    fleet.api.put(CONFIG_MAPS, {"metadata": {"name": "tangram-mig-config"}, "data": data})
    fleet.want("a", (0, CUT))

    await fleet.round()

    assert fleet.api.objects[CONFIG_MAPS, "tangram-mig-config"]["data"]["note"] == "kept"
    assert "theirs" in fleet.entries()


async def test_entries_that_are_neither_named_nor_wanted_go_when_there_are_many():
    fleet = Fleet("a", "b")
    many = {f"{ENTRY_PREFIX}{number:016}": [] for number in range(40)}
    text = yaml.safe_dump({"version": "v1", "mig-configs": many}, sort_keys=False)
    fleet.api.put(CONFIG_MAPS, {"metadata": {"name": "tangram-mig-config"}, "data": {"config.yaml": text}})
    fleet.api.objects[NODES, "b"]["metadata"]["labels"][CONFIG] = next(iter(many))
    fleet.want("a", (0, CUT))

    await fleet.round()

    ours = [name for name in fleet.entries() if name.startswith(ENTRY_PREFIX)]
    assert ours[0] == next(iter(many))
    assert ours[1:-1] == list(many)[-20:]


async def test_nodes_of_other_backends_are_neither_read_nor_written():
    fleet = Fleet("a")
    fleet.want("a", (0, CUT))

    await fleet.round(managed=())

    assert fleet.api.writes == []


async def test_a_bug_that_one_node_meets_stops_that_node_alone(monkeypatch):
    fleet = Fleet("a", "b")
    real = managed_layouts.step

    def step(gpu_node, *rest):
        if gpu_node["metadata"]["name"] == "a":
            raise ZeroDivisionError
        return real(gpu_node, *rest)

    monkeypatch.setattr(managed_layouts, "step", step)
    await fleet.round()

    assert (fleet.reason("a"), fleet.reason("b")) == (None, "AsWanted")
    assert [(fault[0], fault[1]) for fault in fleet.faults] == [("mig-manager", "a")]


async def test_nothing_is_written_once_the_lease_is_lost():
    fleet = Fleet("a")
    fleet.want("a", (0, CUT))
    fleet.leads = False

    with pytest.raises(NotLeader):
        await fleet.round()

    assert fleet.api.writes == []


async def test_a_refused_label_is_told_by_the_status_and_tried_again_later(caplog):
    fleet = Fleet("a")
    fleet.want("a", (0, CUT))
    await fleet.round()
    fleet.pass_s(151)
    fleet.api.refusals["merge", NODES] = ApiError(403, "Forbidden", "nodes is forbidden")

    with caplog.at_level(logging.WARNING):
        for _ in range(4):
            await fleet.round()
    assert fleet.reason("a") == "WriteRefused"
    assert warnings(caplog) == 1

    fleet.api.refusals.clear()
    fleet.pass_s(601)
    await fleet.round()
    assert fleet.reason("a") == "Applying"


async def test_a_config_map_that_cannot_be_read_is_logged_once_and_nothing_is_done(caplog):
    fleet = Fleet("a")
    fleet.want("a", (0, CUT))

    async def refuse(*_):
        raise ApiError(403, "Forbidden", "clusterpolicies is forbidden")

    fleet.api.get = refuse
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            await fleet.round()
            fleet.pass_s(700)

    assert fleet.api.writes == []
    assert warnings(caplog) == 1


async def test_a_node_that_changed_meanwhile_is_left_to_the_next_round():
    fleet = Fleet("a")
    fleet.want("a", (0, CUT))
    await fleet.round()
    fleet.pass_s(151)
    real = fleet.api.merge

    async def changed_first(kind, *rest, **more):
        fleet.api.put(kind, fleet.api.objects[kind, "a"])
        fleet.api.merge = real
        return await real(kind, *rest, **more)

    fleet.api.merge = changed_first
    await fleet.round()
    assert fleet.label("a") == "all-disabled"
    assert fleet.reason("a") == "WritingEntry"

    await fleet.round()
    assert fleet.reason("a") == "Applying"


async def test_cluster_policy_is_not_edited_while_nodes_name_entries_that_would_be_gone():
    fleet = Fleet("a", "b")
    fleet.put_policy("default-mig-parted-config")
    fleet.api.objects[NODES, "b"]["metadata"]["labels"][CONFIG] = "all-balanced"
    fleet.want("a", (0, CUT))
    fleet.layouts = fleet.operator(edits_cluster_policy=True)
    for _ in range(3):
        await fleet.round()
    policy = fleet.api.objects[CLUSTER_POLICIES, "cluster-policy"]
    assert policy["spec"]["migManager"]["config"]["name"] == "default-mig-parted-config"
    assert fleet.reason("a", "Ready") == "ConfigMapNotNamed"

    fleet.api.objects[NODES, "b"]["metadata"]["labels"][CONFIG] = "all-disabled"
    await fleet.round()
    policy = fleet.api.objects[CLUSTER_POLICIES, "cluster-policy"]
    assert policy["spec"] == {"migManager": {"config": {"name": "tangram-mig-config"}}, "other": 1}
