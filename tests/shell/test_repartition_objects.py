"""FleetPlans of changes, holds and GPUNodes: read and written, whatever people write and the API refuses."""

import copy
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tangram.fleet import (
    Claim,
    FleetSnapshot,
    InvalidIntent,
    LayoutChange,
    LayoutChanges,
    NodePartition,
    PartitionView,
    Shape,
    ShapeKey,
)
from tangram.fleet.labels import OWNER_LABEL
from tangram.kube.client import ApiError
from tangram.kube.kinds import DELETION_COST, GPU_NODES, NODES, TEMPLATE_LABEL, VARIANT_LABEL
from tangram.kube.store import Store
from tangram.plan.repartition import (
    DevicePod,
    FleetState,
    Hold,
    HoldNode,
    MarkPod,
    PlanProgress,
    PlanRecord,
    PlanState,
    ReleaseNode,
    RepartitionLimits,
    RepartitionNode,
    RepartitionStep,
    SetLayouts,
    UnmarkPod,
)
from tangram.shell.lead.lease import NotLeader
from tangram.shell.repartition.executor import KEPT, ROUND_S, Executor, RepartitionRound
from tangram.shell.repartition.fleet_state import (
    MARK,
    Recommended,
    failed_changes,
    fleet_state,
    hold_value,
    holds,
    plan_objects,
    waiting_for_consent,
)
from tangram.shell.repartition.plan_objects import (
    change_display,
    fits,
    gpu_indices,
    plan_object,
    plan_record,
    plan_status,
)
from tangram.shell.watch.kept_fields import fleet_plan
from tests.support.fleet import intent, workload
from tests.support.repartition_worlds import layout

NOW = 1_700_000_000.0
GPU = "GPU-00000000-0000-0000-0000-000000000001"
OTHER_GPU = "GPU-00000000-0000-0000-0000-000000000002"
HALVES = "2g.12gb@0 2g.12gb@2"
CUT = LayoutChanges((LayoutChange("a", GPU, layout("gpu"), layout(HALVES)),), (), "pool")
LABELS = {"app.kubernetes.io/managed-by": "tangram", "tangram.dev/operator": "here"}


def written(of=CUT, name=None, **status):
    obj = plan_object(name or of.name, of, "0123456789ab", LABELS)
    obj["metadata"] |= {"uid": "u1", "resourceVersion": "5", "creationTimestamp": "2023-11-14T22:00:00Z"}
    return obj | ({"status": status} if status else {})


def world_of(*plans, nodes=(), recommended=(), partitions=(), now=NOW):
    snapshot = FleetSnapshot(partition=PartitionView(nodes=tuple(partitions)))
    objects = plan_objects(plans)
    known = Recommended("", tuple(recommended))
    return fleet_state(snapshot, (), nodes, (), objects, known, RepartitionLimits(), now)


def test_a_replica_that_terminates_or_is_not_ready_serves_for_nobody():
    def pod(name, ready):
        condition = {"type": "Ready", "status": ready}
        return {"metadata": {"namespace": "chat", "name": name}, "conditions": [condition]}

    owner = SimpleNamespace(uid="u", namespace="chat", name="llama")
    pods = [pod("serves", "True"), pod("starts", "False"), pod("leaves", "True")]
    claims = [
        Claim("a", "nvidia.com/gpu", 1, "u", NOW * (name == "leaves") or None, f"chat/{name}")
        for name in ("serves", "starts", "leaves")
    ]
    late = workload(intent("llama"), Shape("A30", "gpu"), 2)  # its status counts the pod that leaves
    snapshot = FleetSnapshot(claims=tuple(claims), workloads=(replace(late, owner_uid="u"),))
    world = fleet_state(
        snapshot, [owner], (), pods, plan_objects(()), Recommended("", ()), RepartitionLimits(), NOW
    )

    assert world.owners["chat/llama"].available == 1


# ---- FleetPlans ------------------------------------------------------------------------------------


def test_a_plan_is_read_as_it_was_written():
    moves = tuple((owner, ShapeKey("A30", "1g.6gb")) for owner in ("chat/llama", "chat/qwen"))
    moving = replace(CUT, moves=moves, restarts=("chat/qwen",))

    record = plan_record(written(moving), frozenset({moving.name}))

    assert record.changes == moving
    assert (record.is_recommended, record.approved, record.state) == (True, None, PlanState.RECOMMENDED)


