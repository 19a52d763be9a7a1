"""Since which generation nothing but spec.replicas has changed."""

import pytest

from tangram.api.llm_deployment.revision import revision
from tangram.fleet import Revision

SPEC = {"model": {"uri": "image:///m"}, "scaling": {"minReplicas": 1}}


def obj(generation, spec, recorded=None):
    status = {} if recorded is None else {"status": {"revision": recorded}}
    return {"metadata": {"generation": generation}, "spec": spec} | status


def block(found):
    return {"generation": found.generation, "hash": found.hash}


def test_without_a_record_it_is_that_of_the_present_generation():
    assert revision(obj(4, SPEC)).generation == 4


def test_a_write_of_replicas_alone_keeps_it_whatever_the_order_of_keys():
    first = revision(obj(4, SPEC))
    spec = dict(reversed(SPEC.items())) | {"replicas": 3}

    assert revision(obj(9, spec, block(first))) == first
    assert revision(obj(10, SPEC, block(first))) == first


def test_any_other_write_begins_a_new_one():
    first = revision(obj(4, SPEC))
    found = revision(obj(5, SPEC | {"paused": True, "replicas": 3}, block(first)))

    assert found.generation == 5
    assert found.hash != first.hash


@pytest.mark.parametrize(
    "recorded",
    ["x", {}, {"generation": "4"}, {"generation": True}, {"hash": 3}, {"generation": 0}, {"generation": 99}],
)
def test_a_record_that_cannot_be_is_none(recorded):
    known = revision(obj(4, SPEC)).hash
    found = recorded if isinstance(recorded, str) else {"generation": 1, "hash": known} | recorded
    if found == {"generation": 1, "hash": known}:
        found = {}

    assert revision(obj(4, SPEC, found)) == Revision(4, known)
