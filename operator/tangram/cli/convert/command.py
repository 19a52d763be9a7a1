"""`tangram convert`: rewrite files of an older form of the API in its present form."""

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import click

from tangram.api.common.priority import CHART_DEFAULT_VALUE, HIGHEST_VALUE
from tangram.catalog import InputError
from tangram.cli.convert.conversion import Conversion, Converter
from tangram.cli.input_documents import BOM, file_text, shown_name
from tangram.cli.output import counted

EXIT_OLD = 1
_FILES = "FILE"


@click.command(name="convert")
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option("-i", "--in-place", is_flag=True, help="Change the files instead of printing them.")
@click.option(
    "--check", is_flag=True, help="Change nothing; list old fields, with exit status 1 if there are any."
)
@click.option(
    "--default-priority",
    type=click.IntRange(-HIGHEST_VALUE, HIGHEST_VALUE),
    default=CHART_DEFAULT_VALUE,
    metavar="VALUE",
    help="Priority of LLMDeployments that name no PriorityClass; 0 if the operator has no default.",
)
def convert(files: tuple[str, ...], in_place: bool, check: bool, default_priority: int) -> int:
    """Convert LLMDeployments and GPUPools of an older form of the API to the present form.

    FILE is YAML or JSON with any number of documents and Lists, as kubectl reads and prints it; - is standard
    input. Comments, order, quoting and all other documents do not change. A spec.priority N becomes the name
    of a PriorityClass of value N + --default-priority: one of the files, or a new one. No file is written
    unless all files can be converted.

    \b
    tangram convert -i deploy/*.yaml
    kubectl get llmdeployments,gpupools -A -o yaml | tangram convert - > converted.yaml
    """
    if in_place and check:
        raise click.UsageError("give either --in-place or --check")
    if in_place and "-" in files:
        raise click.UsageError("standard input cannot be changed in place: leave -i out")
    conversions = _converted(_without_duplicates(files) if in_place else files, default_priority)
    for conversion in conversions:
        for note in conversion.notes:
            click.echo(f"tangram: {note}", err=True)
    if check:
        return _report(conversions)
    if in_place:
        _replace([conversion for conversion in conversions if conversion.after != conversion.before])
        for conversion in conversions:
            click.echo(f"{conversion.shown}: {counted(len(conversion.changed), 'field')} converted", err=True)
    else:
        _print(conversions)
    return 0


def _without_duplicates(files: Iterable[str]) -> tuple[str, ...]:
    """Return each file once, also if links or several paths name it. A file converted twice would be
    overwritten by the second result, which lacks the new PriorityClasses.
    """
    by_path: dict[object, str] = {}
    for name in files:
        try:
            by_path.setdefault(Path(name).resolve(), name)
        except (OSError, ValueError, RuntimeError):  # reading the file reports the error
            by_path.setdefault(name, name)
    return tuple(by_path.values())


def _converted(files: Sequence[str], default_priority: int) -> list[Conversion]:
    texts = [(shown_name(name), file_text(name, _FILES)) for name in files]
    converter = Converter(default_priority)
    for shown, text in texts:
        converter.read(text.removeprefix(BOM), shown)
    return [converter.convert(text, shown) for shown, text in texts]


def _report(conversions: Iterable[Conversion]) -> int:
    old = [conversion for conversion in conversions if conversion.after != conversion.before]
    for conversion in old:
        for line in conversion.changed:
            click.echo(line)
    return EXIT_OLD if old else 0


def _print(conversions: Sequence[Conversion]) -> None:
    """Print one file byte by byte, several as one stream of documents."""
    out = sys.stdout.buffer
    for i, conversion in enumerate(conversions):
        text = conversion.after
        if len(conversions) > 1:
            text = text.removeprefix(BOM)
            if i and not text.startswith(("---", "%")):
                text = f"---\n{text}"
            text += "" if text.endswith("\n") or not text else "\n"
        out.write(text.encode())
    out.flush()


def _replace(conversions: Iterable[Conversion]) -> None:
    """Replace files atomically; all new files are on disk before the first old one is replaced."""
    with contextlib.ExitStack() as stack:
        ready = [(stack.enter_context(_temporary_copy(conversion)), conversion) for conversion in conversions]
        for path, conversion in ready:
            try:
                path.replace(Path(conversion.shown).resolve())
            except OSError as error:
                raise InputError(_FILES, f"cannot replace {conversion.shown!r}: {error}") from error


@contextlib.contextmanager
def _temporary_copy(conversion: Conversion) -> Iterator[Path]:
    """Write the new text to a temporary file in the same directory, with the same mode."""
    target = Path(conversion.shown).resolve()  # the target of a link
    temporary: Path | None = None
    try:
        try:
            descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
            temporary = Path(name)
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(conversion.after.encode())
                stream.flush()
                os.fsync(stream.fileno())
            temporary.chmod(target.stat().st_mode & 0o7777)
        except OSError as error:
            raise InputError(
                _FILES, f"cannot write {conversion.shown!r}: {error}; nothing was changed"
            ) from error
        yield temporary
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
