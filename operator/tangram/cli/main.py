"""The `tangram` command: finds the subcommand, turns a person's errors into one line and exit status 2."""

import contextlib
import importlib
import io
import sys

import click

from tangram.catalog import InputError

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
_OF_THE_CLUSTER = {"aiohttp", "kubernetes"}  # packages that only commands which read a cluster need

# name -> (module:attribute, what it does). Imported when run: `tangram mig` must not pay for the simulation,
# and `tangram --help` for nothing at all.
COMMANDS = {
    "size": ("tangram.cli.size.command:size_command", "Rank the GPUs and slices that serve a model in time"),
    "plan": ("tangram.cli.plan.command:plan", "Plan a whole fleet: which slice of which GPU serves what"),
    "explain": ("tangram.cli.explain.command:explain", "Explain what one LLMDeployment runs on, and why"),
    "snapshot": ("tangram.cli.snapshot.command:snapshot", "Save what the operator sees, for tangram plan"),
    "convert": ("tangram.cli.convert.command:convert", "Write files of an older API in its present form"),
    "scale": (
        "tangram.cli.scale.command:scale",
        "Set how many replicas one LLMDeployment has, or let Tangram scale",
    ),
    "explain-memory": (
        "tangram.cli.explain_memory.command:explain_memory",
        "Show where a replica's memory goes",
    ),
    "diagnose": ("tangram.cli.diagnose.command:diagnose", "Say what a running engine is waiting for"),
    "predict": ("tangram.cli.predict.command:predict", "Score the model against measured points"),
    "gpus": ("tangram.cli.gpus.command:gpus", "List the GPUs of the catalog, with prices and sources"),
    "mig": ("tangram.cli.gpus.command:mig", "List the MIG profiles of one GPU or all"),
}


class Lazy(click.Group):
    """A group whose commands are imported when they are run."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order in which people meet them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one command, None if there is none of that name."""
        if cmd_name not in COMMANDS:
            return None
        module, attribute = COMMANDS[cmd_name][0].split(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])


@click.group(cls=Lazy, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="tangram-operator", prog_name="tangram")
def tangram() -> None:
    """Size, plan, explain and diagnose LLM inference on GPUs and MIG slices. Most of it needs no cluster."""


def main(argv: list[str] | None = None) -> int:
    """Run one command; return the exit status: 0, 1 (our fault), 2 (the input's fault)."""
    _print_whatever_the_locale()
    try:
        return int(tangram.main(args=argv, prog_name="tangram", standalone_mode=False) or 0)
    except InputError as error:
        return _refuse(str(error))
    except ModuleNotFoundError as error:
        return _refuse(_to_install(error))
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return EXIT_USAGE
    except click.ClickException as error:
        hint = (
            f" (see `{error.ctx.command_path} --help`)"
            if isinstance(error, click.UsageError) and error.ctx
            else ""
        )
        return _refuse(error.format_message() + hint)
    except click.Abort:
        return EXIT_INTERRUPTED


def _to_install(error: ModuleNotFoundError) -> str:
    """Say which optional package a command needs. A fault inside our own stays what it is."""
    package = (error.name or "").partition(".")[0]
    if package in {"", "tangram"}:
        raise error
    extras = "operator,cli" if package in _OF_THE_CLUSTER else "cli"
    return f"this needs the package {package}: pip install 'tangram-operator[{extras}]'"


def _refuse(problem: str) -> int:
    """One line, whatever the problem quotes."""
    click.echo("tangram: " + " ".join(problem.split()), err=True)
    return EXIT_USAGE


def _print_whatever_the_locale() -> None:
    """A character that the terminal's encoding lacks becomes `?`, not a crash."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            with contextlib.suppress(ValueError):
                stream.reconfigure(errors="replace")


if __name__ == "__main__":
    sys.exit(main())
