"""`tangram convert`: files of an older form of the API in its present one."""

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
from tangram.cli.input_documents import BOM, file_text
from tangram.cli.output import counted

EXIT_OLD = 1
_FILES = "FILE"


@click.command(name="convert")
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option("-i", "--in-place", is_flag=True, help="Change the files instead of printing.")
@click.option(
    "--check", is_flag=True, help="Change nothing; exit status 1 if a file is not in the present form."
)
@click.option(
    "--default-priority",
    type=click.IntRange(-HIGHEST_VALUE, HIGHEST_VALUE),
    default=CHART_DEFAULT_VALUE,
    show_default=True,
    metavar="VALUE",
    help="Value of the PriorityClass of LLMDeployments that name none; 0 where the operator has no default.",
)
def convert(files: tuple[str, ...], in_place: bool, check: bool, default_priority: int) -> int:
    """Write LLMDeployments and GPUPools of an older form in the present one.

    FILE is YAML or JSON, with any number of documents and Lists, as kubectl applies and prints it; - is
    standard input. Comments, order, quoting and all other documents stay as they are. A spec.priority N
    becomes the name of a PriorityClass of the value N + --default-priority: one of the files, or one that is
    added. Nothing is written unless all files can be converted.

    \b
    tangram convert -i deploy/*.yaml
    kubectl get llmdeployments,gpupools -A -o yaml | tangram convert - > converted.yaml
    """
    if in_place and check:
        raise click.UsageError("--in-place changes files and --check does not: give one of them")
    if in_place and "-" in files:
        raise click.UsageError("standard input cannot be changed in place: leave -i out")
    found = _converted(_each_once(files) if in_place else files, default_priority)
    for each in found:
        for note in each.notes:
            click.echo(f"tangram: {note}", err=True)
    if check:
        return _report(found)
    if in_place:
        _replace([each for each in found if each.after != each.before])
        for each in found:
            click.echo(f"{each.shown}: {counted(len(each.changed), 'field')} converted", err=True)
    else:
        _print(found)
    return 0


def _each_once(files: Iterable[str]) -> tuple[str, ...]:
    """Return the files without those that a link or another path names again: the second conversion would
    replace the first, and a PriorityClass that is added is in the first alone.
    """
    found: dict[object, str] = {}
    for name in files:
        try:
            found.setdefault(Path(name).resolve(), name)
        except (OSError, ValueError, RuntimeError):  # reading it says what is wrong
            found.setdefault(name, name)
    return tuple(found.values())


def _converted(files: Sequence[str], default_priority: int) -> list[Conversion]:
    texts = []
    for name in files:
        shown = "standard input" if name == "-" else name
        texts.append((shown, file_text(name, shown, _FILES)))
    converter = Converter(default_priority)
    for shown, text in texts:
        converter.read(text.removeprefix(BOM), shown)
    return [converter.convert(text, shown) for shown, text in texts]


def _report(found: Iterable[Conversion]) -> int:
    old = [each for each in found if each.after != each.before]
    for each in old:
        for line in each.changed:
            click.echo(line)
    return EXIT_OLD if old else 0


def _print(found: Sequence[Conversion]) -> None:
    """Print the files, bytes as they are; several as one stream of documents."""
    out = sys.stdout.buffer
    for i, each in enumerate(found):
        text = each.after
        if len(found) > 1:
            text = text.removeprefix(BOM)
            if i and not text.startswith(("---", "%")):
                text = f"---\n{text}"
            text += "" if text.endswith("\n") or not text else "\n"
        out.write(text.encode())
    out.flush()


def _replace(found: Iterable[Conversion]) -> None:
    """Replace files, each at once; all new ones are on disk before the first old one goes."""
    with contextlib.ExitStack() as stack:
        ready = [(stack.enter_context(_beside(each)), each) for each in found]
        for path, each in ready:
            try:
                path.replace(Path(each.shown).resolve())
            except OSError as error:
                raise InputError(_FILES, f"cannot replace {each.shown!r}: {error}") from error


@contextlib.contextmanager
def _beside(each: Conversion) -> Iterator[Path]:
    """Write the new text into a file beside the old one, with its mode."""
    target = Path(each.shown).resolve()  # a link stays one
    temporary: Path | None = None
    try:
        try:
            descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
            temporary = Path(name)
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(each.after.encode())
                stream.flush()
                os.fsync(stream.fileno())
            temporary.chmod(target.stat().st_mode & 0o7777)
        except OSError as error:
            raise InputError(_FILES, f"cannot write {each.shown!r}: {error}; nothing was changed") from error
        yield temporary
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
