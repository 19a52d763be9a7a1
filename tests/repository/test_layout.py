"""The repository's own laws: the names it must not shadow and the versions it must not lose."""

import operator
import re
import subprocess
import sys
import sysconfig
from importlib.metadata import requires, version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def tracked_files() -> list[Path]:
    listing = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [ROOT / line for line in listing.splitlines() if (ROOT / line).is_file()]


def test_the_standard_librarys_operator_is_never_shadowed() -> None:
    assert Path(operator.__file__).parent == Path(sysconfig.get_path("stdlib"))
    assert not list((ROOT / "operator").glob("*.py"))


def test_python_starts_with_the_repository_first_on_its_path() -> None:
    # -S: site customisation would have loaded the real module already and hidden the mistake.
    command = [sys.executable, "-S", "-c", "import collections, operator; print(operator.__file__)"]
    started = subprocess.run(
        command, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )

    assert started.returncode == 0, started.stderr
    assert not started.stdout.startswith(str(ROOT))


def test_ortools_was_not_silently_downgraded_by_a_protobuf_conflict() -> None:
    assert tuple(int(part) for part in version("ortools").split(".")[:2]) >= (9, 15)


def test_the_operator_extra_asks_for_no_torch() -> None:
    wanted = [line for line in requires("tangram-operator") or [] if re.search(r"extra == .operator.", line)]

    assert wanted
    assert not [line for line in wanted if re.match(r"(torch|triton|transformers|safetensors)\b", line)]


def test_the_operator_lock_holds_no_torch() -> None:
    lock = (ROOT / "requirements" / "operator.lock").read_text()

    assert re.search(r"^ortools==9\.15", lock, re.MULTILINE)
    assert not re.search(r"^(torch|triton|nvidia-cu\w+)", lock, re.MULTILINE)


def test_locks_name_no_registry() -> None:
    for lock in (ROOT / "requirements").glob("*.lock"):
        assert "://" not in lock.read_text(), lock


def test_files_stay_short_enough_to_hold_in_the_head() -> None:
    ours = [
        p for p in tracked_files() if p.suffix == ".py" and p.parts[len(ROOT.parts)] in ("operator", "engine")
    ]
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in ours}

    assert ours
    assert {name: n for name, n in lengths.items() if n > 450} == {}


def test_tests_on_a_whole_cluster_lie_where_make_e2e_looks_for_them() -> None:
    marked = [p for p in tracked_files() if p.name.startswith("test_") and "mark.cluster" in p.read_text()]

    assert {str(path.parent.relative_to(ROOT)) for path in marked} - {"tests/repository"} == {
        "e2e/tests",
        "tests/cluster_provider",
    }
