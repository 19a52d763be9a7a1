"""`tangram simulate --law MODULE:FACTORY`: a law of the user, and what is said where there is none."""

import json
import re
import sys
from pathlib import Path

import pytest

from tangram.cli.main import main

ROOT = Path(__file__).parents[2]
FLEET = ROOT / "examples" / "simulate" / "fleet.yaml"
DOCUMENT = ROOT / "docs" / "simulation.md"
LAW = """
from tangram.simulator.controllers import Controller, ControllerView, LawKnowledge

class Doubled:
    interval_s = 60.0

    def __init__(self, replicas):
        self.replicas = replicas

    def decide(self, view: ControllerView) -> int:
        return 2 * self.replicas

def doubled(knowledge: LawKnowledge, knob: float | None) -> Controller:
    return Doubled(2 if knob is None else int(knob))

def half(knowledge, knob):
    law = Doubled(0)
    law.decide = lambda view: 2.5
    return law

def fails(knowledge, knob):
    raise KeyError(knowledge.intent.name)

def without_arguments():
    return Doubled(1)

def nothing(knowledge, knob):
    return None

def without_interval(knowledge, knob):
    law = Doubled(1)
    law.interval_s = "15s"
    return law

number = 3
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Write a module into the current directory; none is left loaded."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    loaded = set(sys.modules)

    def write(text, name="own_law"):
        (tmp_path / f"{name}.py").write_text(text)

    yield write
    for name in set(sys.modules) - loaded:
        if name.partition(".")[0] in {"own_law", "own_package"}:
            del sys.modules[name]


def simulate(law):
    options = "--trace", "azure2023_conv", "--to", "4m", "--law", law, "-o", "json"
    return main(["simulate", "-f", str(FLEET), *options])


@pytest.fixture
def refused(capsys):
    def run(law):
        status = simulate(law)
        out, err = capsys.readouterr()
        assert (status, out, err.count("\n")) == (2, "", 1)
        return err

    return run


@pytest.mark.parametrize(("law", "replicas"), [("own_law:doubled", 4), ("own_law:doubled=3", 6)])
def test_a_module_of_the_current_directory_scales_the_fleet(module, capsys, law, replicas):
    module(LAW)

    assert simulate(law) == 0

    found = json.loads(capsys.readouterr().out)
    assert found["law"] == law
    assert found["seeds"][0]["deployments"][0]["replicas"]["max"] == replicas


@pytest.mark.parametrize("law", ["own_law:on_requests", "own_law:on_requests=4"])
def test_the_law_in_the_documents_scales_the_fleet(module, capsys, law):
    (text,) = re.findall(r"^```python\n(.*?)^```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    module(text)

    assert simulate(law) == 0

    replicas = json.loads(capsys.readouterr().out)["seeds"][0]["deployments"][0]["replicas"]
    assert replicas["min"] < replicas["max"]


@pytest.mark.parametrize(
    ("law", "problem"),
    [
        ("own_law:gone", "own_law has no function gone"),
        ("own_law:number", "own_law has no function number"),
        ("own_law:fails", "own_law:fails failed: KeyError: 'chat' ("),
        (
            "own_law:without_arguments",
            "without_arguments failed: TypeError: without_arguments() takes 0",
        ),
        ("own_law:nothing", "own_law:nothing returned an object of type NoneType: a law has a method decide"),
        ("own_law:without_interval", "a law has a method decide and a number interval_s"),
        ("own_law:doubled=many", "'many' is no value of the knob of own_law:doubled"),
        ("own_laws:doubled", "there is no module own_laws in the current directory or on Python's path"),
        ("own_law.inner:doubled", "there is no module own_law.inner in the current directory"),
        ("own_package.inner.law:new", "there is no module own_package in the current directory"),
        ("own_law:", "'own_law:' is no MODULE:FACTORY"),
        (":doubled", "':doubled' is no MODULE:FACTORY"),
        (".own_law:doubled", "'.own_law:doubled' is no MODULE:FACTORY"),
        ("own_law.py:doubled", "there is no module own_law.py in the current directory"),
    ],
)
def test_a_law_that_is_not_there_or_is_none_is_refused_with_the_reason(module, refused, law, problem):
    module(LAW)

    err = refused(law)

    assert err.startswith("tangram: --law: ")
    assert problem in err


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("1 / 0\n", "cannot be imported: ZeroDivisionError: division by zero (own_law.py:1)"),
        ("import not_installed\n", "imported: ModuleNotFoundError: No module named 'not_installed'"),
        ("def law(:\n", "cannot be imported: SyntaxError: invalid syntax (own_law.py, line 1)"),
    ],
)
def test_a_module_that_cannot_be_imported_is_refused_with_the_line(module, refused, text, problem):
    module(text)

    found = refused("own_law:law")

    assert problem in found.replace(str(Path.cwd()) + "/", "")


def test_no_file_of_the_current_directory_stands_in_for_an_installed_module(module, refused):
    module("def law(knowledge, knob): ...", name="colorsys")

    assert "colorsys has no function law" in refused("colorsys:law")


def test_a_law_that_orders_no_whole_number_ends_the_run_with_its_trace(module):
    module(LAW)

    with pytest.raises(TypeError, match="'float' object cannot be interpreted as an integer"):
        simulate("own_law:half")
