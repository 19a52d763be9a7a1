"""Events that a change of the status records."""

import pytest

from tangram.plan import transitions

CONDITIONS = ("Ready", "Accepted", "ModelReady", "Placed", "Available", "ScalingActive", "SLOMet")


def state(variant="abc", display="L4 x1", scale=None, **conditions):
    block = {
        "conditions": [
            {"type": kind, "status": status, "reason": reason, "message": f"{kind} says {reason}"}
            for kind, (status, reason) in conditions.items()
        ]
    }
    if variant:
        block["placement"] = {"variant": variant, "display": display}
    if scale:
        block["lastScale"] = scale
    return block


GOOD = {
    "Ready": ("True", "AllReplicasReady"),
    "Accepted": ("True", "Valid"),
    "ModelReady": ("True", "Inspected"),
    "Placed": ("True", "Placed"),
    "Available": ("True", "MinReplicasAvailable"),
    "ScalingActive": ("True", "MetricsFresh"),
    "SLOMet": ("True", "WithinTarget"),
}


def reasons(old, new):
    return [(note.type, note.reason) for note in transitions(old, new)]


def test_no_change_is_no_event():
    assert reasons(state(**GOOD), state(**GOOD)) == []


def test_another_message_alone_is_no_event():
    changed = state(**GOOD)
    for condition in changed["conditions"]:
        condition["message"] += " and more"

    assert reasons(state(**GOOD), changed) == []


def test_the_first_ready_status_reports_model_shape_and_readiness():
    assert reasons({}, state(**GOOD)) == [
        ("Normal", "ModelInspected"),
        ("Normal", "PlacementSelected"),
        ("Normal", "Ready"),
    ]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"Accepted": ("False", "ModelNameCollision")}, ("Warning", "ModelNameCollision")),
        ({"ModelReady": ("False", "NotFound")}, ("Warning", "NotFound")),
        ({"Placed": ("False", "InsufficientCapacity")}, ("Warning", "InsufficientCapacity")),
        ({"Available": ("False", "ReplicasNotStarting")}, ("Warning", "ReplicasNotStarting")),
        ({"Ready": ("False", "RolloutInProgress")}, ("Warning", "NotReady")),
        ({"SLOMet": ("False", "TTFTExceeded")}, ("Warning", "SLOViolated")),
        ({"ScalingActive": ("False", "MetricsMissing")}, ("Warning", "MetricsUnavailable")),
        ({"ScalingActive": ("False", "MetricsStale")}, ("Warning", "MetricsUnavailable")),
    ],
)
def test_each_change_for_the_worse_is_one_event(change, expected):
    assert reasons(state(**GOOD), state(**GOOD | change)) == [expected]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"Ready": ("False", "ReplicasStarting")}, ("Normal", "Ready")),
        ({"SLOMet": ("False", "TTFTExceeded")}, ("Normal", "SLORecovered")),
        ({"ScalingActive": ("False", "MetricsMissing")}, ("Normal", "MetricsRecovered")),
        ({"ModelReady": ("False", "NotFound")}, ("Normal", "ModelInspected")),
    ],
)
def test_each_change_for_the_better_is_one_event(change, expected):
    assert reasons(state(**GOOD | change), state(**GOOD)) == [expected]


@pytest.mark.parametrize("reason", ["ReplicasStarting", "WaitingForPlacement"])
def test_a_normal_start_records_no_warning(reason):
    waiting = GOOD | {"Available": ("False", reason), "Ready": ("False", reason), "SLOMet": ("Unknown", "x")}

    assert all(kind == "Normal" for kind, _ in reasons({}, state(**waiting)))


def test_stale_metrics_that_go_missing_are_reported_once():
    old = state(**GOOD | {"ScalingActive": ("False", "MetricsStale")})

    assert reasons(old, state(**GOOD | {"ScalingActive": ("False", "MetricsMissing")})) == []


def test_a_move_and_a_scaling_are_each_one_event():
    scale = {"time": "2026-11-21T10:00:00Z", "from": 2, "to": 1, "reason": "LoadFell"}
    old, new = state(**GOOD), state("def", "A10 x1", scale, **GOOD)

    assert reasons(old, new) == [("Normal", "PlacementChanged"), ("Normal", "ScaledDown")]
    assert reasons(new, new) == []
