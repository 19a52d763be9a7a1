"""Pure parts of the mig-manager backend: entries, layouts by counts, pods in the way, bad input."""

import itertools
import json
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tangram.api.gpu_node import GPUNodeStatus, GPUStatus
from tangram.packing.geometry.board import board
from tangram.packing.geometry.layouts import Placement, creation_order, layouts, multiset
from tangram.partition.layouts import WantedLayout
from tangram.partition.mig_manager.blocking_pods import blocking_pods
from tangram.partition.mig_manager.config_entries import (
    CONFIG_KEY,
    UNUSED_KEPT,
    ConfigTooLarge,
    MIGConfig,
    parse_entries,
    with_entry,
)
from tangram.partition.mig_manager.managed_node import GPUPod, gpu_pods, managed_node
from tangram.partition.mig_manager.node_counts import (
    WHOLE,
    GPUCounts,
    entry,
    entry_name,
    offered,
    parse_entry,
)
from tangram.partition.mig_manager.observed_counts import observed_counts
from tangram.partition.mig_manager.readiness import readiness
from tangram.partition.mig_manager.step import step
from tangram.partition.mig_manager.wanted_counts import wanted_counts
from tangram.partition.status.conditions import NodeConditionState, condition, is_over
from tangram.partition.status.node_record import FormerStatus

NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)
H100 = board("H100-80GB-SXM")
CUT = GPUCounts(mig_enabled=True, instances=(("3g.40gb", 1), ("4g.40gb", 1)))
SEVEN = GPUCounts(mig_enabled=True, instances=(("1g.10gb", 7),))
EMPTY = GPUCounts(mig_enabled=True)
CONFIG = MIGConfig("tangram-mig-config", "cluster-policy", "tangram-mig-config")
LABELS = {
    "nvidia.com/gpu.count": "2",
    "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
    "nvidia.com/mig.capable": "true",
    "nvidia.com/mig.strategy": "mixed",
    "nvidia.com/gpu.deploy.mig-manager": "true",
}


def node(labels=LABELS, allocatable=None, **status):
    obj = {"metadata": {"name": "a", "uid": "u", "resourceVersion": "1", "labels": labels}}
    devices = {"nvidia.com/gpu": "2"} if allocatable is None else allocatable
    nodeinfo = {"bootID": "b"}
    return managed_node(obj | {"status": {"nodeInfo": nodeinfo, "allocatable": devices} | status})


def stepped(labels=LABELS, spec=None, pods=(), config=CONFIG, stored=None, allocatable=None):
    gpu_node = {"metadata": {"name": "a", "generation": 3}, "spec": spec or {}, "status": stored or {}}
    return step(gpu_node, node(labels, allocatable), tuple(pods), config, NOW, "0.1")


def applied(done):
    return next(c for c in done.status["conditions"] if c["type"] == "Applied")


def ready(done):
    return next(c for c in done.status["conditions"] if c["type"] == "Ready")


def want(*placements, gpu="index-0", enabled=True):
    instances = [{"profile": p.split("@")[0], "start": int(p.split("@")[1])} for p in placements]
    return {"gpus": [{"id": gpu, "migEnabled": enabled, "instances": instances}]}


# Entries


def test_an_entry_names_every_gpu_of_the_node_and_is_read_again_by_its_name():
    counts = (CUT, WHOLE, CUT, EMPTY)

    written = entry(counts)

    assert written == [
        {"devices": [0, 2], "mig-enabled": True, "mig-devices": {"3g.40gb": 1, "4g.40gb": 1}},
        {"devices": [1], "mig-enabled": False},
        {"devices": [3], "mig-enabled": True, "mig-devices": {}},
    ]
    assert parse_entry(written, entry_name(counts)) == counts
    assert len(entry_name(counts)) <= 63


def test_different_layouts_have_different_names():
    gpus = (CUT, SEVEN, WHOLE, EMPTY)
    names = {entry_name(counts) for counts in itertools.product(gpus, repeat=3)}

    assert len(names) == 64


