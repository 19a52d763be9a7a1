"""What one rank of a group runs on: which link joins it to the others."""

import pytest

from tangram.capacity.hardware import PCIE_GBPS, hardware
from tangram.capacity.memory.footprint import footprint
from tangram.capacity.steps.step_model import Coefficients, StepModel
from tangram.catalog import known_model

BRIDGED = ("A30", "A100-80GB-PCIE", "H100-80GB-PCIE", "H100-94GB-NVL")


@pytest.mark.parametrize("sku", BRIDGED)
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_pod_may_get_boards_that_no_bridge_joins_so_its_link_is_pcie(sku: str, ranks: int) -> None:
    group = hardware(sku, ranks=ranks)

    assert not group.nvlink
    assert group.link_bandwidth in {PCIE_GBPS[4] * 1e9, PCIE_GBPS[5] * 1e9}


@pytest.mark.parametrize("sku", ["A100-80GB-SXM", "H100-80GB-SXM", "H200-141GB-SXM", "B200-180GB-SXM"])
def test_baseboards_join_all_of_a_node(sku: str) -> None:
    assert hardware(sku, ranks=8) == hardware(sku, ranks=2) == hardware(sku)


def test_without_peer_to_peer_every_byte_crosses_pcie_twice() -> None:
    assert hardware("RTX-4090", ranks=2).link_bandwidth == PCIE_GBPS[4] * 1e9 / 2
    assert hardware("L40S", ranks=2).link_bandwidth == PCIE_GBPS[4] * 1e9


def test_four_bridged_boards_agree_more_slowly_than_four_on_a_baseboard() -> None:
    model = known_model("Llama-3-70B")
    assert model is not None

    def agreeing(sku: str) -> float:
        on = hardware(sku, ranks=4)
        step = StepModel(footprint(model, "fp8", tensor_parallel=4, hardware=on), on, Coefficients())
        return step.step_s(0, 0, 2048, 1024).communication_s

    assert agreeing("H100-94GB-NVL") > 5 * agreeing("H100-80GB-SXM")


def test_a_slice_computes_with_its_share_of_sms_and_reads_with_its_share_of_memory() -> None:
    """16 of 132 SMs are less than the seventh that its name claims."""
    whole, cut = hardware("H100-80GB-SXM"), hardware("H100-80GB-SXM", "1g.10gb")

    assert (cut.flops_of("bf16") or 0) / (whole.flops_of("bf16") or 1) == pytest.approx(16 / 132)
    assert cut.bandwidth / whole.bandwidth == pytest.approx(1 / 8)
