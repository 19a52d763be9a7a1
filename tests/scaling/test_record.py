"""What the law learned survives in a status, whatever another version or a person made of it."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram.api.llm_deployment.status import ScalingStatus
from tangram.scaling import CapacityMemory, EvidenceMemory, ScalingMemory, SupplyMemory, recalled, record
from tangram.scaling.outlook.load_misses import MissedRequests
from tangram.scaling.outlook.miss_curve import MOST_SPREAD
from tangram.scaling.outlook.replica_capacity import CapacityCorrection

LEARNED = ScalingMemory(
    replicas=3,
    subject="image:///m 64 90%1000ms -",
    evidence=EvidenceMemory(
        violated_rate=1.23456, violated_load=16.0, tpot_reachable=False, ttft_reachable=True
    ),
    supply=SupplyMemory(start_s=93.0, written_off=1, failed_orders=2),
    spare_since=5.0,
    capacity=CapacityMemory(CapacityCorrection(0.5123, 0.6, 0.0131), missed=MissedRequests(4000.0, 16.0)),
)


def test_what_was_learned_goes_through_a_status():
    again = recalled(json.loads(json.dumps(record(LEARNED))))

    assert again == ScalingMemory(
        subject=LEARNED.subject,
        evidence=replace(LEARNED.evidence, violated_rate=1.23),
        supply=LEARNED.supply,
        capacity=CapacityMemory(
            CapacityCorrection(0.51, 0.6, 0.014),
            prior=CapacityCorrection(0.51, 0.6, 0.014),
            missed=MissedRequests(1000.0, 4.0, 3600.0),
        ),
    )
    assert "missedShare" not in record(
        replace(LEARNED, capacity=replace(LEARNED.capacity, missed=MissedRequests(900.0, 0.0)))
    )


def test_numbers_near_the_prediction_are_not_written():
    assert record(ScalingMemory(subject="x", capacity=CapacityMemory(CapacityCorrection(1.04)))) == {}


def test_small_changes_of_a_number_are_no_writes():
    other = LEARNED.capacity.correction._replace(trusted_share=0.53)

    assert record(replace(LEARNED, capacity=replace(LEARNED.capacity, correction=other))) == record(LEARNED)


def test_a_spread_that_former_versions_recorded_is_the_most_of_this_one():
    assert recalled({"learnedUnder": "x", "loadSpread": "1.5"}).capacity.correction.load_spread == MOST_SPREAD


@pytest.mark.parametrize(("text", "share"), [("1e-320", 1e-4), ("0.3", 0.3), ("2.1", 1.0), ("1e300", 1.0)])
def test_a_share_that_no_correction_has_is_not_believed(text, share):
    memory = recalled({"learnedUnder": "x", "trustedShare": text, "loadSpread": "1e-300"})

    assert memory.capacity.correction == memory.capacity.prior == CapacityCorrection(share)


def test_it_fits_the_crd():
    ScalingStatus.model_validate(record(LEARNED))


def test_nothing_learned_is_no_block():
    assert record(ScalingMemory(replicas=3, subject="x", spare_since=1.0)) == {}


def test_fields_of_another_version_do_no_harm():
    assert recalled(record(LEARNED) | {"forecast": {"level": "7"}}) == recalled(record(LEARNED))


@pytest.mark.parametrize("bad", ["NaN", "inf", "-1", "0", "1e309", "x" * 99, 7, None, [], True])
def test_a_number_that_cannot_be_is_forgotten(bad):
    block = record(LEARNED) | {"violatedRequestsPerSecond": bad, "startSeconds": bad}

    memory = recalled(block)

    assert (memory.evidence.violated_rate, memory.supply.start_s) == (None, None)
    assert memory.evidence.violated_load == 16.0


def test_what_was_learned_under_nothing_known_is_not_believed():
    block = record(LEARNED)
    del block["learnedUnder"]

    assert recalled(block).evidence.violated_rate is None


VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.lists(st.none())


@given(st.dictionaries(st.sampled_from([*record(LEARNED), "predictedTPOTMilliseconds", "x"]), VALUES))
def test_whatever_is_in_the_block_nothing_raises(block):
    memory = recalled(block)

    assert memory.supply.written_off >= 0
    assert recalled(record(memory)).supply.written_off == memory.supply.written_off