@pytest.mark.parametrize(
    "raw",
    [
        None,
        "x",
        [],
        [3],
        [{"devices": "all", "mig-enabled": True}],
        [{"devices": [0], "mig-enabled": 1, "mig-devices": {"3g.40gb": 1, "4g.40gb": 1}}],
        [{"devices": [0], "mig-enabled": True, "mig-devices": {"3g.40gb": 2, "4g.40gb": 1}}],
        [{"devices": [0], "mig-enabled": True, "mig-devices": {"3g.40gb": True, "4g.40gb": 1}}],
        [{"devices": [1e999], "mig-enabled": True, "mig-devices": []}],
    ],
)
def test_an_edited_entry_is_not_believed(raw):
    assert parse_entry(raw, entry_name((CUT,))) is None
    assert not MIGConfig("c", entries={entry_name((CUT,)): raw}).has((CUT,))


def test_the_config_map_is_one_that_mig_parted_reads_and_keeps_what_others_wrote():
    theirs = {"all-balanced": [{"devices": "all", "mig-enabled": True, "mig-devices": {"1g.10gb": 2}}]}

    document = yaml.safe_load(with_entry(theirs, (CUT, CUT), ()))

    assert document["version"] == "v1"
    assert document["mig-configs"]["all-disabled"] == [{"devices": "all", "mig-enabled": False}]
    assert document["mig-configs"]["all-balanced"] == theirs["all-balanced"]
    assert document["mig-configs"][entry_name((CUT, CUT))] == entry((CUT, CUT))


def many(count):
    return [tuple([CUT] * size + [SEVEN] * (60 - size)) for size in range(count)]


def test_old_entries_are_pruned_and_those_in_use_stay():
    entries = {}
    for counts in many(40):
        text = with_entry(entries, counts, [entry_name(many(1)[0])])
        entries = parse_entries({CONFIG_KEY: text})

    ours = [name for name in entries if name.startswith("tangram-")]
    assert ours == [entry_name(c) for c in (many(1)[0], *many(40)[-UNUSED_KEPT - 1 :])]


def test_an_existing_entry_is_never_changed_by_another():
    first = parse_entries({CONFIG_KEY: with_entry({}, (CUT,), ())})
    both = parse_entries({CONFIG_KEY: with_entry(first, (SEVEN,), [entry_name((CUT,))])})

    assert both[entry_name((CUT,))] == first[entry_name((CUT,))]


def test_entries_in_use_that_do_not_fit_are_an_error():
    theirs = {f"their-{number}": [{"devices": "all", "note": "x" * 10_000}] for number in range(100)}

    with pytest.raises(ConfigTooLarge, match="900000 bytes"):
        with_entry(theirs, (CUT,), ())


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ({CONFIG_KEY: 7}, "is no text"),
        ({CONFIG_KEY: "a: [", "other": "x"}, "not YAML"),
        ({CONFIG_KEY: "- 1"}, "no mapping"),
        ({CONFIG_KEY: "mig-configs: [1]"}, "no mapping"),
        ({CONFIG_KEY: "mig-configs: {1: []}"}, "no mapping"),
        ({CONFIG_KEY: "a: &a [x, x]\nb: &b [*a, *a]\n" * 2}, "not YAML"),
    ],
)
def test_a_config_map_of_another_form_is_told_and_not_overwritten(data, problem):
    found = parse_entries(data)
    assert problem in found

    done = stepped(spec=want("4g.40gb@0"), config=MIGConfig("c", "p", "c", problem=found))

    assert (ready(done)["reason"], done.action) == ("ConfigMapUnreadable", None)


@pytest.mark.parametrize("data", [None, {}, {CONFIG_KEY: ""}, [], "x"])
def test_an_empty_config_map_has_no_entries(data):
    assert parse_entries(data) == {}


# Layouts that counts can express


def test_each_legal_layout_becomes_the_counts_that_default_creation_yields():
    for layout in layouts(H100):
        found = wanted_counts([WantedLayout("index-0", True, layout)], (None,), None, H100)

        assert found == (GPUCounts(mig_enabled=True, instances=multiset(layout)),)
        order = creation_order(H100, multiset(layout))
        assert multiset(order) == found[0].instances


def test_counts_that_no_order_of_creation_yields_are_refused(monkeypatch):
    """No board of the catalog has such; one that NVIDIA adds may."""
    monkeypatch.setattr("tangram.partition.mig_manager.wanted_counts.creation_order", lambda *_: None)

    done = stepped(spec=want("3g.40gb@4"))

    assert (applied(done)["reason"], done.action) == ("IllegalLayout", None)
    assert "at default positions, which cannot give 1x 3g.40gb" in applied(done)["message"]


