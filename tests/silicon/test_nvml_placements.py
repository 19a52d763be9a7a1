"""What can be created on a simulated GPU, against the counts of the profile table and the MIG User Guide."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from e2e.silicon.catalog import load_board
from e2e.silicon.nvml.placements import default_start, fits, instance_id, remaining_capacity
from tangram.packing.geometry.board import board as geometry_board
from tangram.packing.geometry.layouts import Placement, default_position, layouts
from tests.support.nvml_driver import SimulatedDriver, nvml_state

ROOT = Path(__file__).resolve().parents[2]
TABLE = yaml.load(  # libyaml's loader where PyYAML has it: twenty times faster on the profile table
    (ROOT / "operator" / "tangram" / "catalog" / "mig_profiles.yaml").read_text(),
    Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader),  # noqa: S506 - both are safe loaders
)
ORACLE = TABLE["geometry_oracle_8x7"]
BASIC = ("1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb")


def layouts_by_creation(sku, names=None):
    """Every set of placements that can be created, with whether nothing can be added."""
    board = load_board(sku)
    profiles = [one for name, one in board.profiles.items() if names is None or name in names]
    options = [(profile, start) for profile in profiles for start in profile.starts]

    def grow(placed, first):
        additions = [index for index, option in enumerate(options) if fits(board, placed, *option)]
        yield placed, not additions
        for index in additions:
            if index >= first:
                yield from grow([*placed, options[index]], index + 1)

    return list(grow([], 0))


def counts(found):
    multisets = {tuple(sorted(Counter(one.name for one, _ in placed).items())) for placed, _ in found}
    return {
        "feasible": len(found),
        "maximal": sum(is_maximal for _, is_maximal in found),
        "multisets": len(multisets),
    }


def expected(row):
    return {key: row[key] for key in ("feasible", "maximal", "multisets")}


@pytest.mark.parametrize("sku", ["H100-80GB-SXM", "A100-80GB-SXM"])
def test_an_8x7_board_has_the_19_maximal_layouts_of_the_oracle(sku):
    found = counts(layouts_by_creation(sku, BASIC))

    assert found == {
        "feasible": ORACLE["feasible_placement_sets_including_empty"],
        "maximal": ORACLE["maximal_placement_sets"],
        "multisets": ORACLE["distinct_multisets_including_empty"],
    }


def test_double_memory_and_media_profiles_multiply_the_layouts_as_the_oracle_says():
    assert counts(layouts_by_creation("H100-80GB-SXM", (*BASIC, "1g.20gb"))) == expected(
        ORACLE["with_double_memory_1g"]
    )
    assert counts(layouts_by_creation("H100-80GB-SXM")) == expected(ORACLE["with_double_memory_1g_and_me"])


def test_an_a30_has_four_slices_and_the_layouts_of_the_oracle():
    plain = ("1g.6gb", "2g.12gb", "4g.24gb")

    assert counts(layouts_by_creation("A30", plain)) == expected(ORACLE["a30_4x4_without_me"])
    assert counts(layouts_by_creation("A30")) == expected(ORACLE["a30_4x4_all_profiles"])


def test_an_rtx_pro_6000_counts_twelve_units_and_its_engines_bind():
    plain = ("1g.24gb", "2g.48gb", "4g.96gb")
    oracle = ORACLE["rtx_pro_6000_12x4_plain_1g_2g_4g"]

    assert counts(layouts_by_creation("RTX-PRO-6000-SERVER", plain)) == expected(oracle)
    assert counts(layouts_by_creation("RTX-PRO-6000-SERVER")) == expected(
        ORACLE["rtx_pro_6000_12x4_all_profiles_with_engine_sums"]
    )


@pytest.mark.parametrize("sku", ["H100-80GB-SXM", "A100-40GB-SXM", "A30", "RTX-PRO-6000-SERVER"])
def test_the_operators_geometry_allows_the_same_layouts_and_default_positions(sku):
    board, operators = load_board(sku), geometry_board(sku)
    found = {
        tuple(sorted(Placement(start, profile.name) for profile, start in placed)): placed
        for placed, _ in layouts_by_creation(sku)
    }

    assert found.keys() == set(layouts(operators))
    for layout, placed in list(found.items())[::7]:
        for name, profile in board.profiles.items():
            position = default_position(operators, layout, name)
            assert default_start(board, placed, profile) == (position.start if position else None)


@pytest.mark.parametrize("product", TABLE["products"], ids=lambda product: product["key"])
def test_ids_of_instances_are_unique_on_every_board(product):
    pairs = {
        (start, profile["placement"]["size"])
        for profile in product["profiles"]
        if (profile.get("placement") or {}).get("starts")
        for start in profile["placement"]["starts"]
    }
    board = replace(load_board("H100-80GB-SXM"), memory_slices=product["memory_slices_total"])

    assert len({instance_id(board, *pair) for pair in pairs}) == len(pairs)


def created(sku, *wanted):
    """Create PROFILE or PROFILE@START in an order on an empty GPU; returns codes and the layout."""
    driver = SimulatedDriver(nvml_state(sku, {"mig": []}))
    codes = []
    for one in wanted:
        name, _, start = one.partition("@")
        arguments = (driver.gpu(), driver.profile(name))
        if start:
            placement = [int(start), driver.state.board.profiles[name].size]
            codes.append(driver.call("nvmlDeviceCreateGpuInstanceWithPlacement", *arguments, placement)[0])
        else:
            codes.append(driver.call("nvmlDeviceCreateGpuInstance", *arguments)[0])
    return codes, driver.layout()


OK, NO_ROOM = "SUCCESS", "INSUFFICIENT_RESOURCES"
ONE, TWO, THREE, FOUR, SEVEN = BASIC


@pytest.mark.parametrize(
    ("wanted", "codes", "layout"),
    [
        ([THREE, THREE], [OK, OK], ["3g.40gb@0", "3g.40gb@4"]),
        ([FOUR, FOUR], [OK, NO_ROOM], ["4g.40gb@0"]),
        ([FOUR, THREE], [OK, OK], ["4g.40gb@0", "3g.40gb@4"]),
        ([ONE, TWO, FOUR], [OK, OK, OK], ["4g.40gb@0", "2g.20gb@4", "1g.10gb@6"]),
        ([TWO, TWO, TWO, ONE], [OK] * 4, ["2g.20gb@0", "2g.20gb@2", "2g.20gb@4", "1g.10gb@6"]),
        ([TWO] * 4, [OK, OK, OK, NO_ROOM], ["2g.20gb@0", "2g.20gb@2", "2g.20gb@4"]),
        ([ONE, ONE, TWO, THREE], [OK, OK, OK, NO_ROOM], ["2g.20gb@2", "1g.10gb@5", "1g.10gb@6"]),
        ([THREE, ONE, ONE, TWO], [OK] * 4, ["2g.20gb@0", "1g.10gb@2", "1g.10gb@3", "3g.40gb@4"]),
        (["1g.10gb@0", "1g.10gb@4", THREE], [OK, OK, NO_ROOM], ["1g.10gb@0", "1g.10gb@4"]),
        (
            ["1g.10gb@0", "1g.10gb@1", "1g.10gb@5", THREE],
            [OK, OK, OK, NO_ROOM],
            ["1g.10gb@0", "1g.10gb@1", "1g.10gb@5"],
        ),
        (["1g.10gb@3", TWO, TWO, TWO], [OK, OK, OK, NO_ROOM], ["2g.20gb@0", "1g.10gb@3", "2g.20gb@4"]),
        ([ONE] * 8, [OK] * 7 + [NO_ROOM], [f"1g.10gb@{start}" for start in range(7)]),
        (["1g.20gb"] * 4, [OK] * 4, [f"1g.20gb@{start}" for start in (0, 2, 4, 6)]),
        (["1g.20gb", TWO, TWO, TWO], [OK] * 4, ["2g.20gb@0", "2g.20gb@2", "2g.20gb@4", "1g.20gb@6"]),
        (["1g.10gb+me", "1g.10gb+me"], [OK, NO_ROOM], ["1g.10gb+me@6"]),
        ([SEVEN, ONE], [OK, NO_ROOM], ["7g.80gb@0"]),
        (["3g.40gb@0", THREE, ONE], [OK, OK, NO_ROOM], ["3g.40gb@0", "3g.40gb@4"]),
    ],
)
def test_the_order_of_creation_decides_as_on_a_real_h100(wanted, codes, layout):
    assert created("H100-80GB-SXM", *wanted) == (codes, layout)


@pytest.mark.parametrize(
    ("placed", "free"),
    [
        ([], [7, 1, 4, 3, 2, 1, 1]),
        (["1g.10gb@6"], [6, 1, 3, 3, 1, 1, 0]),
        (["1g.10gb@3"], [6, 1, 3, 2, 1, 0, 0]),
        (["1g.10gb+me@0"], [6, 0, 3, 2, 1, 0, 0]),
    ],
)
def test_remaining_capacity_is_that_of_each_profile_alone(placed, free):
    board = load_board("H100-80GB-SXM")
    there = [(board.profiles[name], int(start)) for name, start in (one.split("@") for one in placed)]

    profiles = (ONE, "1g.10gb+me", "1g.20gb", TWO, THREE, FOUR, SEVEN)
    assert [remaining_capacity(board, there, board.profiles[one]) for one in profiles] == free


@pytest.mark.parametrize(
    "key", ["a30-24gb", "a100-40gb", "a100-80gb", "h100-sxm-80gb", "h200-sxm-141gb", "rtx-pro-6000-96gb"]
)
def test_nvml_states_ids_numbers_and_placements_of_the_table(key):
    skus = {
        "a30-24gb": "A30",
        "a100-40gb": "A100-40GB-SXM",
        "a100-80gb": "A100-80GB-SXM",
        "h100-sxm-80gb": "H100-80GB-SXM",
        "h200-sxm-141gb": "H200-141GB-SXM",
        "rtx-pro-6000-96gb": "RTX-PRO-6000-SERVER",
    }
    product = next(one for one in TABLE["products"] if one["key"] == key)
    by_enum = {one["nvml_profile_enum_value"]: one for one in product["profiles"]}
    driver = SimulatedDriver(nvml_state(skus[key], {"mig": []}))

    for enum_value in range(17):
        code, info = driver.call("nvmlDeviceGetGpuInstanceProfileInfo", driver.gpu(), enum_value)
        if enum_value not in by_enum:
            assert code == "NOT_SUPPORTED"
            continue
        row = by_enum[enum_value]
        placements = driver.value("nvmlDeviceGetGpuInstancePossiblePlacements", driver.gpu(), info["id"])
        assert (info["id"], info["name"]) == (row["published_profile_id"], f"MIG {row['name']}")
        assert (info["memorySizeMB"], info["multiprocessorCount"]) == (row["memory_mib"], row["sm_count"])
        assert (info["sliceCount"], info["instanceCount"]) == (row["compute_slices"], row["max_instances"])
        assert info["copyEngineCount"] == row["engines"]["copy"]
        assert placements == [[start, row["placement"]["size"]] for start in row["placement"]["starts"]]
    assert driver.call("nvmlDeviceGetGpuInstanceProfileInfo", driver.gpu(), 17)[0] == "INVALID_ARGUMENT"


def test_a_published_id_means_another_profile_on_another_board():
    names = {
        sku: SimulatedDriver(nvml_state(sku, {"mig": []}))
        for sku in ("A100-40GB-SXM", "A30", "RTX-PRO-6000-SERVER")
    }

    assert {
        sku: driver.value("nvmlDeviceGetGpuInstanceProfileInfoById", driver.gpu(), 14)["name"]
        for sku, driver in names.items()
    } == {"A100-40GB-SXM": "MIG 2g.10gb", "A30": "MIG 1g.6gb", "RTX-PRO-6000-SERVER": "MIG 1g.24gb"}