def test_the_state_of_a_plan_is_read_as_it_was_written():
    progress = PlanProgress("p", PlanState.EXECUTING, "Cutting", "cuts", "GPUNode a", NOW + 300.0, 0)
    status = plan_status(progress, PlanRecord("p", CUT, True), NOW)

    record = plan_record(written(**status), frozenset())

    assert (record.state, record.since) == (PlanState.EXECUTING, NOW)
    assert (status["waitsFor"], status["progress"]) == ("GPUNode a", "0/1")


def test_the_instant_of_a_state_stays_while_the_state_does():
    progress = PlanProgress("p", PlanState.EXECUTING, "Cutting", "cuts")
    record = PlanRecord("p", CUT, True, state=PlanState.EXECUTING, since=NOW - 60.0)

    assert plan_status(progress, record, NOW)["since"] == "2023-11-14T22:12:20Z"
    assert plan_status(progress, replace(record, state=PlanState.APPROVED), NOW)["since"] == (
        "2023-11-14T22:13:20Z"
    )


def test_texts_of_a_plan_are_cut_to_what_the_api_takes():
    progress = PlanProgress("p", PlanState.BLOCKED, "InUse", "x" * 9999, "y" * 9999)

    status = plan_status(progress, PlanRecord("p", CUT, True), NOW)

    assert (len(status["message"]), len(status["waitsFor"])) == (2048, 256)


def test_a_plan_of_too_many_gpus_is_not_made():
    gpus = [f"GPU-00000000-0000-0000-0000-{index:012}" for index in range(65)]
    many = LayoutChanges(tuple(LayoutChange("a", gpu, layout("gpu"), layout(HALVES)) for gpu in gpus))
    free = NodePartition("a", gpus=())

    assert not fits(many)
    assert world_of(recommended=(many,), partitions=(free,)).plans == ()
    indices = {gpu: number for number, gpu in enumerate(gpus)}
    assert change_display(many, indices) == "a/0 a/1 a/2 +62: gpu -> 2x2g.12gb"


LEFT = LayoutChange("a", OTHER_GPU, layout("gpu"), layout("gpu"))
TO_QUARTERS = (("default/chat", ShapeKey("A30", "1g.6gb")),)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (CUT, "a/0: gpu -> 2x2g.12gb"),
        (replace(CUT, serves=("default/code", "team/chat")), "a/0: gpu -> 2x2g.12gb, for code team/chat"),
        (replace(CUT, changes=(LEFT,), moves=TO_QUARTERS), "chat moves"),
        (
            replace(CUT, moves=TO_QUARTERS, restarts=tuple(owner for owner, _ in TO_QUARTERS)),
            "a/0: gpu -> 2x2g.12gb, chat restarts",
        ),
        (
            replace(CUT, changes=(*CUT.changes, LEFT), moves=TO_QUARTERS, serves=("default/code",)),
            "a/0: gpu -> 2x2g.12gb, chat moves, for code",
        ),
        (
            replace(CUT, changes=(LayoutChange("a", GPU, layout("1g.6gb@0"), layout("1g.6gb@3")),)),
            "a/0: 1g.6gb@0 -> 1g.6gb@3",
        ),
        (
            replace(CUT, changes=(LayoutChange("a", GPU, layout("1g.6gb@0 1g.6gb@1"), layout("empty")),)),
            "a/0: 2x1g.6gb -> empty",
        ),
    ],
)
def test_a_row_says_what_is_cut_who_moves_and_who_gains(changes, text):
    assert change_display(changes, {GPU: 0, OTHER_GPU: 1}) == text


def test_a_gpu_has_the_index_that_its_gpunode_has():
    gpu_nodes = {"a": {"status": {"gpus": [{"id": GPU, "index": 3}, {"id": "index-1", "index": 1}]}}, "b": {}}
    plan = plan_object("p", CUT, "", LABELS, gpu_indices(gpu_nodes))

    assert gpu_indices(gpu_nodes) == {GPU: 3, "a/index-1": 1}
    assert plan["spec"]["changes"][0]["index"] == 3


def test_a_long_display_is_cut():
    starts = [LayoutChange("a", f"{GPU}{n}", layout("gpu"), layout(f"1g.6gb@{n}")) for n in range(40)]
    serves = tuple(f"{'n' * 60}/{'m' * 60}{n}" for n in range(9))

    assert len(change_display(LayoutChanges(tuple(starts), serves=serves), {})) == 256


