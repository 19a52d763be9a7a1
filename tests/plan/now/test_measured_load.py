"""Replicas of another shape are counted for the load that is measured, where the scaling law knows it."""

import math
from dataclasses import replace

import pytest

from tangram.fleet import Lengths, Objective, ProvisionedLoad, ScaleDeployment, Traffic
from tangram.fleet.lengths import around
from tangram.plan import plan
from tangram.scaling.outlook.mixture_capacity import MixtureCapacity
from tangram.shell.measure.predicted_capacities import CapacityInputs, PredictedCapacities
from tests.plan.now.test_evaluations import GOOD, key
from tests.support.fleet import FACTS_8B, NOW, claims, intent, node, shape, snapshot, workload

OLD, NEW = shape(), shape(sku="A100-80GB-SXM")
TTFT, TPOT = Objective(95, 1000), Objective(95, 60)
STATED = Traffic(None, around(700), around(150))
LONG = ProvisionedLoad(36.0, 3000.0, 100.0)  # of which an H100 carries 9.1 requests/s, an A100 1.7


def chat(**changes):
    asked = {"ttft": TTFT, "tpot": TPOT, "traffic": STATED, "max_replicas": 60, **changes}
    return intent("m", "image:///m/8b", **asked)


def moving(m, load, *, desired=4, new=60):
    """Return the decision for replicas that may not stay on H100s, where `load` is provided for."""
    m = replace(m, denied_skus=("H100-80GB-SXM",))
    observed = snapshot(
        node("h", gpu=8),
        node("a", sku="A100-80GB-SXM", gpu=new),
        claims=claims(m, OLD, "h", desired),
        workloads=(workload(m, OLD, desired),),
        desired=((m.uid, desired),),
        desired_of=((m.uid, OLD),),
        provisioned=() if load is None else ((m.uid, load),),
    )
    (decision,) = plan(observed, (m,), NOW).decisions
    return decision


def capacity(m, at) -> MixtureCapacity:
    """Return what the scaling law predicts of a replica: another path through the capacity model."""
    found = PredictedCapacities().of(m, at, CapacityInputs(facts={m.uid: FACTS_8B}))
    assert found is not None
    return found


def test_a_move_under_longer_requests_than_stated_gets_enough_replicas():
    m = chat()
    by_stated_lengths = moving(m, None).desired
    decision = moving(m, LONG)

    rate = capacity(m, NEW)(LONG.prompt_tokens, LONG.answer_tokens).rate_at(95)
    # 4 x 27.98 requests/s as stated are 9.1 x 12.32 of an A100; 36 longer ones are 21.3 x 1.69.
    assert by_stated_lengths == 10
    assert decision.desired == math.ceil(36.0 / rate) == 22
    assert by_stated_lengths * rate < 0.5 * 36.0


def test_the_correction_of_the_old_shape_counts_for_the_new_one_as_far_as_it_warns():
    assert moving(chat(), replace(LONG, trusted_share=0.5)).desired == 43  # 36 / (1.687 x 0.5) = 42.7


def test_a_large_replica_with_little_load_is_replaced_by_few_small_ones():
    m = chat(allowed_skus=("A100-80GB-SXM", "H100-80GB-SXM"))
    little = ProvisionedLoad(3.0, 3000.0, 100.0)

    assert moving(m, little, desired=1).desired == 2  # 3 / 1.687
    assert moving(m, None, desired=1).desired == 1  # not known: one by one


@pytest.mark.parametrize(("bounds", "expected"), [((30, 60), 30), ((1, 12), 12)])
def test_the_number_is_within_the_bounds(bounds, expected):
    least, most = bounds

    assert moving(chat(min_replicas=least, max_replicas=most), LONG).desired == expected


def test_where_the_ttft_of_these_lengths_is_out_of_reach_replicas_are_counted_for_tpot_as_in_the_forecast():
    m = chat(ttft=Objective(95, 300))  # of 3000 tokens of prompt it is longer on both
    rate = capacity(m, NEW)(LONG.prompt_tokens, LONG.answer_tokens).without_ttft.rate_at(95)

    assert moving(m, LONG).desired == math.ceil(36.0 / rate)


