"""Node labels are those of NVIDIA's own feature discovery, key by key."""

import json
import re
from pathlib import Path

import pytest

from e2e.silicon.board import parse_machine
from e2e.silicon.labels import gfd_labels
from e2e.silicon.node import label_patch

GOLDEN = json.loads((Path(__file__).parent / "golden" / "h100_mixed_labels.json").read_text())["labels"]
# Set on that node by the GPU operator and mig-manager, not by feature discovery.
OTHERS = re.compile(r"nvidia\.com/(gpu\.deploy\..*|gpu-driver-upgrade-state|mig\.config(\.state)?)$")


def labels(raw, **extra):
    return gfd_labels(parse_machine({"sku": "H100-80GB-SXM", **extra, "gpus": raw}, "n"), 1715709242)


def test_an_h100_in_the_mixed_strategy_carries_the_labels_of_a_captured_one():
    captured = {key: value for key, value in GOLDEN.items() if not OTHERS.match(key)}
    ours = labels(
        [{"mig": ["1g.10gb@0", "1g.10gb@1", "2g.20gb@2", "3g.40gb@4"]}],
        driver="550.54.15",
        cuda="12.4",
        machine="PIO-4124GS-TNR-01-NC24B",
        memoryMiB={"3g.40gb": 40320},  # what that driver reported; the catalogue has a newer one's 40448
    )
    # Newer releases than the captured one add gpu.mode.
    assert ours == captured | {"nvidia.com/gpu.mode": "compute"}


def test_gpu_count_counts_cut_gpus_too_and_replicas_tell_whether_a_whole_one_is_left():
    mixed = labels([{"mig": ["7g.80gb@0"]}, {}])
    assert (mixed["nvidia.com/gpu.count"], mixed["nvidia.com/gpu.replicas"]) == ("2", "1")
    cut = labels([{"mig": ["7g.80gb@0"]}])
    assert (cut["nvidia.com/gpu.count"], cut["nvidia.com/gpu.replicas"]) == ("1", "0")


def test_every_label_value_is_one_that_kubernetes_accepts():
    found = labels([{"mig": ["1g.10gb+me@0", "1g.20gb@2"]}])
    assert found["nvidia.com/mig-1g.10gb.me.product"] == "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb.me"
    for key, value in found.items():
        assert len(key.partition("/")[2]) <= 63
        assert re.fullmatch(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?", value), key


def test_a_board_without_mig_says_that_it_is_not_capable():
    machine = parse_machine({"sku": "L4", "name": "NVIDIA L4", "gpus": [{}]}, "n")
    found = gfd_labels(machine, 1)
    assert found["nvidia.com/mig.capable"] == "false"
    assert found["nvidia.com/gpu.product"] == "NVIDIA-L4"
    assert found["nvidia.com/gpu.family"] == "ada-lovelace"


def test_labels_of_a_slice_that_is_no_more_are_removed_and_foreign_labels_stay():
    present = {
        "nvidia.com/mig-1g.10gb.count": "7",
        "nvidia.com/mig.config": "all-1g.10gb",
        "zone": "a",
        "same": "1",
    }
    patch = label_patch(present, {"nvidia.com/mig-7g.80gb.count": "1", "same": "1"})
    assert patch == {"nvidia.com/mig-7g.80gb.count": "1", "nvidia.com/mig-1g.10gb.count": None}


@pytest.mark.parametrize("sku", ["H200-141GB-SXM", "B200-180GB-SXM", "A100-80GB-SXM", "A30"])
def test_the_product_label_is_recognised_by_the_operators_catalogue(sku):
    from tangram import catalog

    machine = parse_machine({"sku": sku, "gpus": [{}]}, "n")
    assert catalog.match_product(gfd_labels(machine, 1)["nvidia.com/gpu.product"]) == sku
