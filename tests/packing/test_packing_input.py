"""Problems that contradict themselves are refused by the name of the field, before anything is solved."""

from dataclasses import replace

import pytest

from tangram.catalog import InputError
from tangram.packing import (
    Allotment,
    Demand,
    GPUState,
    GrowablePool,
    Instance,
    Offer,
    Part,
    Problem,
    Spread,
    from_json,
    to_json,
    validate,
)
from tangram.packing.geometry.layouts import IllegalLayout

SKU = "H100-80GB-SXM"
GPU = GPUState("g0", "n0", SKU, mig_enabled=True)
ASK = Demand("a", slices=(Part(SKU, "1g.10gb", 1, 1),))
OFFER = Offer(SKU, "1g.10gb", 1, 2.0, 0.4)
UNKNOWN = Part(SKU, "9g.99gb", 1, 1)
NONE, ONE = Allotment((), 1.0), Allotment((Part(SKU, "1g.10gb", 1, 1),), 0.0)
GOOD = Problem((GPU,), (ASK,))


def gpu(**changes) -> Problem:
    return replace(GOOD, gpus=(replace(GPU, **changes),))


def asks(*parts, **changes) -> Problem:
    return replace(GOOD, demands=(replace(ASK, slices=parts, **changes),))


def offers(*offers, **changes) -> Problem:
    return replace(GOOD, demands=(Demand("a", offers=offers, rate=3.0, **changes),))


def allots(*allotments, **changes) -> Problem:
    return replace(GOOD, demands=(Demand("a", allotments=allotments, **changes),))


def test_a_good_problem_passes():
    validate(GOOD)


@pytest.mark.parametrize(
    ("problem", "field", "says"),
    [
        (replace(GOOD, gpus=(GPU, GPU)), "gpus", "'g0' is there more than once"),
        (replace(GOOD, demands=(ASK, ASK)), "demands", "'a' is there more than once"),
        (gpu(instances=(Instance("4g.40gb", 4),)), "gpus[g0].instances", "may start at 0"),
        (gpu(instances=(Instance("3g.40gb", 0), Instance("1g.10gb", 2))), "gpus[g0].instances", "overlaps"),
        (gpu(instances=(Instance("9g.99gb", 0),)), "gpus[g0].instances", "no profile '9g.99gb'"),
        (gpu(mig_enabled=False, instances=(Instance("1g.10gb", 0),)), "gpus[g0].instances", "migEnabled"),
        (gpu(sku="L4"), "gpus[g0].migEnabled", "cannot cut L4"),
        (gpu(sku="NO-SUCH"), "prices.NO-SUCH", "no price"),
        (gpu(instances=(Instance("1g.10gb", 0, "a", gang="x"),)), "gpus[g0].instances", "joins no gang"),
        (
            gpu(instances=(Instance("1g.10gb", 0, move_cost=-1.0),)),
            "gpus[g0].instances[1g.10gb@0].moveCost",
            "zero",
        ),
        (gpu(price_per_hour=-1.0), "gpus[g0].pricePerGPUHour", "zero or more"),
        (replace(GOOD, prices=((SKU, -3.0),)), f"prices.{SKU}", "zero or more"),
        (replace(GOOD, prices=((SKU, float("nan")),)), f"prices.{SKU}", "finite"),
        (replace(GOOD, horizon_h=0.0), "horizonHours", "above zero"),
        (replace(GOOD, move_budget=-1), "moveBudget", "zero or more"),
        (asks(Part(SKU, "1g.10gb", 2, 1)), "demands[a].slices", "no NVLink"),
        (asks(Part(SKU, "1g.5gb", 1, 1)), "demands[a].slices", "no MIG profile"),
        (asks(Part(SKU, "1g.10gb", 1, -1)), "demands[a].slices", "at least 0"),
        (asks(Part(SKU, "1g.10gb", 1, 1), Part(SKU, "1g.10gb", 1, 2)), "demands[a].slices", "more than once"),
        (offers(OFFER, OFFER), "demands[a].offers", "more than once"),
        (allots(ONE), "demands[a].allotments", "one of them has no parts"),
        (allots(NONE, NONE), "demands[a].allotments", "more than once"),
        (allots(NONE, replace(ONE, unmet=1.5)), "demands[a].allotments.unmet", "from 0 to 1"),
        (allots(NONE, replace(ONE, cost=-1.0)), "demands[a].allotments.cost", "zero or more"),
        (allots(NONE, replace(ONE, parts=(UNKNOWN,))), "demands[a].allotments", "no MIG profile"),
        (allots(NONE, slices=(Part(SKU, "1g.10gb", 1, 1),)), "demands[a].offers", "not both"),
        (offers(replace(OFFER, rate=0.0)), f"demands[a].offers[{OFFER.shape}].rate", "above zero"),
        (offers(replace(OFFER, profile="1g.5gb")), "demands[a].offers", "no MIG profile"),
        (offers(replace(OFFER, sku="*")), "demands[a].offers", "leave the SKU open"),
        (offers(OFFER, min_replicas=2, max_replicas=1), "demands[a].maxReplicas", "not below"),
        (asks(Part(SKU, "1g.10gb", 1, 1), offers=(OFFER,)), "demands[a].offers", "not both"),
        (asks(Part(SKU, "gpu", 2, 1), Part(SKU, "gpu", 3, 1)), "demands", "2 and 3"),
        (asks(spread=Spread(node=0.0)), "demands[a].spread", "above 0"),
        (replace(GOOD, gpus=(GPU, GPUState("g1", "n0", SKU, zone="z"))), "gpus[g1].zone", "lies in"),
        (
            replace(GOOD, growable=(GrowablePool("p", "A30", 4, 1, 1.0),), gpus=(replace(GPU, pool="p"),)),
            "growable[p].sku",
            "conflicts",
        ),
        (
            replace(GOOD, growable=(GrowablePool("p", SKU, 4, 1, -1.0),)),
            "growable[p].pricePerGPUHour",
            "zero",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(problem, field, says):
    with pytest.raises(InputError, match=says) as refused:
        validate(problem)
    assert refused.value.field == field


def test_an_illegal_layout_has_an_error_of_its_own():
    with pytest.raises(IllegalLayout):
        validate(gpu(instances=(Instance("4g.40gb", 4),)))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"gpus": 3}, "gpus"),
        ({"gpus": [{"id": "g"}]}, "gpus[0].node"),
        ({"gpus": [{"id": "g", "node": "n", "sku": SKU, "backend": "magic"}]}, "gpus[0].backend"),
        ({"gpus": [{"id": "g", "node": "n", "sku": SKU, "cuttable": 1}]}, "gpus[0].cuttable"),
        ({"gpus": [{"id": "g", "node": "n", "sku": SKU, "colour": "red"}]}, "gpus[0].colour"),
        ({"horizon_h": "long"}, "horizon_h"),
        ({"horizon_h": float("inf")}, "horizon_h"),
        ({"move_budget": True}, "move_budget"),
        ({"prices": [["a"]]}, "prices[0]"),
        ({"demands": [{"id": "d", "slices": [{"sku": SKU, "profile": "gpu", "tensor_parallel": 1}]}]},
         "demands[0].slices[0].count"),
        ({"demands": [{"id": "d", "bundles": []}]}, "demands[0].bundles"),
    ],
)  # fmt: skip
def test_a_document_that_is_no_problem_is_refused_at_its_key(change, field):
    with pytest.raises(InputError) as refused:
        from_json(Problem, to_json(GOOD) | change)
    assert refused.value.field == field