@pytest.mark.parametrize(
    ("spec", "reason", "text"),
    [
        (want("4g.40gb@4"), "IllegalLayout", "4g.40gb may start at 0"),
        (want("4g.40gb@0", "4g.40gb@0"), "InvalidSpec", "same start"),
        (want("9g.10gb@0"), "IllegalLayout", "no profile"),
        (want("4g.40gb@0", "2g.20gb@2"), "IllegalLayout", "overlaps"),
        (want("4g.40gb@0", gpu="index-2"), "GPUMissing", "index-0 to index-1"),
        (want("4g.40gb@0", gpu="GPU-00000000-0000-0000-0000-00000000000a"), "GPUMissing", "by index"),
        (want("4g.40gb@0", enabled=False), "InvalidSpec", "MIG mode"),
        ({"gpus": 7}, "InvalidSpec", "gpus"),
        ("x", "InvalidSpec", ""),
    ],
)
def test_a_spec_that_cannot_be_done_is_told(spec, reason, text):
    done = stepped(spec=spec)

    assert (applied(done)["status"], applied(done)["reason"], done.action) == ("False", reason, None)
    assert text in applied(done)["message"]


def test_a_gpu_that_is_not_listed_and_not_known_is_not_guessed():
    labels = LABELS | {"nvidia.com/mig-1g.10gb.count": "3"}

    done = stepped(
        labels, want("4g.40gb@0"), allocatable={"nvidia.com/gpu": "1", "nvidia.com/mig-1g.10gb": "3"}
    )

    assert (applied(done)["reason"], done.action) == ("UnknownLayout", None)
    assert "index-1" in applied(done)["message"]


# What has to be set


@pytest.mark.parametrize(
    ("change", "reason", "text"),
    [
        ({"nvidia.com/mig.capable": None}, "NotMIGCapable", "nvidia.com/mig.capable=true"),
        ({"nvidia.com/mig.capable": "false"}, "NotMIGCapable", "nvidia.com/mig.capable=true"),
        ({"nvidia.com/gpu.deploy.mig-manager": None}, "MIGManagerNotDeployed", "migManager.enabled=true"),
        ({"nvidia.com/gpu.deploy.mig-manager": "false"}, "MIGManagerNotDeployed", "mig-manager=true"),
        ({"nvidia.com/mig.strategy": "single"}, "MIGStrategy", "mig.strategy=mixed"),
        ({"nvidia.com/mig.strategy": None}, "MIGStrategy", "mig.strategy=mixed"),
        ({"nvidia.com/gpu.deploy.dcgm": "paused-for-driver-upgrade"}, "ComponentsPaused", "gpu.deploy.dcgm"),
        ({"nvidia.com/gpu.sharing-strategy": "mps"}, "SharedDevices", "gpu.sharing-strategy=mps"),
        ({"nvidia.com/gpu.count": "0"}, "GPUsUnknown", "nvidia.com/gpu.count"),
        ({"nvidia.com/gpu.count": "9" * 5000}, "GPUsUnknown", "nvidia.com/gpu.count"),
        ({"nvidia.com/gpu.count": "-1"}, "GPUsUnknown", "nvidia.com/gpu.count"),
    ],
)
def test_a_node_that_mig_manager_does_not_serve_says_what_to_set(change, reason, text):
    labels = {name: value for name, value in (LABELS | change).items() if value is not None}

    done = stepped(labels, want("4g.40gb@0"))

    assert (ready(done)["status"], ready(done)["reason"]) == ("False", reason)
    assert text in ready(done)["message"]
    assert (applied(done)["status"], applied(done)["reason"], done.action) == ("Unknown", "NotReady", None)


def test_without_a_cluster_policy_nothing_is_done():
    done = stepped(spec=want("4g.40gb@0"), config=MIGConfig("c"))

    assert (ready(done)["reason"], done.action) == ("NoClusterPolicy", None)


def test_entries_that_nodes_name_are_to_be_copied_before_the_config_map_is_named():
    config = MIGConfig("ours", "policy", "theirs", missing=("all-balanced",))

    found = readiness(node(), config, under_way=False)

    assert "copy all-balanced, then: kubectl patch clusterpolicies.nvidia.com policy" in found.message