def test_a_plan_of_changes_says_what_its_gpus_cost_before_and_after():
    priced = replace(CUT, cost=(6.148, 3.074), serves=("chat/llama",))
    record = plan_record(written(priced), frozenset())
    progress = PlanProgress("p", PlanState.RECOMMENDED, "WaitingForApproval", "")
    status = plan_status(progress, record, NOW)

    assert record.changes.name == CUT.name  # a consent is not outdated by a changed price
    assert (record.changes.cost, record.changes.serves) == ((6.15, 3.07), ("chat/llama",))
    assert (status["currentCostPerHour"], status["savesPerHour"]) == ("6.15", "3.08")
    first = PlanRecord(record.name, priced, True, state=record.state, since=record.since)
    assert (
        plan_status(PlanProgress("p", PlanState.RECOMMENDED, "WaitingForApproval", ""), first, NOW) == status
    )


def test_moves_alone_become_a_plan_and_start_from_the_layouts_that_they_keep():
    moves = LayoutChanges((LayoutChange("a", GPU, layout("gpu"), layout("gpu")),), TO_QUARTERS, "pool")
    node = {"metadata": {"name": "a"}, "taints": [], "allocatable": {}}

    def planned(text, wanted=None):
        world = world_of(nodes=(node,), recommended=(moves,), partitions=(uncut(text, wanted),))
        return [plan.name for plan in world.plans]

    assert planned("gpu") == planned("gpu", "gpu") == [moves.name]
    assert planned("empty") == []


@pytest.mark.parametrize(
    ("state", "proposed"), [("Executing", False), ("Approved", False), ("Recommended", True), ("Done", True)]
)
def test_no_second_plan_moves_replicas_that_a_plan_moves_already(state, proposed):
    first = LayoutChanges((LEFT,), TO_QUARTERS, "pool")
    other = replace(CUT, moves=TO_QUARTERS)
    node = {"metadata": {"name": "a"}, "taints": [], "allocatable": {}}
    world = world_of(
        written(first, state=state), nodes=(node,), recommended=(other,), partitions=(uncut(),), now=NOW
    )

    assert (other.name in [plan.name for plan in world.plans]) == proposed


def test_a_consent_to_a_move_covers_the_shape_that_was_shown():
    moves = LayoutChanges((LEFT,), TO_QUARTERS, "pool")

    assert moves.name != replace(moves, moves=(("default/chat", ShapeKey("A30", "2g.12gb")),)).name


def test_a_replica_of_an_llmdeployment_that_was_made_invalid_is_not_taken_for_moved():
    invalid = InvalidIntent("uid-llama", "chat", "llama", 2, 0.0, "spec.replicas is negative")
    runs = workload(intent("llama"), Shape("A30", "gpu"), 1)
    snapshot = FleetSnapshot(workloads=(runs,))
    immovable = {"uid-llama": "waits until condition Accepted is True"}
    world = fleet_state(
        snapshot,
        [invalid],
        (),
        (),
        plan_objects(()),
        Recommended("", ()),
        RepartitionLimits(),
        NOW,
        immovable,
    )

    owner = world.owners["chat/llama"]
    assert owner.shapes == {ShapeKey("A30", "gpu")}
    assert owner.immovable == immovable["uid-llama"]


@pytest.mark.parametrize(
    ("replica_set", "owner"), [("llama-v1-5d9", "chat/llama"), ("mine-5d9", ""), ("llama-v2-5d9", "")]
)
def test_a_pod_whose_deployment_is_gone_is_a_leaving_replica_by_its_name(replica_set, owner):
    """Kubernetes ends it some time after the Deployment."""
    llama = intent("llama", namespace="chat")
    labels = {OWNER_LABEL: "llama", VARIANT_LABEL: "v1", TEMPLATE_LABEL: "5d9"}
    controller = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": replica_set, "controller": True}
    meta = {"namespace": "chat", "name": "p", "labels": labels, "ownerReferences": [controller]}
    pod = {"metadata": meta, "conditions": []}
    node = {"metadata": {"name": "a"}, "taints": [], "allocatable": {}}
    snapshot = FleetSnapshot(
        claims=(Claim("a", "nvidia.com/gpu", 1, None, None, "chat/p"),),
        partition=PartitionView((uncut(),)),
    )
    world = fleet_state(
        snapshot, [llama], [node], [pod], plan_objects(()), Recommended("", ()), RepartitionLimits(), NOW
    )

    assert world.nodes[0].pods == (DevicePod("chat/p", owner, is_leaving=bool(owner)),)


