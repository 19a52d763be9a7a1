"""The board file describes silicon that could exist, or is refused with the field and the rule."""

import itertools

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from e2e.silicon.__main__ import main
from e2e.silicon.board import BoardError, load_machine, parse_machine
from e2e.silicon.catalog import DEFAULT_CATALOG, load_board

SEVEN = [f"1g.10gb@{start}" for start in range(7)]
H100 = load_board("H100-80GB-SXM")


def h100(*gpus):
    return parse_machine({"sku": "H100-80GB-SXM", "gpus": list(gpus)}, "node-a")


def test_a_cut_gpu_offers_its_slices_and_no_whole_gpu():
    devices = h100({"mig": SEVEN}, {}).devices()
    assert {resource: len(ids) for resource, ids in devices.items()} == {
        "nvidia.com/mig-1g.10gb": 7,
        "nvidia.com/gpu": 1,
    }


def test_a_gpu_with_mig_on_and_nothing_on_it_offers_nothing():
    assert h100({"mig": []}).devices() == {}


def test_a_plus_in_a_profile_becomes_a_dot_in_the_resource():
    assert list(h100({"mig": ["1g.10gb+me@0"]}).devices()) == ["nvidia.com/mig-1g.10gb.me"]


def test_ids_are_unique_of_nvidias_form_and_the_same_after_a_restart():
    machine = h100({"mig": SEVEN}, {}, {"mig": SEVEN})
    ids = [one for found in machine.devices().values() for one in found]
    assert len(set(ids)) == 15
    assert all(one.startswith(("GPU-", "MIG-")) and len(one) <= 63 for one in ids)
    assert machine == h100({"mig": SEVEN}, {}, {"mig": SEVEN})


def test_two_nodes_never_share_an_id():
    raw = {"sku": "H100-80GB-SXM", "gpus": [{"mig": SEVEN}, {}]}
    first, second = (set(parse_machine(raw, node).parents()) for node in ("a", "b"))
    assert not first & second


def test_a_board_without_mig_is_whole_gpus_only():
    raw = {"sku": "L4", "name": "NVIDIA L4", "gpus": [{}, {}]}
    assert {k: len(v) for k, v in parse_machine(raw, "n").devices().items()} == {"nvidia.com/gpu": 2}


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ({"gpus": [{}]}, "sku: unknown 'None'"),
        ({"sku": "H100", "gpus": [{}]}, "sku: unknown 'H100'; known are"),
        ({"sku": "H100-80GB-SXM"}, "gpus: expected a list"),
        ({"sku": "H100-80GB-SXM", "gpus": []}, "at least one GPU"),
        ({"sku": "H100-80GB-SXM", "gpus": [{}], "color": "green"}, "color: unknown field"),
        ({"sku": "H100-80GB-SXM", "gpus": [{"mgi": []}]}, r"gpus\[0\]: expected"),
        ({"sku": "H100-80GB-SXM", "gpus": [{"mig": "all"}]}, r"gpus\[0\].mig: expected a list"),
        ({"sku": "H100-80GB-SXM", "gpus": [{}, {"mig": ["1g.10gb"]}]}, r"gpus\[1\].mig: .*PROFILE@START"),
        ({"sku": "H100-80GB-SXM", "gpus": [{"mig": ["1g.5gb@0"]}]}, "no profile '1g.5gb'"),
        (
            {"sku": "H100-80GB-SXM", "gpus": [{"mig": ["3g.40gb@2"]}]},
            r"cannot start at '2', only at \[0, 4\]",
        ),
        ({"sku": "H100-80GB-SXM", "gpus": [{"mig": ["3g.40gb@0", "1g.10gb@3"]}]}, "both need memory slice 3"),
        ({"sku": "H100-80GB-SXM", "gpus": [{"mig": ["1g.10gb+me@0", "1g.10gb+me@1"]}]}, "2 ofa engines"),
        ({"sku": "L4", "gpus": [{}]}, "name: L4 has no device name"),
        (
            {"sku": "L4", "name": "NVIDIA L40S", "gpus": [{}]},
            "becomes the label 'NVIDIA-L40S', which is no L4",
        ),
        ({"sku": "L4", "name": "NVIDIA L4", "gpus": [{"mig": []}]}, "L4 has no MIG"),
        ({"sku": "H100-80GB-SXM", "memoryMiB": {"1g.5gb": 1}, "gpus": [{}]}, "memoryMiB: .* no profile"),
    ],
)
def test_silicon_that_cannot_exist_is_refused_with_the_field_and_the_rule(raw, says):
    with pytest.raises(BoardError, match=says):
        parse_machine(raw, "node-a")


PLACEMENTS = [(name, start) for name, profile in H100.profiles.items() for start in profile.starts]


@given(st.lists(st.sampled_from(PLACEMENTS), max_size=8))
def test_exactly_the_sets_without_overlap_and_within_the_engines_are_accepted(chosen):
    spans = [set(range(start, start + H100.profiles[name].size)) for name, start in chosen]
    apart = all(not (a & b) for a, b in itertools.combinations(spans, 2))
    fits = all(
        sum(H100.profiles[name].engines[engine] for name, _ in chosen) <= cap
        for engine, cap in H100.engine_caps.items()
    )
    raw = {"mig": [f"{name}@{start}" for name, start in chosen]}
    if apart and fits:
        assert sum(map(len, h100(raw).devices().values())) == len(chosen)
    else:
        with pytest.raises(BoardError):
            h100(raw)


def test_the_plain_profiles_of_an_8x7_board_have_the_298_legal_sets_of_the_catalogue():
    plain = [(n, s) for n, s in PLACEMENTS if n in {"1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"}]
    catalogue = yaml.safe_load((DEFAULT_CATALOG / "mig_profiles.yaml").read_text())
    expected = catalogue["geometry_oracle_8x7"]["feasible_placement_sets_including_empty"]

    def count(rest, chosen):
        if not rest:
            return 1
        total = count(rest[1:], chosen)
        longer = [*chosen, rest[0]]
        try:
            h100({"mig": [f"{name}@{start}" for name, start in longer]})
        except BoardError:
            return total
        return total + count(rest[1:], longer)

    assert count(plain, []) == expected == 298


def test_check_prints_the_resources_of_a_good_file(tmp_path, capsys):
    board = tmp_path / "board.yaml"
    board.write_text("sku: H100-80GB-SXM\ngpus: [{mig: [3g.40gb@4]}, {}]\n")
    assert main(["check", "--board", str(board)]) == 0
    assert capsys.readouterr().out.split("\n")[:2] == ["nvidia.com/mig-3g.40gb: 1", "nvidia.com/gpu: 1"]


@pytest.mark.parametrize("text", ["sku: [", "just words", "- a list"])
def test_check_names_the_file_that_is_no_board_file(tmp_path, capsys, text):
    board = tmp_path / "board.yaml"
    board.write_text(text)
    assert main(["check", "--board", str(board)]) == 2
    assert str(board) in capsys.readouterr().err


def test_the_board_in_the_manifest_is_one_that_the_stand_in_accepts(tmp_path):
    manifest = DEFAULT_CATALOG.parents[2] / "e2e" / "silicon" / "manifests" / "silicon.yaml"
    maps = [one for one in yaml.safe_load_all(manifest.read_text()) if one["kind"] == "ConfigMap"]
    board = tmp_path / "board.yaml"
    board.write_text(maps[0]["data"]["board.yaml"])
    assert load_machine(board, "node-a").devices()["nvidia.com/mig-1g.10gb"]