# Pods in the way

GPUS = (WHOLE, CUT, SEVEN, EMPTY)
RESOURCES = ("nvidia.com/gpu", "nvidia.com/mig-4g.40gb", "nvidia.com/mig-3g.40gb", "nvidia.com/mig-1g.10gb")


def in_the_way(actual, wanted, known):
    """Whether a pod stands in the way, by resource, of a node whose GPUs are really `actual`."""
    observed = tuple(gpu if is_known else None for gpu, is_known in zip(actual, known, strict=True))
    there = node(allocatable={name: str(count) for name, count in offered(actual).items()})
    pods = [GPUPod("ml", resource, {resource: 1}) for resource in RESOURCES]
    blocking = blocking_pods(there, pods, observed, wanted)
    return {pod.name for pod in blocking}


def test_no_device_that_mig_manager_takes_away_is_left_out_whatever_is_known():
    checked = 0
    for actual in itertools.product(GPUS, repeat=2):
        for wanted in itertools.product(GPUS, repeat=2):
            for known in itertools.product((True, False), repeat=2):
                pairs = list(zip(actual, wanted, strict=True))
                if any(found.mig_enabled != gpu.mig_enabled for found, gpu in pairs):
                    cleared = offered(actual)  # the mode of one changes: all are cleared or reset
                else:
                    cleared = offered(found for found, gpu in pairs if found != gpu)

                assert set(cleared) <= in_the_way(actual, wanted, known), (actual, wanted, known)
                checked += 1

    assert checked == 16 * 16 * 4


def test_pods_on_gpus_that_stay_are_not_in_the_way():
    assert in_the_way((CUT, SEVEN), (EMPTY, SEVEN), (True, True)) == set(RESOURCES[1:3])
    assert in_the_way((EMPTY, SEVEN), (CUT, SEVEN), (False, True)) == set()
    assert in_the_way((CUT, WHOLE), (SEVEN, WHOLE), (True, True)) == set(RESOURCES[1:3])
    assert in_the_way((CUT, WHOLE), (WHOLE, WHOLE), (True, True)) == set(RESOURCES)
    assert in_the_way((CUT, CUT), (CUT, CUT), (True, True)) == set()


def test_enough_other_gpus_of_a_kind_prove_nothing():
    assert "nvidia.com/mig-1g.10gb" in in_the_way((SEVEN, SEVEN), (EMPTY, SEVEN), (True, True))


def test_a_node_that_offers_nothing_proves_nothing():
    there = node(allocatable={})
    pods = (GPUPod("ml", "a", {"nvidia.com/mig-1g.10gb": 1}),)

    assert blocking_pods(there, pods, (None, SEVEN), (EMPTY, SEVEN)) == pods


# What is known


def test_a_recorded_layout_counts_in_the_same_boot_only():
    gpus = {"index-0": GPUStatus(id="index-0", index=0, mig_mode="Enabled")}
    there = node({}, {"nvidia.com/mig-1g.10gb": "7"})

    def observed(boot):
        former = FormerStatus(gpus, {}, (), "MIGManager", "u", boot)
        return observed_counts(there, former, (EMPTY,), 1)

    assert observed("b") == (None,)  # the node offers slices that no GPU is known to have
    idle = node({}, {})
    former = FormerStatus(gpus, {}, (), "MIGManager", "u", "b")
    assert observed_counts(idle, former, (EMPTY,), 1) == (EMPTY,)
    assert observed_counts(idle, FormerStatus(gpus, {}, (), None, "u", "c"), (EMPTY,), 1) == (None,)
    assert observed_counts(idle, FormerStatus(gpus, {}, (), None, "v", "b"), (EMPTY,), 1) == (None,)
    assert observed_counts(idle, former, None, 1) == (None,)


# Deadlines

WAITING = NodeConditionState("False", "Applying", "m", "tangram-x", 60.0)


def test_a_wait_is_over_at_its_deadline_and_begins_anew_for_another_object():
    began = condition("Applied", WAITING, None, 1, NOW)
    later = NOW + timedelta(seconds=60)

    assert not is_over(None, WAITING, later)
    assert not is_over(began, WAITING, later - timedelta(seconds=1))
    assert is_over(began, WAITING, later)
    assert not is_over(began, NodeConditionState("False", "Applying", "m", "tangram-y", 60.0), later)
    assert condition("Applied", WAITING, began, 1, later).deadline == began.deadline