WAITS = (("chat/llama", "p"), ("chat/tiny", "p"))


@pytest.mark.parametrize(
    ("state", "approved", "expected"),
    [("Recommended", None, WAITS), ("Recommended", True, ()), ("Executing", True, ()), (None, None, ())],
)
def test_who_waits_for_a_consent_is_known_with_the_name_of_the_plan(state, approved, expected):
    plan = written(replace(CUT, serves=("chat/tiny", "chat/llama")), "p", state=state)
    plan["spec"] |= {} if approved is None else {"approved": approved}

    assert waiting_for_consent([plan]) == expected


@pytest.mark.parametrize(
    "spec",
    [
        {"changes": [{"node": "a"}]},
        {"changes": [{"node": "a", "gpu": "../../etc", "before": {}, "after": {}}]},
        {"changes": "many"},
        {"changes": [{}] * 1000},
        {"changes": [1, None, "x"], "pool": {}},
    ],
)
@pytest.mark.parametrize("state", [None, "Executing", "Failed", "Rejected", "Blocked"])
def test_a_plan_that_nobody_can_read_is_not_carried_out_and_stops_no_other(spec, state):
    broken = written() | {"spec": spec, "status": {"state": state, "since": "2023-11-14T22:13:00Z"}}
    other = LayoutChanges((LayoutChange("b", OTHER_GPU, layout("gpu"), layout(HALVES)),), (), "pool")

    world = world_of(broken, written(other), recommended=(CUT, other))

    assert [plan.name for plan in world.plans] == [other.name]


@pytest.mark.parametrize("state", ["InForce", "executing", "", None, 7, ["Done"], {"a": 1}])
def test_a_state_that_is_unknown_waits_for_consent(state):
    world = world_of(written(state=state, since="yesterday"))

    assert [plan.state for plan in world.plans] == [PlanState.RECOMMENDED]


@pytest.mark.parametrize(
    ("since", "expected"),
    [
        ("9999-12-31T23:59:59Z", NOW),
        ("2023-11-14T22:13:21Z", NOW),
        ("0001-01-01T00:00:00+14:00", 0.0),
        ("2023-11-14T22:12:20Z", NOW - 60.0),
    ],
)
def test_an_instant_that_cannot_be_is_bounded(since, expected):
    world = world_of(written(state="Executing", since=since))
    progress = PlanProgress("p", PlanState.EXECUTING, "Cutting", "", "x", world.plans[0].since + 300.0)

    assert world.plans[0].since == expected
    assert plan_status(progress, world.plans[0], NOW)["deadline"]


def test_a_plan_that_is_deleted_is_neither_carried_out_nor_final():
    deleted = written(state="Executing")
    deleted["metadata"]["deletionTimestamp"] = "2023-11-14T22:13:00Z"

    assert plan_objects([deleted]) == plan_objects([])


# ---- new plans -------------------------------------------------------------------------------------


def uncut(text="gpu", wanted=None):
    gpu = SimpleNamespace(id=GPU, layout=layout(text))
    target = () if wanted is None else ((GPU, layout(wanted)),)
    return NodePartition("a", gpus=(gpu,), wanted=target)


def names_of(*plans, at="gpu", wanted=None, now=NOW):
    node = {"metadata": {"name": "a"}, "taints": [], "allocatable": {}}
    partitions = (uncut(at, wanted),)
    return [
        p.name
        for p in world_of(*plans, nodes=(node,), recommended=(CUT,), partitions=partitions, now=now).plans
    ]


def test_recommended_changes_become_a_plan():
    assert names_of() == [CUT.name]


def test_recommended_changes_that_start_from_another_layout_do_not():
    assert names_of(at="empty") == []


def test_changes_that_are_wanted_already_are_restored_without_a_plan():
    assert names_of(wanted=HALVES) == []


@pytest.mark.parametrize(
    ("state", "age_s", "expected"),
    [
        ("Done", 1, [f"{CUT.name}-2"]),
        ("Superseded", 1, [f"{CUT.name}-2"]),
        ("Failed", 899, []),
        ("Failed", 900, [f"{CUT.name}-2"]),
        ("Blocked", 899, []),
        ("Blocked", 900, [f"{CUT.name}-2"]),
        ("Rejected", 10**6, []),
    ],
)
def test_a_recurrence_gets_a_suffix_unless_it_was_refused_or_failed_lately(state, age_s, expected):
    final = written(state=state, since="2023-11-14T22:13:20Z")

    assert names_of(final, now=NOW + age_s) == expected


