"""Listings in the form of `nvidia-smi mig`, against captures."""

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from e2e.silicon.nvml import listings
from e2e.silicon.nvml.__main__ import main
from e2e.silicon.nvml.daemon import serving
from e2e.silicon.nvml.placements import remaining_capacity
from tests.support.nvml_driver import nvml_state

# The head and the first rows of a capture on an A100 40GB.
LGIP = """\
+-------------------------------------------------------------------------------+
| GPU instance profiles:                                                        |
| GPU   Name               ID    Instances   Memory     P2P    SM    DEC   ENC  |
|                                Free/Total   GiB              CE    JPEG  OFA  |
|===============================================================================|
|   0  MIG 1g.5gb          19     7/7        4.75       No     14     0     0   |
|                                                               1     0     0   |
+-------------------------------------------------------------------------------+
|   0  MIG 1g.5gb+me       20     1/1        4.75       No     14     1     0   |
|                                                               1     1     1   |
+-------------------------------------------------------------------------------+
"""
# Captured on an A100 after `-cgi 19` and `-cgi 9`: the 1g took 6, so the 3g had to take 0.
LGI = """\
+-------------------------------------------------------+
| GPU instances:                                        |
| GPU   Name             Profile  Instance   Placement  |
|                          ID       ID       Start:Size |
|=======================================================|
|   0  MIG 1g.5gb          19       13          6:1     |
+-------------------------------------------------------+
|   0  MIG 3g.20gb          9        1          0:4     |
+-------------------------------------------------------+"""


def test_profiles_are_listed_as_a_real_a100_lists_them():
    printed = listings.profiles(nvml_state("A100-40GB-SXM", {"mig": []}))

    assert printed.startswith(LGIP)
    assert len({len(line) for line in printed.splitlines()}) == 1


def test_free_counts_are_those_of_each_profile_alone():
    state = nvml_state("A100-40GB-SXM", {"mig": ["1g.5gb@6", "3g.20gb@0"]})
    profile = state.board.profiles["1g.5gb"]

    assert f"{remaining_capacity(state.board, state.placed(state.gpus[0]), profile)}/7" in listings.profiles(
        state
    )
    assert "  2/7  " in listings.profiles(state)


def test_instances_are_listed_as_a_real_a100_lists_them():
    assert listings.instances(nvml_state("A100-40GB-SXM", {"mig": ["1g.5gb@6", "3g.20gb@0"]})) == LGI


def test_placements_are_listed_as_a_real_a30_lists_them():
    lines = listings.placements(nvml_state("A30", {"mig": []})).splitlines()

    assert lines[0] == "GPU  0 Profile ID 14 Placements: {0,1,2,3}:1"
    assert lines[-1] == "GPU  0 Profile ID  0 Placement : {0}:4"


@pytest.mark.parametrize("listing", [listings.profiles, listings.placements, listings.instances])
@pytest.mark.parametrize(("sku", "driver"), [("A30", "535.129.03"), ("L4", "580.95.05")])
def test_without_mig_there_is_nothing_to_list(listing, sku, driver):
    assert listing(nvml_state(sku, {}, driver=driver)) == "No MIG-enabled devices found."


def test_while_mig_is_off_a_gpu_has_no_instances_to_list():
    assert listings.instances(nvml_state("A30", {})) == "No MIG-enabled devices found."


def test_an_empty_gpu_has_no_instances():
    assert listings.instances(nvml_state("A30", {"mig": []})) == "No GPU instances found: Not Found"


def test_the_command_reads_a_board_file_a_file_of_a_daemon_and_its_socket(capsys):
    folder = Path(tempfile.mkdtemp(prefix="nvml"))
    (folder / "board.yaml").write_text("sku: A100-40GB-SXM\ngpus: [{mig: [1g.5gb@6, 3g.20gb@0]}]\n")
    state = replace(nvml_state("A100-40GB-SXM", {"mig": ["1g.5gb@6", "3g.20gb@0"]}), boots=1)
    try:
        with serving(state, folder) as socket:
            for source in (folder / "board.yaml", folder / "nvml.json", socket):
                assert main(["lgi", str(source)]) == 0
                assert capsys.readouterr().out == LGI + "\n"
            assert main(["reset", str(socket), state.gpus[0].uuid]) == 0
            assert main(["lgi", str(socket)]) == 0
            assert capsys.readouterr().out == "No GPU instances found: Not Found\n"
            assert main(["reset", str(socket), "GPU-0"]) == 1
        assert main(["lgi", str(folder / "none.yaml")]) == 2
    finally:
        shutil.rmtree(folder)
