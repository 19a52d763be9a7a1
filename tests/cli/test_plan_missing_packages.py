"""A package that is not installed is one line with what to install, not a traceback."""

import sys

import pytest

from tests.support.plans import Planner, gpu, inventory, request

FLEET = inventory(gpu("g0"))


@pytest.fixture
def planner(tmp_path):
    return Planner(tmp_path)


@pytest.fixture
def without(monkeypatch):
    """Make a package, and our modules that load it, look as if it was never installed."""

    def hide(package, *ours):
        for name in [n for n in sys.modules if n.split(".")[0] == package or n.startswith(ours)]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, package, None)

    return hide


def test_without_the_solver_a_plan_says_what_to_install(planner, without):
    without("ortools", *(f"tangram.packing.{room}" for room in ("solve", "model", "search", "assignment")))

    line = planner.refused(FLEET, request("new", "3g.40gb", 1))

    assert line == "this needs the package ortools: pip install 'tangram-operator[cli]'"


def test_a_png_without_matplotlib_is_refused_before_anybody_thinks(planner, without, monkeypatch, tmp_path):
    without("matplotlib")
    monkeypatch.setattr("tangram.cli.plan.document.plan_fleet", lambda *_: pytest.fail("it thought first"))

    line = planner.refused(FLEET, flags=("--picture", tmp_path / "fleet.png"))

    assert line.startswith("--picture: a PNG needs matplotlib: pip install")


def test_a_picture_of_another_format_is_refused_before_anybody_thinks(planner, monkeypatch, tmp_path):
    monkeypatch.setattr("tangram.cli.plan.document.plan_fleet", lambda *_: pytest.fail("it thought first"))

    assert "must end in .svg or .png" in planner.refused(FLEET, flags=("--picture", tmp_path / "a.pdf"))


def test_a_fault_inside_our_own_is_no_package_to_install(planner, monkeypatch):
    def broken(*_):
        raise ModuleNotFoundError("No module named 'tangram.nowhere'", name="tangram.nowhere")

    monkeypatch.setattr("tangram.cli.plan.document.plan_fleet", broken)

    with pytest.raises(ModuleNotFoundError):
        planner.run(FLEET)