def test_changes_with_a_plan_that_waits_get_no_other_one():
    assert names_of(written()) == [CUT.name]


def test_failures_are_told_for_a_while():
    failed = plan_objects([written(state="Failed", since="2023-11-14T22:13:20Z", message="IN_USE")])

    assert [(f.plan, f.pool, f.message) for f in failed_changes(failed, NOW + 899.0)] == [
        (CUT.name, "pool", "IN_USE")
    ]
    assert failed_changes(failed, NOW + 900.0) == ()


# ---- holds -----------------------------------------------------------------------------------------


def tainted(*taints):
    return {"metadata": {"name": "a", "creationTimestamp": "2023-11-14T22:00:00Z"}, "taints": list(taints)}


def taint(value, key="hold.tangram.dev/mig-2g.12gb", effect="NoSchedule"):
    return {"key": key, "effect": effect} | ({} if value is None else {"value": value})


def test_a_hold_is_read_as_it_was_written_to_the_whole_second():
    assert holds(tainted(taint(hold_value(10.2, 20.7)))) == (Hold("nvidia.com/mig-2g.12gb", 11.0, 21.0),)


@pytest.mark.parametrize(
    "value",
    [
        None,
        "",
        "-",
        "10",
        "10-",
        "-20",
        "10-20-30",
        "1e3-2e3",
        "a-b",
        "true",
        "9" * 63,
        " 10-20",
        "+1-2",
        "0x1-2",
    ],
)
def test_a_taint_without_instants_is_a_hold_of_a_person(value):
    assert holds(tainted(taint(value))) == (Hold("nvidia.com/mig-2g.12gb"),)


def test_a_hold_with_huge_instants_is_a_hold_of_a_person():
    assert holds(tainted(taint(f"{'9' * 31}-{'9' * 31}")))[0].until is None


@pytest.mark.parametrize(
    "other",
    [
        taint("1-2", effect="NoExecute"),
        taint("1-2", key="nvidia.com/gpu"),
        taint("1-2", key="evil.hold.tangram.dev/gpu"),
        {"effect": "NoSchedule"},
        {},
    ],
)
def test_other_taints_are_no_holds(other):
    assert holds(tainted(other)) == ()


# ---- the executor ----------------------------------------------------------------------------------


class InMemoryApi:
    """Objects by kind and name. `refusals`: the error of the next calls, by verb."""

    def __init__(self, **refusals):
        self.objects, self.calls, self.refusals = {}, [], refusals

    def put(self, kind, obj):
        self.objects[kind, obj["metadata"]["name"]] = obj
        return obj

    def _call(self, verb, kind, name, body=None):
        self.calls.append((verb, kind.plural, name, copy.deepcopy(body)))
        if verb in self.refusals:
            raise self.refusals[verb]

    async def get(self, kind, _namespace, name):
        self._call("get", kind, name)
        return self.objects.get((kind, name))

    async def create(self, kind, obj, **_):
        self._call("create", kind, obj["metadata"]["name"], obj)
        meta = obj["metadata"] | {"uid": "new", "resourceVersion": "7"}
        return self.put(kind, obj | {"metadata": meta})

    async def merge(self, kind, _namespace, name, patch, **_):
        self._call("merge", kind, name, patch)
        return {"metadata": {"name": name, "uid": "u", "resourceVersion": "8"}}

    async def apply(self, kind, body, subresource="", **_):
        self._call(f"apply{subresource}", kind, body["metadata"]["name"], body)
        return body | {"metadata": body["metadata"] | {"uid": "u", "resourceVersion": "9"}}

    async def delete(self, kind, _namespace, name, **preconditions):
        preconditions.pop("guard")
        self._call("delete", kind, name, preconditions)
        self.objects.pop((kind, name), None)

    def writes(self):
        return [call[:3] for call in self.calls if call[0] != "get"]


class Expected:
    def __init__(self):
        self.seen = []

    def expect_write(self, kind, obj, _now):
        self.seen.append(("write", kind.plural, obj["metadata"]["name"]))

    def expect_deletion(self, kind, key, _uid, _now):
        self.seen.append(("deletion", kind.plural, key[1]))


