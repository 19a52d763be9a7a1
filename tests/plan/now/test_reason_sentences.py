"""Each reason against a shape has one sentence, in statuses and in plans."""

import inspect

import pytest

from tangram.eligibility.explanation.shape_reasons import (
    Dearer,
    HeldBack,
    NotEnoughGPUs,
    OverBudget,
    TooFewPlaces,
    TooManyReplicas,
    WorseFleet,
)
from tangram.eligibility.explanation.words import reason_sentence
from tangram.fleet import Shape
from tangram.plan.reasons import conditions, placement
from tangram.plan.words.conditions import sentence
from tangram.plan.words.placement import sentence as of_placement


@pytest.mark.parametrize(
    ("reason", "word", "sentence"),
    [
        (
            NotEnoughGPUs(5, 4, if_empty=True),
            "NotEnoughGPUs",
            "needs 5 replicas, the fleet has room for 4 if it were empty",
        ),
        (
            NotEnoughGPUs(1, 0, if_empty=False),
            "NotEnoughGPUs",
            "needs 1 replica, free and own devices suffice for 0",
        ),
        (TooManyReplicas(3, 2), "MaxReplicas", "needs 3 replicas, scaling.maxReplicas allows 2"),
        (OverBudget(4.5, 4.0), "Budget", "costs 4.50 $/h, placement.budgetPerHour is 4.00"),
        (HeldBack("QuotaExceeded", "quota gpus: 0 of 2 left"), "QuotaExceeded", "quota gpus: 0 of 2 left"),
        (Dearer(0.18), "Dearer", "costs 0.18 $/h more by its share of GPUs"),
        (Dearer(0.0), "Dearer", "costs no less by its share of GPUs"),
        (
            Dearer(-1.5),
            "Dearer",
            "costs 1.50 $/h less, but running replicas are not moved only to save money",
        ),
        (
            TooFewPlaces(),
            "Spread",
            "costs no more, but is free on too few nodes or zones for placement.spread",
        ),
        (
            WorseFleet(proved=True, one_shape=True),
            "Fleet",
            "costs no more by its share of GPUs, but the whole fleet would neither cost less nor serve more"
            " with one shape per LLMDeployment",
        ),
        (
            WorseFleet(proved=False),
            "Fleet",
            "costs no more by its share of GPUs, but no better plan of the whole fleet was found with it",
        ),
    ],
)
def test_a_reason_has_its_word_and_its_sentence(reason, word, sentence):
    assert (reason.word, reason_sentence(reason)) == (word, sentence)


@pytest.mark.parametrize("module", [placement, conditions], ids=["placement", "conditions"])
def test_each_record_of_a_plan_has_a_sentence(module):
    classes = inspect.getmembers(module, inspect.isclass)
    records = {record for _, record in classes if record.__module__ == module.__name__}

    assert len(records) > 15
    assert records <= sentence.registry.keys()


@pytest.mark.parametrize(("free", "ends"), [(0, "2 of them need a free gang"), (2, "2 gangs")])
def test_replicas_of_several_gpus_stand_on_gangs(free, ends):
    reason = placement.RunsWhereNoneIsPlaced(2, 2 - free, Shape("L4", "gpu", 4), (), True, ("east",))

    assert f"; if they end, {ends} of 4 L4" in of_placement(reason)


def test_what_is_no_record_has_no_sentence():
    with pytest.raises(TypeError, match="no sentence for str"):
        sentence("text")
