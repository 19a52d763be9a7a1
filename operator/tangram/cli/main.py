"""The `tangram` command: run a subcommand; print errors of the input as one line, with exit status 2."""

import contextlib
import importlib
import io
import sys

import click

from tangram.catalog import InputError
from tangram.cli.installation import installation

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
# Extra beside `cli` of packages that only some commands need: those that read a cluster, or a hub.
_EXTRAS = {"aiohttp": "cluster", "kubernetes": "cluster", "huggingface_hub": "fetch", "httpx2": "fetch"}

# name -> (module of this package:attribute, summary). A command is imported when it runs: `tangram mig` does
# not load the simulation, and `tangram --help` loads no command.
COMMANDS = {
    "size": ("size.command:size_command", "Rank the GPUs and MIG slices that serve a model"),
    "plan": ("plan.command:plan", "Plan which GPUs and slices of a fleet serve each LLMDeployment"),
    "simulate": (
        "simulate.command:simulate",
        "Simulate what a fleet would cost and serve under a trace",
    ),
    "explain": ("explain.command:explain", "Explain what one LLMDeployment runs on, and why"),
    "snapshot": ("snapshot.command:snapshot", "Save the operator's view of a cluster for tangram plan"),
    "scale": ("scale.command:scale", "Set the replicas of one LLMDeployment, or let Tangram scale it"),
    "approve": ("approve.command:approve", "Approve or reject a FleetPlan of changes"),
    "explain-memory": (
        "explain_memory.command:explain_memory",
        "Show how a replica uses the memory of a GPU or slice",
    ),
    "diagnose": ("diagnose.command:diagnose", "Diagnose what limits a running engine"),
    "predict": ("predict.command:predict", "Score predicted latencies against measured ones"),
    "gpus": ("gpus.command:gpus", "List the GPUs of the catalog, with prices and sources"),
    "mig": ("gpus.command:mig", "List the MIG profiles of one GPU or all"),
}


class LazyGroup(click.Group):
    """A group that imports a command when it runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of `COMMANDS`."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one command; None: no command has that name."""
        if cmd_name not in COMMANDS:
            return None
        module, attribute = COMMANDS[cmd_name][0].split(":")
        command: click.Command = getattr(importlib.import_module(f"tangram.cli.{module}"), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110, "show_default": True},
)
@click.version_option(package_name="tangram-operator", prog_name="tangram")
def tangram() -> None:
    """Size, plan, explain and diagnose LLM inference on GPUs and MIG slices, mostly without a cluster."""


def main(argv: list[str] | None = None) -> int:
    """Run one command; return the exit status: 0, 1 (as the command defines it) or 2 (invalid input)."""
    _replace_unprintable_characters()
    try:
        return int(tangram.main(args=argv, prog_name="tangram", standalone_mode=False) or 0)
    except InputError as error:
        return _print_error(str(error))
    except ModuleNotFoundError as error:
        return _print_error(_install_hint(error))
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return EXIT_USAGE
    except click.ClickException as error:
        context = error.ctx if isinstance(error, click.UsageError) else None
        hint = f" (see `{context.command_path} --help`)" if context else ""
        return _print_error(error.format_message() + hint)
    except click.Abort:
        return EXIT_INTERRUPTED


def _install_hint(error: ModuleNotFoundError) -> str:
    """Return how to install the optional package that a command needs; re-raise for a Tangram module."""
    package = (error.name or "").partition(".")[0]
    if package in {"", "tangram"}:
        raise error
    extras = f"cli,{_EXTRAS[package]}" if package in _EXTRAS else "cli"
    return f"this needs the package {package}: {installation(extras)}"


def _print_error(problem: str) -> int:
    """Print the problem in one line and return the exit status."""
    click.echo("tangram: " + " ".join(problem.split()), err=True)
    return EXIT_USAGE


def _replace_unprintable_characters() -> None:
    """Print `?` for a character that the encoding of the terminal lacks, instead of raising."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            with contextlib.suppress(ValueError):
                stream.reconfigure(errors="replace")


if __name__ == "__main__":
    sys.exit(main())