def executor(api, now=NOW, synced=True, unavailable=False):
    mirror = SimpleNamespace(
        store=Store(fleet_plan), synced=synced, unavailable=unavailable, request_relist=lambda: None
    )
    clock = SimpleNamespace(now=now)
    made = Executor(
        client=api,
        guard=lambda: 1.0,
        plan_mirror=mirror,
        expectations=Expected(),
        operator="here",
        clock=lambda: clock.now,
        now=lambda: clock.now,
        limits=RepartitionLimits(),
    )
    return made, clock


def node_object(*taints):
    return {"metadata": {"name": "a", "uid": "node", "resourceVersion": "3"}, "taints": list(taints)}


def gpu_node_object(**status):
    meta = {"name": "a", "uid": "gn", "resourceVersion": "4", "labels": LABELS}
    return {"metadata": meta, "spec": {}, "status": status}


def current(
    *actions, plans=(), progress=(), wanted=(), nodes=None, gpu_nodes=None, live=(), names=("a",), now=NOW
):
    """Return a round in which a step is written."""
    return RepartitionRound(
        snapshot=FleetSnapshot(),
        fleet=FleetState(now, (RepartitionNode("a", NodePartition("a", wanted=wanted)),), plans),
        step=RepartitionStep(actions=actions, progress=progress),
        nodes={"a": node_object()} if nodes is None else nodes,
        gpu_nodes={"a": gpu_node_object()} if gpu_nodes is None else gpu_nodes,
        pods={},
        gpu_node_names=frozenset(names),
        plans=plan_objects(live),
        recommended=Recommended("0123456789ab", ()),
    )


HOLD = HoldNode("a", "nvidia.com/gpu", NOW - 5.0, NOW + 300.0)
SET = SetLayouts("a", ((GPU, layout(HALVES)),), CUT.name)
EXECUTED = PlanProgress(CUT.name, PlanState.EXECUTING, "Beginning", "begins")


async def test_a_hold_keeps_other_taints_and_counts_from_its_write():
    api, foreign = InMemoryApi(), taint("x", key="team", effect="NoExecute")
    made, clock = executor(api)
    clock.now = NOW + 4.5

    await made.perform(current(HOLD, nodes={"a": node_object(foreign)}))

    assert api.calls == [
        (
            "merge",
            "nodes",
            "a",
            {
                "metadata": {"resourceVersion": "3"},
                "spec": {
                    "taints": [foreign, taint(hold_value(NOW + 5.0, NOW + 300.0), "hold.tangram.dev/gpu")]
                },
            },
        )
    ]
    assert made.expectations.seen == [("write", "nodes", "a")]


async def test_a_mark_is_set_and_taken_by_the_uid_of_the_pod():
    api = InMemoryApi()
    made, _ = executor(api)
    pod = {"metadata": {"namespace": "chat", "name": "llama-1", "uid": "u1"}}
    step = current(MarkPod("chat/llama-1"), UnmarkPod("chat/llama-1"))

    await made.perform(replace(step, pods={"chat/llama-1": pod}))

    annotations = [call[3]["metadata"]["annotations"] for call in api.calls]
    assert annotations == [{DELETION_COST: MARK}, {DELETION_COST: None}]
    assert [call[3]["metadata"]["uid"] for call in api.calls] == ["u1", "u1"]


async def test_a_second_hold_starts_from_the_node_as_the_first_one_left_it():
    api = InMemoryApi()
    made, _ = executor(api)

    await made.perform(current(HOLD, replace(HOLD, resource="nvidia.com/mig-2g.12gb")))

    second = api.calls[1][3]
    assert second["metadata"] == {"resourceVersion": "8"}
    assert [t["key"] for t in second["spec"]["taints"]] == [
        "hold.tangram.dev/gpu",
        "hold.tangram.dev/mig-2g.12gb",
    ]


async def test_a_release_lifts_one_hold_alone():
    api, other = InMemoryApi(), taint("1-2")
    made, _ = executor(api)
    held = node_object(taint("1-2", "hold.tangram.dev/gpu"), other)

    await made.perform(current(ReleaseNode("a", "nvidia.com/gpu"), nodes={"a": held}))

    assert api.calls[0][3]["spec"]["taints"] == [other]


async def test_wanted_layouts_of_other_gpus_stay():
    api = InMemoryApi()
    made, _ = executor(api)

    await made.perform(current(SET, wanted=((OTHER_GPU, layout("gpu")),)))

    body = api.calls[0][3]
    assert (body["metadata"]["resourceVersion"], body["spec"]["planHash"]) == ("4", CUT.name)
    assert [(gpu["id"], gpu["migEnabled"]) for gpu in body["spec"]["gpus"]] == [
        (GPU, True),
        (OTHER_GPU, False),
    ]


