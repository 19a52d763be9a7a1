"""GPUs by the names that people and clouds give them."""

import pytest

from tangram.catalog import find_gpu, load


@pytest.mark.parametrize(
    ("name", "sku"),
    [
        ("h100_sxm", "H100-80GB-SXM"),
        ("H100", "H100-80GB-SXM"),
        ("h100-sxm5-80gb", "H100-80GB-SXM"),
        ("NVIDIA H100 80GB HBM3", "H100-80GB-SXM"),
        ("NVIDIA-H100-80GB-HBM3", "H100-80GB-SXM"),
        ("h100_pcie", "H100-80GB-PCIE"),
        ("NVIDIA-H100-PCIe", "H100-80GB-PCIE"),
        ("h100_nvl", "H100-94GB-NVL"),
        ("h200_sxm", "H200-141GB-SXM"),
        ("b200", "B200-180GB-SXM"),
        ("B200_192GB", "B200-180GB-SXM"),
        ("gb200", "GB200-186GB"),
        ("a100_sxm", "A100-80GB-SXM"),
        ("a100-80gb", "A100-80GB-SXM"),
        ("a100_sxm4_40gb", "A100-40GB-SXM"),
        ("A100-40GB", "A100-40GB-SXM"),
        ("a100_80gb_pcie", "A100-80GB-PCIE"),
        ("a100_pcie", "A100-80GB-PCIE"),
        ("l40s", "L40S"),
        ("L40S-48GB", "L40S"),
        ("l4", "L4"),
        ("nvidia-l4", "L4"),
        ("a10", "A10"),
        ("a10g", "A10G"),
        ("NVIDIA A10G", "A10G"),
        ("a30", "A30"),
        ("t4", "T4"),
        ("Tesla-T4", "T4"),
        ("rtx4090", "RTX-4090"),
        ("GeForce RTX 4090", "RTX-4090"),
        ("rtx_pro_6000", "RTX-PRO-6000-SERVER"),
    ],
)
def test_a_gpu_is_found_in_any_spelling(name: str, sku: str) -> None:
    found = find_gpu(name)

    assert found is not None
    assert found.sku == sku


@pytest.mark.parametrize(
    "name", ["", "gpu", "80gb", "sxm", "rtx", "rtx 6000", "l40", "mi300x", "a100_pcie_40gb", "h100_sxm_64gb"]
)
def test_a_name_that_is_unknown_or_could_be_several_finds_none(name: str) -> None:
    assert find_gpu(name) is None


def test_every_sku_and_alias_finds_its_own_board() -> None:
    for sku, board in load().items():
        for name in (sku, *board.aliases):
            found = find_gpu(name.upper())
            assert found is not None
            assert found.sku == sku
