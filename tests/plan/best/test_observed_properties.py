"""Properties of observed fleets: a legal problem, one plan for any order of observation and from a file."""

import json
import random
from dataclasses import fields, replace

import yaml
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tangram.catalog import InputError
from tangram.packing import validate
from tangram.plan.fleet_input.documents.snapshot_file import read_snapshot, snapshot_document
from tangram.plan.fleet_input.observed.snapshot_input import snapshot_input
from tangram.plan.inputs_hash import inputs_hash
from tangram.plan.place.best.packing_problem import fleet_problem
from tangram.plan.recommend import recommend
from tests.support.observed_fleets import fleets

slow = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def shuffled(seed, snapshot, intents):
    rng = random.Random(seed)

    def mixed(items):
        return tuple(rng.sample(items, len(items)))

    lists = {f.name: getattr(snapshot, f.name) for f in fields(snapshot)}
    lists = {name: mixed(value) for name, value in lists.items() if isinstance(value, tuple)}
    return replace(snapshot, **lists), mixed(intents)


@settings(slow, max_examples=60)
@given(fleets())
def test_an_observed_fleet_is_always_a_legal_problem(case):
    validate(fleet_problem(snapshot_input(*case)).problem)


@settings(slow, max_examples=60)
@given(fleets(), st.integers(0, 99))
def test_the_order_of_what_is_observed_does_not_matter(case, seed):
    assert inputs_hash(snapshot_input(*shuffled(seed, *case))) == inputs_hash(snapshot_input(*case))


@settings(slow, max_examples=60)
@given(fleets())
def test_a_snapshot_reads_as_it_was_written(case):
    document = snapshot_document(*case)

    assert read_snapshot(json.loads(json.dumps(document)), "file") == case
    assert (
        read_snapshot(yaml.load(yaml.dump(document, Dumper=yaml.CSafeDumper), yaml.CSafeLoader), "file")
        == case
    )


@settings(slow, max_examples=8)
@given(fleets(), st.integers(0, 99))
def test_the_plan_of_a_snapshot_is_the_plan_of_the_fleet_byte_for_byte(case, seed):
    document = json.loads(json.dumps(snapshot_document(*shuffled(seed, *case))))

    here, there = recommend(*case), recommend(*read_snapshot(document, "file"))

    assert there.inputs_hash == here.inputs_hash
    assert json.dumps(there.document) == json.dumps(here.document)
    assert there == here


@settings(slow, max_examples=8)
@given(fleets())
def test_strangers_stay_where_they_are(case):
    before = {
        (gpu.id, i.profile, i.start)
        for gpu in snapshot_input(*case).gpus
        for i in gpu.instances
        if i.owner == "(others)"
    }
    after = {
        (gpu["id"], i["profile"], i["start"])
        for gpu in recommend(*case).document["gpus"]
        for i in gpu["instances"]
        if i["owner"] == "(others)"
    }
    assert after == before


leaves = st.sampled_from((None, -1, 0, 2**60, 1e308, True, "", "x", [], {}, ["x"], {"x": 1}))


@settings(slow, max_examples=100)
@given(fleets(), leaves, st.randoms(use_true_random=False))
def test_a_damaged_snapshot_is_refused_with_its_path_or_planned(case, leaf, rng):
    document = json.loads(json.dumps(snapshot_document(*case)))
    places = list(_places(document))
    assume(places)
    holder, key = rng.choice(places)
    if rng.random() < 0.3:
        del holder[key]
    else:
        holder[key] = leaf
    refused = ""
    try:
        validate(fleet_problem(snapshot_input(*read_snapshot(document, "file"))).problem)
    except InputError as error:
        refused = str(error)

    assert not refused or refused.startswith("file")


def _places(value):
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield value, key
        yield from _places(inner)