async def test_a_layout_that_is_left_as_it_is_is_not_wanted_any_more():
    api = InMemoryApi()
    made, _ = executor(api)

    await made.perform(current(SetLayouts("a", ((GPU, None),), ""), wanted=((GPU, layout(HALVES)),)))

    assert api.calls[0][3]["spec"] == {"gpus": []}


@pytest.mark.parametrize(
    "error",
    [
        ApiError(409, "Conflict", "the object has been modified"),
        ApiError(403, "Forbidden", "denied"),
        ApiError(404, "NotFound", "gone"),
        ApiError(0, "", "no response"),
        ApiError(503, "ServiceUnavailable", "later"),
        ApiError(429, "TooManyRequests", "later", retry_after_s=60.0),
    ],
    ids=lambda error: str(error.status),
)
@pytest.mark.parametrize(("verb", "action"), [("merge", HOLD), ("apply", SET)])
async def test_a_refused_write_is_tried_again_later_and_stops_no_other(verb, action, error, caplog):
    api = InMemoryApi(**{verb: error})
    made, clock = executor(api)
    both = [HOLD, SET] if verb == "merge" else [SET, HOLD]

    await made.perform(current(*both))
    assert [call[0] for call in api.calls] == [verb, "apply" if verb == "merge" else "merge"]
    assert made.expectations.seen == [("write", "gpunodes" if verb == "merge" else "nodes", "a")]

    await made.perform(current(action))
    assert len(api.calls) == 2  # it backs off
    assert made.next_due() == NOW + max(1.0, error.retry_after_s)

    clock.now, api.refusals = NOW + 61.0, {}
    await made.perform(current(action, now=NOW + 61.0))
    assert len(api.calls) == 3
    assert made.next_due() is None
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1


async def test_a_leader_that_lost_its_lease_writes_nothing_more():
    api = InMemoryApi(merge=NotLeader("lost"))
    made, _ = executor(api)

    with pytest.raises(NotLeader):
        await made.perform(current(HOLD, SET))

    assert len(api.calls) == 1


async def test_what_a_slow_round_decided_is_left_to_the_next_one():
    api = InMemoryApi()
    made, clock = executor(api)
    clock.now = NOW + ROUND_S + 0.1

    await made.perform(current(HOLD, SET))

    assert api.calls == []


async def test_nothing_is_done_before_the_plans_are_listed():
    api = InMemoryApi()
    made, _ = executor(api, synced=False)

    await made.perform(current(ReleaseNode("a", "nvidia.com/gpu"), SET))

    assert api.calls == []


# ---- its FleetPlans --------------------------------------------------------------------------------


def new_plan(state=None, since=NOW):
    return PlanRecord(CUT.name, CUT, is_recommended=True, state=state, since=since)


async def test_a_new_plan_is_created_with_its_state():
    api = InMemoryApi()
    made, _ = executor(api)

    await made.perform(current(plans=(new_plan(),), progress=(EXECUTED,)))

    assert api.writes() == [("create", "fleetplans", CUT.name), ("applystatus", "fleetplans", CUT.name)]
    assert api.calls[1][3]["metadata"]["uid"] == "new"
    assert api.calls[1][3]["status"]["state"] == "Executing"


@pytest.mark.parametrize(
    "error", [ApiError(409, "AlreadyExists", ""), ApiError(403, "Forbidden", ""), ApiError(500, "", "")]
)
async def test_a_plan_that_cannot_be_created_stops_nothing(error):
    api = InMemoryApi(create=error)
    made, _ = executor(api)

    await made.perform(current(HOLD, plans=(new_plan(),), progress=(EXECUTED,)))

    assert [call[0] for call in api.calls] == ["create", "merge"]
    assert (made.next_due() is None) == (error.status == 409)


async def test_a_state_that_has_not_changed_is_not_written():
    api, status = InMemoryApi(), plan_status(EXECUTED, new_plan(PlanState.EXECUTING, NOW - 60.0), NOW)
    made, _ = executor(api)
    record = new_plan(PlanState.EXECUTING, NOW - 60.0)

    await made.perform(current(plans=(record,), progress=(EXECUTED,), live=(written(**status),)))

    assert api.calls == []


