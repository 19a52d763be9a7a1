"""Write the table of flags: `python -m benchmarks.runtimes.flags [ENGINE==VERSION ...]`.

The wheels come from PyPI by pip. Names are read from the syntax trees of their files: nothing is imported. In
vLLM they stand in calls of `add_argument`, and as fields of the classes of frontend arguments. In SGLang they
are fields that are annotated with `A[...]`, and calls of `add_argument`.
"""

import argparse
import ast
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import yaml

TABLE = Path("operator/tangram/runtimes/flag_tables.yaml")
RELEASES = ("vllm==0.33.0", "vllm==0.32.0", "sglang==0.5.23", "sglang==0.5.22")
ENGINES = {"vllm": "vLLM", "sglang": "SGLang"}
HEADER = """\
# Flags of the servers of engines. Written by `python -m benchmarks.runtimes.flags` from the wheels on PyPI: do not edit.
# An entry is one flag with its other spellings. `all`: in every version of the list; `only`: in that version alone.
"""
_MOST_BYTES = 8 << 20  # of one source file
_FILES = {
    "vllm": lambda path: path == "vllm/engine/arg_utils.py" or path.endswith("/cli_args.py"),
    "sglang": lambda path: (
        path == "sglang/srt/server_args.py" or path.startswith("sglang/srt/arg_groups/fields/")
    ),
}


def flags_of(engine: str, wheel: Path) -> frozenset[tuple[str, ...]]:
    """Return the flags of a wheel, each with its other spellings. Raises ValueError where there are none."""
    flags: set[tuple[str, ...]] = set()
    with zipfile.ZipFile(wheel) as archive:
        for info in archive.infolist():
            if not (info.filename.endswith(".py") and _FILES[engine](info.filename)):
                continue
            if info.file_size > _MOST_BYTES:
                raise ValueError(f"{info.filename} has {info.file_size} bytes")
            flags.update(flags_in(ast.parse(archive.read(info))))
    if not flags:
        raise ValueError(f"{wheel.name} has no flags where {engine} had them: {__name__} must be adapted")
    return frozenset(flags)


def flags_in(tree: ast.AST) -> Iterator[tuple[str, ...]]:
    """Yield the flags that a module declares."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "add_argument"
        ):
            names = _strings(node.args)
            if names and all(name.startswith("-") for name in names):
                yield _ordered(names)
        elif isinstance(node, ast.ClassDef):
            yield from _fields(node)


def _fields(owner: ast.ClassDef) -> Iterator[tuple[str, ...]]:
    for field in owner.body:
        if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
            continue
        name, annotation = field.target.id, field.annotation
        is_annotated = (
            isinstance(annotation, ast.Subscript)
            and isinstance(annotation.value, ast.Name)
            and annotation.value.id in ("A", "Annotated")
        )
        if is_annotated or owner.name.endswith("FrontendArgs"):
            yield from _of_field(name, annotation)


def _of_field(name: str, annotation: ast.expr) -> Iterator[tuple[str, ...]]:
    options = {
        keyword.arg: keyword.value
        for node in ast.walk(annotation)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Arg"
        for keyword in node.keywords
    }
    no_cli = options.get("no_cli")
    if isinstance(no_cli, ast.Constant) and no_cli.value is True:
        return
    own = _strings([options["cli_name"]]) if "cli_name" in options else [f"--{name.replace('_', '-')}"]
    aliases = options.get("aliases")
    yield _ordered([*own, *(_strings(aliases.elts) if isinstance(aliases, ast.List) else ())])


def _strings(nodes: Iterable[ast.expr]) -> list[str]:
    return [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def _ordered(names: Iterable[str]) -> tuple[str, ...]:
    """Return the spellings of one flag as argparse of these engines compares them, the longest first."""
    spelled = {name if not name.startswith("--") else "--" + name[2:].replace("_", "-") for name in names}
    return tuple(sorted(spelled, key=lambda name: (-len(name), name)))


def table(flags: dict[tuple[str, str], frozenset[tuple[str, ...]]]) -> dict[str, object]:
    """Return the table, by engine: versions, what all of them have, and what each has beside that."""
    document: dict[str, object] = {}
    for engine in dict.fromkeys(engine for engine, _ in flags):
        by_version = {version: found for (name, version), found in flags.items() if name == engine}
        common = frozenset.intersection(*by_version.values())
        document[ENGINES[engine]] = {
            "versions": list(by_version),
            "all": _lines(common),
            "only": {version: _lines(found - common) for version, found in by_version.items()},
        }
    return document


def _lines(flags: Iterable[tuple[str, ...]]) -> list[str]:
    return sorted(" ".join(names) for names in flags)


def main(arguments: list[str] | None = None) -> int:
    """Download the wheels and write the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.runtimes.flags", description=__doc__)
    parser.add_argument("releases", nargs="*", default=RELEASES, help="default: %(default)s")
    parser.add_argument("--wheels", type=Path, help="a folder of wheels that need not be downloaded")
    parser.add_argument("--output", type=Path, default=TABLE)
    options = parser.parse_args(arguments)
    flags = {}
    for release in options.releases:
        engine, _, version = release.partition("==")
        with tempfile.TemporaryDirectory() as folder:
            wheel = _wheel(release, options.wheels or Path(folder))
            flags[engine, version] = flags_of(engine, wheel)
    text = yaml.safe_dump(table(flags), sort_keys=False, width=140)
    options.output.write_text(HEADER + text, encoding="utf-8")
    return 0


def _wheel(release: str, folder: Path) -> Path:
    engine, _, version = release.partition("==")
    found = sorted(folder.glob(f"{engine}-{version}-*.whl"))
    if not found:
        command = (
            sys.executable,
            "-m",
            "pip",
            "download",
            "--no-deps",
            "--quiet",
            "--dest",
            str(folder),
            release,
        )
        subprocess.run(command, check=True)
        found = sorted(folder.glob(f"{engine}-{version}-*.whl"))
    return found[0]


if __name__ == "__main__":
    sys.exit(main())
