"""From the facts of an inspected checkpoint to the fastest step that physics allows."""

import pytest

from tangram.capacity.hardware import hardware
from tangram.capacity.steps.step_model import Coefficients, StepModel
from tests.support.fleet import FACTS_1B, FACTS_8B
from tests.support.model_figures import footprint_from_facts


def tpot_ms(facts, profile="gpu"):
    where = hardware("H100-80GB-SXM", profile)
    return StepModel(footprint_from_facts(facts), where, Coefficients()).decode_s(1, 0).total * 1e3


def test_a_step_reads_all_weights_but_an_untied_input_embedding():
    """8.03 B parameters less 0.525 B of the input embedding, 2 bytes each, at 3350 GB/s."""
    assert tpot_ms(FACTS_8B) == pytest.approx(2 * (8.03026e9 - 0.52534e9) / 3350e9 * 1e3, rel=1e-3)
    assert tpot_ms(FACTS_1B) == pytest.approx(2 * 1.23581e9 / 3350e9 * 1e3, rel=1e-3)


def test_a_slice_reads_at_the_share_of_its_memory_slices():
    assert tpot_ms(FACTS_8B, "1g.10gb") == pytest.approx(8 * tpot_ms(FACTS_8B), rel=1e-6)