@pytest.mark.parametrize("deadline", ["9999-12-31T23:59:59Z", "soon", "", None])
def test_a_deadline_that_no_wait_has_is_replaced(deadline):
    edited = condition("Applied", WAITING, None, 1, NOW).model_copy(update={"deadline": deadline})

    found = condition("Applied", WAITING, edited, 1, NOW + timedelta(seconds=30))

    assert found.deadline == "2030-01-01T12:01:30Z"
    assert not is_over(edited, WAITING, NOW)


# Bad input

JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from(
    [
        *LABELS,
        "nvidia.com/mig.config",
        "nvidia.com/mig.config.state",
        "nvidia.com/mig-1g.10gb.count",
        "nvidia.com/gpu",
        "nvidia.com/mig-1g.10gb",
    ]
)
VALUES = JUNK | st.sampled_from(["pending", "success", "failed", "9" * 30, "2", "tangram-retry", "true"])


@given(
    labels=st.dictionaries(NAMES, VALUES) | JUNK,
    devices=st.dictionaries(NAMES, VALUES) | JUNK,
    status=st.fixed_dictionaries(
        {},
        optional={
            "gpus": JUNK,
            "conditions": JUNK,
            "nodeUID": JUNK,
            "bootID": JUNK,
            "migConfig": JUNK,
            "quarantine": JUNK,
        },
    )
    | JUNK,
    spec=JUNK | st.just(want("4g.40gb@0")),
    entries=st.dictionaries(st.text(max_size=5), JUNK),
)
def test_no_labels_quantities_statuses_or_entries_break_a_step(labels, devices, status, spec, entries):
    obj = {
        "metadata": {"name": "a", "labels": labels},
        "status": {"allocatable": devices, "capacity": devices},
    }
    gpu_node = {"metadata": {"name": "a"}, "spec": spec, "status": status}
    config = MIGConfig("c", "p", "c", entries)

    done = step(gpu_node, managed_node(obj), (), config, NOW, "0.1")

    if done is not None:
        GPUNodeStatus.model_validate(done.status)
        json.dumps(done.status)


def test_pods_are_those_of_the_node_that_hold_gpus_and_have_not_ended():
    def pod(name, resources, where="a", phase="Running"):
        container = {"resources": {"limits": resources}}
        spec = {"nodeName": where, "containers": [container]}
        return {"metadata": {"namespace": "d", "name": name}, "spec": spec, "status": {"phase": phase}}

    mirrored = {"metadata": {"namespace": "d", "name": "m"}, "nodeName": "a", "phase": "Pending"}
    pods = [
        pod("slice", {"nvidia.com/mig-1g.10gb": "1"}),
        pod("shared", {"nvidia.com/gpu.shared": "1"}),
        pod("none", {"cpu": "1"}),
        pod("other", {"nvidia.com/gpu": "1"}, where="b"),
        pod("over", {"nvidia.com/gpu": "1"}, phase="Failed"),
        mirrored | {"requests": {"nvidia.com/gpu": 2}},
    ]

    found = gpu_pods(pods, "a")

    assert [(p.name, dict(p.requests)) for p in found] == [
        ("m", {"nvidia.com/gpu": 2}),
        ("shared", {"nvidia.com/gpu": 1}),
        ("slice", {"nvidia.com/mig-1g.10gb": 1}),
    ]


def test_a_node_is_read_as_the_mirrors_keep_it_too():
    meta = {"name": "a", "uid": "u", "resourceVersion": "7", "labels": LABELS}
    kept = {"metadata": meta, "allocatable": {"nvidia.com/gpu": "2", "cpu": "8"}, "bootID": "b"}

    found = managed_node(kept)

    assert (found.boot_id, found.version, found.allocatable) == ("b", "7", Counter({"nvidia.com/gpu": 2}))


def test_a_placement_is_a_start_and_a_profile():
    assert wanted_counts(
        [WantedLayout("index-0", True, (Placement(0, "4g.40gb"), Placement(4, "3g.40gb")))],
        (None,),
        None,
        H100,
    ) == (CUT,)
