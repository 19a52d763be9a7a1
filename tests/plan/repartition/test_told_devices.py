"""What the planner is told of devices that come and go, in worlds of any kind."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from tangram.fleet import PoolPolicy
from tangram.plan.repartition import PlanState, next_step
from tests.support.repartition_worlds import (
    HALF,
    NOW,
    QUARTER,
    WHOLE,
    changes,
    devices_to_tell,
    gpu,
    hold,
    node,
    plan,
    told_devices,
    world,
)

LAYOUTS = ("gpu", "empty", "2g.12gb@0", "2g.12gb@0 2g.12gb@2", "1g.6gb@0 2g.12gb@2", "4g.24gb@0")
RESOURCES = (WHOLE, QUARTER, HALF, "nvidia.com/mig-4g.24gb")
layouts = st.sampled_from(LAYOUTS)


@st.composite
def nodes(draw, name):
    ids = [f"{name}{index}" for index in range(draw(st.integers(0, 3)))]
    held = st.sampled_from([(), (0,), (2,), (None,)])
    gpus = [
        gpu(i, draw(layouts), *draw(held), quarantine=draw(st.sampled_from(["", "", "lost"]))) for i in ids
    ]
    wanted = draw(st.dictionaries(st.sampled_from(ids), layouts)) if ids else {}
    counts = st.dictionaries(st.sampled_from(RESOURCES), st.integers(0, 4))
    return node(
        name,
        *gpus,
        wanted=wanted,
        allocatable=draw(st.none() | counts),
        holds=tuple(map(hold, draw(st.sets(st.sampled_from(RESOURCES), max_size=2)))),
        is_applied=draw(st.booleans()),
        is_current=draw(st.booleans()),
        problem=draw(st.sampled_from(["", "", "DriverUnavailable"])),
    )


@st.composite
def plans(draw, name):
    gpus = draw(st.sets(st.sampled_from(["a0", "a1", "a2", "b0", "b1", "c0"]), min_size=1, max_size=3))
    of = changes(*((gpu_id[0], gpu_id, draw(layouts), draw(layouts)) for gpu_id in sorted(gpus)))
    states = st.sampled_from([None, PlanState.APPROVED, PlanState.EXECUTING, PlanState.EXECUTING])
    return plan(of, draw(states), name, since=NOW - draw(st.sampled_from([0.0, 10.0, 299.0, 300.0, 400.0])))


@settings(max_examples=200)
@given(
    nodes("a"), nodes("b"), plans("p"), plans("q"), st.sampled_from([PoolPolicy.IDLE_ONLY, PoolPolicy.IGNORE])
)
def test_what_is_offered_and_comes_less_what_goes_is_what_the_targets_offer(a, b, first, second, policy):
    result = next_step(world(a, b, plans=(first, second), policy=policy))

    targets = dict(result.targets)
    known = {item.id for one in (a, b) for item in one.partition.gpus}
    for one in (a, b):
        told = told_devices(one, result)
        if any(item.id in targets for item in one.partition.gpus):
            assert +told == devices_to_tell(one, targets)
            assert min(told.values(), default=0) >= 0
        else:
            assert told == Counter(dict(one.allocatable))
    assert targets.keys() <= known
    assert all(device.count > 0 for device in result.coming)
    assert all(count > 0 for _, _, count in result.going)
