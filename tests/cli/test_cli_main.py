import importlib
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest

from tangram.catalog import InputError
from tangram.cli import main as cli
from tangram.cli.main import COMMANDS, main

ROOT = Path(__file__).parents[2]


def test_help_lists_every_command_and_imports_none(monkeypatch, capsys):
    monkeypatch.setattr(cli.importlib, "import_module", lambda name: pytest.fail(f"{name} imported"))

    status = main(["--help"])

    out = capsys.readouterr().out
    assert status == 0
    for name, (_, summary) in COMMANDS.items():
        assert f"  {name} " in out
        assert summary in " ".join(out.split())


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_there_and_explains_itself(name, capsys):
    module, attribute = f"tangram.cli.{COMMANDS[name][0]}".split(":")

    status = main([name, "--help"])

    assert isinstance(getattr(importlib.import_module(module), attribute), click.Command)
    assert status == 0
    out = capsys.readouterr().out
    assert out.startswith(f"Usage: tangram {name} ")
    assert all(len(line) <= 110 for line in out.splitlines())


def test_a_command_whose_module_is_broken_is_our_error_not_the_users(monkeypatch):
    monkeypatch.setitem(COMMANDS, "gpus", ("nowhere:gpus", "Nothing"))

    with pytest.raises(ModuleNotFoundError):
        main(["gpus"])


def test_without_a_command_it_shows_its_help_and_fails(capsys):
    assert main([]) == 2
    assert "Usage: tangram" in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv", [["frobnicate"], ["--frobnicate"], ["gpus", "--frobnicate"], ["mig", "x", "y"]]
)
def test_what_it_does_not_know_ends_in_one_line_that_points_to_the_help(argv, capsys):
    assert main(argv) == 2

    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "--help" in err


@pytest.mark.parametrize(
    ("raised", "status", "printed"),
    [
        (InputError("--sku", "no such\nthing"), 2, "tangram: --sku: no such thing\n"),
        (click.UsageError("neither"), 2, "tangram: neither (see `tangram anything --help`)\n"),
        (KeyboardInterrupt(), 130, "\n"),
    ],
    ids=["input", "usage", "interrupted"],
)
def test_what_a_command_raises_decides_the_exit_status(raised, status, printed, monkeypatch, capsys):
    @click.command()
    def fails():
        raise raised

    monkeypatch.setattr(cli.tangram, "get_command", lambda _context, _name: fails)

    assert main(["anything"]) == status
    assert capsys.readouterr().err == printed


def test_the_version_is_the_distributions(capsys):
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

    assert main(["--version"]) == 0
    assert version in capsys.readouterr().out


def test_the_module_runs_as_the_command_does():
    found = subprocess.run(
        [sys.executable, "-m", "tangram.cli.main", "mig", "L4"], capture_output=True, text=True, check=False
    )

    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr == "tangram: SKU: L4 does not support MIG\n"