def test_lengths_vary_as_in_the_forecast():
    """Stated lengths whose P90 is near the largest of a lognormal distribution vary less when measured."""
    m = chat(traffic=Traffic(None, Lengths(700.0, 1589.0), Lengths(150.0, 340.0)))
    rate = capacity(m, NEW)(LONG.prompt_tokens, LONG.answer_tokens).rate_at(95)

    assert moving(m, LONG).desired == math.ceil(36.0 / rate)


def test_lengths_beyond_the_model_are_counted_as_before():
    too_long = ProvisionedLoad(36.0, 6000.0, 100.0)  # engine.maxModelLen is 4096

    assert moving(chat(), too_long).desired == moving(chat(), None).desired


def test_the_lengths_of_the_spec_matter_no_more_once_others_are_measured():
    other = chat(traffic=Traffic(2000.0, around(100), around(900)))

    assert moving(other, LONG).desired == moving(chat(), LONG).desired


BF16, INT4 = shape("3g.40gb"), shape("3g.40gb", precision="int4")
SMALL = shape("2g.20gb", precision="int4")


def on_slices(load, *, beside=None, desired=20, **asked):
    """Return the decision for replicas on slices in bf16 that may run in int4, too, and the plan.

    `beside`: a shape on which one replica of it stands already.
    """
    m = chat(precision="Any", **asked)
    workloads, held = (workload(m, BF16, desired),), claims(m, BF16, "h", desired)
    if beside is not None:
        workloads += (workload(m, beside, 1, available=0),)
        held += claims(m, beside, "h", 1)
    observed = snapshot(
        node("h", mig_3g_40gb=60, **({"mig_2g_20gb": 60} if beside == SMALL else {})),
        claims=held,
        workloads=workloads,
        desired=((m.uid, desired),),
        desired_of=((m.uid, BF16),),
        reports=((key(), GOOD),),
        provisioned=() if load is None else ((m.uid, load),),
    )
    new_plan = plan(observed, (m,), NOW)
    return new_plan.decisions[0], new_plan


SAVES_LITTLE = ProvisionedLoad(60.0, 3000.0, 100.0)  # 60 / 3.02 are 20 in bf16, 60 / 3.24 are 19 in int4


def test_what_a_cheaper_format_saves_is_that_under_the_measured_load():
    assert on_slices(None)[0].shape == INT4  # 14.27 and 16.83 requests/s: 17 instead of 20
    assert on_slices(SAVES_LITTLE)[0].shape == BF16


def test_a_move_to_a_cheaper_format_that_has_begun_goes_on_while_it_saves_anything():
    assert on_slices(SAVES_LITTLE, beside=INT4)[0].shape == INT4


@pytest.mark.parametrize("rate", [54.0, 57.0, 60.0, 63.0])
def test_a_load_about_the_threshold_does_not_undo_a_move(rate):
    load = replace(SAVES_LITTLE, requests_per_second=rate)
    decision, new_plan = on_slices(load, beside=INT4, desired=math.ceil(rate / 3.0207))

    assert decision.shape == INT4
    assert not [action for action in new_plan.actions if isinstance(action, ScaleDeployment)]


def test_no_move_for_money_goes_to_a_shape_on_which_the_measured_requests_miss():
    # P95 of TTFT of 3000 tokens is above 700 ms on a slice of two sevenths alone, of 700 tokens nowhere.
    asked = {"ttft": Objective(95, 700), "tpot": None}
    long = ProvisionedLoad(20.0, 3000.0, 100.0)
    short = replace(long, prompt_tokens=700.0, answer_tokens=150.0, requests_per_second=120.0)

    assert on_slices(long, beside=SMALL, desired=9, **asked)[0].shape != SMALL
    assert on_slices(short, beside=SMALL, desired=9, **asked)[0].shape == SMALL
