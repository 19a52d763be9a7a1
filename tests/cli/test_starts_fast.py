"""What a command does not need is not loaded: the cluster's client, the solver, plots."""

import subprocess
import sys
from pathlib import Path

import pytest

CLUSTER = Path(__file__).parents[2] / "examples" / "plan" / "cluster.yaml"
HEAVY = ("kubernetes", "aiohttp", "kopf", "ortools", "matplotlib", "prometheus_client")


def loaded(*argv):
    """Those of HEAVY that a run of the command line loads."""
    program = (
        "import sys; from tangram.cli.main import main; main(sys.argv[1:]);"
        f"print(*[name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *argv], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stderr.split("\n")[-2].split()


@pytest.mark.parametrize(
    "argv", [("--help",), ("mig", "A30"), *((c, "--help") for c in ("plan", "explain", "snapshot"))]
)
def test_help_and_lists_load_nothing_heavy(argv):
    assert loaded(*argv) == []


@pytest.mark.parametrize("argv", [("plan",), ("explain", "llmdep/chat")])
def test_files_are_planned_without_the_clusters_client(argv):
    found = loaded(*argv, "-f", str(CLUSTER))

    assert found == ["ortools"]


def test_a_cluster_is_read_without_the_operators_framework(tmp_path):
    assert "kopf" not in loaded("snapshot", "--kubeconfig", str(tmp_path / "nothing"))
