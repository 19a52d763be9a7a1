"""A package that is not installed is one line with what to install, not a traceback."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tangram.cli.installation import installation
from tangram.cli.main import COMMANDS, main
from tests.support.plans import Planner, gpu, inventory, request

FLEET = inventory(gpu("g0"))


@pytest.fixture
def planner(tmp_path):
    return Planner(tmp_path)


@pytest.fixture
def without(monkeypatch):
    """Make a package, and our modules that load it, look as if it was never installed.

    Modules that are loaded meanwhile are no attributes of the packages that come back: they are forgotten.
    """
    loaded = set(sys.modules)

    def hide(package, *ours):
        for name in [n for n in sys.modules if n.split(".")[0] == package or n.startswith(ours)]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, package, None)

    yield hide
    for name in set(sys.modules) - loaded:
        if name.split(".")[0] in ("tangram", "tangram_engine"):
            del sys.modules[name]


def test_without_the_solver_a_plan_says_what_to_install(planner, without):
    without("ortools", *(f"tangram.packing.{room}" for room in ("solve", "model", "search", "assignment")))

    line = planner.refused(FLEET, request("new", "3g.40gb", 1))

    assert line == f"this needs the package ortools: {installation()}"


def test_a_png_without_matplotlib_is_refused_before_anybody_thinks(planner, without, monkeypatch, tmp_path):
    without("matplotlib")
    monkeypatch.setattr("tangram.cli.plan.document.plan_fleet", lambda *_: pytest.fail("it thought first"))

    line = planner.refused(FLEET, flags=("--picture", tmp_path / "fleet.png"))

    assert line.startswith(
        "--picture: a PNG needs matplotlib: in the folder of Tangram's source, pip install"
    )


def test_a_picture_of_another_format_is_refused_before_anybody_thinks(planner, monkeypatch, tmp_path):
    monkeypatch.setattr("tangram.cli.plan.document.plan_fleet", lambda *_: pytest.fail("it thought first"))

    assert "must end in .svg or .png" in planner.refused(FLEET, flags=("--picture", tmp_path / "a.pdf"))


def test_a_fault_inside_our_own_is_no_package_to_install(planner, monkeypatch):
    def broken(*_):
        raise ModuleNotFoundError("No module named 'tangram.nowhere'", name="tangram.nowhere")

    monkeypatch.setattr("tangram.cli.plan.document.plan_fleet", broken)

    with pytest.raises(ModuleNotFoundError):
        planner.run(FLEET)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_every_command_needs_no_client_of_a_cluster(command, without, capsys):
    for package in ("aiohttp", "kubernetes", "kopf", "pycurl", "pynvml"):
        without(package, "tangram.kube", "tangram.cli", "tangram.shell")

    assert main([command, "--help"]) == 0
    assert f"Usage: tangram {command}" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [("snapshot",), ("explain", "chat"), ("scale", "chat", "--auto"), ("approve", "60336f49ed9c")],
)
def test_a_command_that_reads_a_cluster_says_what_to_install(arguments, without, capsys):
    without("aiohttp", "tangram.kube", "tangram.cli")

    assert main([*arguments]) == 2
    assert (
        capsys.readouterr().err == f"tangram: this needs the package aiohttp: {installation('cli,cluster')}\n"
    )


def test_what_commands_need_of_a_cluster_is_what_the_extra_installs():
    """With nothing but the extras `cli` and `cluster`, every module of a command can be imported."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    others = {_package(line) for line in extras["operator"]} - {
        _package(line) for line in (*extras["cli"], *extras["cluster"])
    }
    script = f"""
import sys
sys.modules.update(dict.fromkeys({sorted(_MODULES.get(name, name) for name in others)!r}))
import tangram.cli.approve.consent, tangram.cli.scale.replicas, tangram.cli.cluster.observed_cluster
"""
    subprocess.run([sys.executable, "-c", script], check=True)


_MODULES = {"nvidia-ml-py": "pynvml"}  # by package, where they differ


def _package(requirement):
    return re.match(r"[\w.-]+", requirement)[0]
