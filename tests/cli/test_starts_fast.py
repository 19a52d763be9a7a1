"""What a command does not need is not loaded: the cluster's client, the solver, plots."""

import subprocess
import sys
from pathlib import Path

CLUSTER = Path(__file__).parents[2] / "examples" / "plan" / "cluster.yaml"
HEAVY = ("kubernetes", "aiohttp", "kopf", "ortools", "matplotlib", "prometheus_client")


def loaded(*commands):
    """Those of HEAVY that a process loads which runs these command lines."""
    program = (
        "import ast, sys; from tangram.cli.main import main;"
        "[main(argv) for argv in ast.literal_eval(sys.argv[1])];"
        f"print(*[name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, repr(commands)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stderr.split("\n")[-2].split()


def test_help_and_lists_load_nothing_heavy():
    helps = (["--help"], ["plan", "--help"], ["explain", "--help"], ["snapshot", "--help"])

    assert loaded(*helps, ["mig", "A30"]) == []


def test_files_are_planned_without_the_clusters_client():
    files = ["-f", str(CLUSTER)]

    assert loaded(["plan", *files], ["explain", "llmdep/chat", *files]) == ["ortools"]


def test_a_cluster_is_read_without_the_operators_framework(tmp_path):
    assert "kopf" not in loaded(["snapshot", "--kubeconfig", str(tmp_path / "nothing")])