async def test_an_instant_in_the_future_is_written_anew():
    record = new_plan(PlanState.EXECUTING)
    status = plan_status(EXECUTED, record, NOW) | {"since": "9999-12-31T23:59:59Z"}
    api = InMemoryApi()
    made, _ = executor(api)

    await made.perform(current(plans=(record,), progress=(EXECUTED,), live=(written(**status),)))

    assert api.calls[0][3]["status"]["since"] == "2023-11-14T22:13:20Z"


@pytest.mark.parametrize(
    ("error", "backs_off"),
    [
        (ApiError(404, "NotFound", "gone"), False),
        (ApiError(409, "Conflict", "Precondition failed: UID"), False),
        (ApiError(409, "Conflict", "modified"), True),
        (ApiError(503, "", "later"), True),
    ],
)
async def test_a_plan_that_was_deleted_is_left_to_the_mirror(error, backs_off):
    api = InMemoryApi(applystatus=error)
    made, _ = executor(api)

    await made.perform(current(plans=(new_plan(),), progress=(EXECUTED,), live=(written(),)))

    assert (made.next_due() is not None) == backs_off


async def test_the_oldest_final_plans_are_deleted_and_live_ones_never():
    api = InMemoryApi()
    made, _ = executor(api)
    final = [
        written(name=f"{index:012x}", state="Done", since=f"2023-11-14T21:{index:02}:00Z")
        for index in range(KEPT + 2)
    ]

    await made.perform(current(plans=(new_plan(),), progress=(EXECUTED,), live=(*final, written())))

    deleted = [call for call in api.calls if call[0] == "delete"]
    assert [(call[2], call[3]) for call in deleted] == [
        ("000000000001", {"uid": "u1"}),
        ("000000000000", {"uid": "u1"}),
    ]


async def test_a_rejection_is_remembered_longer_than_other_plans():
    api = InMemoryApi()
    made, _ = executor(api)
    rejected = written(name="abcdefabcdef", state="Rejected", since="2023-11-14T20:00:00Z")
    final = [
        written(name=f"{index:012x}", state="Done", since=f"2023-11-14T21:{index:02}:00Z")
        for index in range(KEPT)
    ]

    await made.perform(current(plans=(new_plan(),), progress=(EXECUTED,), live=(rejected, *final)))

    assert [call for call in api.calls if call[0] == "delete"] == []


# ---- its GPUNodes ----------------------------------------------------------------------------------


async def test_a_gpu_node_without_a_gpunode_gets_one():
    api = InMemoryApi()
    made, _ = executor(api)

    await made.perform(current(gpu_nodes={}))

    assert api.writes() == [("create", "gpunodes", "a")]
    assert api.calls[0][3]["metadata"]["labels"] == LABELS


def removed(api, mirrored=None, live=None, node=None):
    live = gpu_node_object() if live is None else live
    api.put(GPU_NODES, live)
    if node is not None:
        api.put(NODES, node)
    return current(nodes={}, gpu_nodes={"a": mirrored or gpu_node_object()}, names=())


async def test_the_gpunode_of_a_node_that_is_gone_is_deleted_as_it_was_read():
    api = InMemoryApi()
    made, _ = executor(api)

    await made.perform(removed(api))

    assert api.calls[-1] == ("delete", "gpunodes", "a", {"uid": "gn", "resource_version": "4"})
    assert made.expectations.seen == [("deletion", "gpunodes", "a")]


QUARANTINED = gpu_node_object(quarantine=[{"uuid": GPU}])
FOREIGN = {"metadata": {"name": "a", "uid": "gn", "resourceVersion": "4"}, "spec": {}}


@pytest.mark.parametrize(
    "case",
    [
        {"node": node_object()},  # only the mirror does not show it
        {"mirrored": QUARANTINED},
        {"live": QUARANTINED},  # since a moment ago
        {"live": FOREIGN},
        {"mirrored": gpu_node_object() | {"metadata": {"name": "a", "deletionTimestamp": "now"}}},
    ],
    ids=["node", "quarantined", "quarantined just now", "foreign", "deleted already"],
)
async def test_a_gpunode_is_kept_where_its_node_may_exist_or_a_gpu_is_quarantined(case):
    api = InMemoryApi()
    made, _ = executor(api)

    await made.perform(removed(api, **case))

    assert api.writes() == []


async def test_a_gpunode_that_cannot_be_deleted_is_tried_again():
    api = InMemoryApi(delete=ApiError(409, "Conflict", "modified"))
    made, _ = executor(api)

    await made.perform(removed(api))

    assert made.next_due() == NOW + 1.0
    assert made.expectations.seen == []
