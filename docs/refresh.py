"""Re-make what commands print inside documents, so that no number in them is typed by hand.

    python docs/refresh.py [--check] [FILE...]        default: every document that has such parts

A document in which only last digits would change is left as it is.

Two forms, in any Markdown file:

    <!-- made by: python some/script.py -->           the output is Markdown and stands as it is,
    <!-- end -->                                      between the two comments

    ```console                                        a command and what it prints, in the order of the file
    $ tangram mig A30
    ```
"""

import argparse
import io
import os
import re
import shlex
import subprocess
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

from tangram.cli.main import main as main_of_tangram

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = (
    "docs/sizing.md",
    "docs/packing.md",
    "docs/rules-of-thumb.md",
    "docs/simulation.md",
    "docs/engine.md",
    "examples/llama-70b-chat/README.md",
)
MADE = re.compile(r"(<!-- made by: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
# Another machine's mathematical library may round the last digit otherwise, and a bisection ends elsewhere.
TOLERANCE = 0.03
CONSOLE = re.compile(r"(```console\n)(.*?)(```)", re.DOTALL)
# As wide as a console block may be before a page scrolls.
WIDTH = "118"


class CommandFailed(Exception):
    """A command of a document ended with an error."""


def output(command: str) -> str:
    """Run one command in the repository's root; return what it prints. Raises `CommandFailed`."""
    program, *arguments = shlex.split(command)
    if program == "tangram":
        status, printed, errors = _tangram(arguments)
    elif program == "python":
        status, printed, errors = _python(arguments)
    else:
        raise CommandFailed(f"{command}: only python and tangram are run from documents")
    if status:
        raise CommandFailed(f"{command}: exit status {status}\n{errors}")
    return printed.rstrip() + "\n"


def _tangram(arguments: list[str]) -> tuple[int, str, str]:
    """Run `tangram` in this process, which loads its modules once for all documents."""
    printed, errors = io.StringIO(), io.StringIO()
    wide = patch.dict(os.environ, COLUMNS=WIDTH)
    with wide, chdir(ROOT), redirect_stdout(printed), redirect_stderr(errors):
        status = main_of_tangram(arguments)
    return status, printed.getvalue(), errors.getvalue()


def _python(arguments: list[str]) -> tuple[int, str, str]:
    path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), f"{ROOT}/operator")))
    env = {**os.environ, "COLUMNS": WIDTH, "PYTHONPATH": path, "PYTHONUTF8": "1"}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout, done.stderr


def refreshed(text: str) -> str:
    """Return the document with every command's present output."""
    text = MADE.sub(lambda found: f"{found[1]}\n{output(found[2])}\n{found[3]}", text)
    return CONSOLE.sub(lambda found: found[1] + _session(found[2]) + found[3], text)


def same(one: str, other: str) -> bool:
    """Whether two texts differ in nothing but blanks, rules of tables, and numbers by rounding."""
    return _skeleton(one) == _skeleton(other) and all(
        abs(a - b) <= TOLERANCE * max(abs(a), abs(b)) + 0.01
        for a, b in zip(_numbers(one), _numbers(other), strict=True)
    )


def _skeleton(text: str) -> str:
    return re.sub(r"[\s-]+", " ", NUMBER.sub("#", text))


def _numbers(text: str) -> list[float]:
    return [float(number.replace(",", "")) for number in NUMBER.findall(text)]


def _session(block: str) -> str:
    commands = [line for line in block.splitlines() if line.startswith("$ ")]
    return "\n".join(f"{line}\n{output(line[2:])}" for line in commands)


def main() -> int:
    """Refresh or check the documents; return the exit status."""
    parser = argparse.ArgumentParser(description="Re-make what commands print inside documents.")
    parser.add_argument("--check", action="store_true", help="change nothing; fail where something differs")
    parser.add_argument("files", nargs="*", type=Path, default=[ROOT / name for name in DOCUMENTS])
    wanted = parser.parse_args()
    stale = []
    for path in wanted.files:
        before = path.read_text()
        try:
            after = refreshed(before)
        except CommandFailed as error:
            sys.stderr.write(f"{path}: {error}\n")
            return 1
        if not same(before, after):
            stale.append(path)
            if not wanted.check:
                path.write_text(after)
    for path in stale:
        sys.stdout.write(f"{'stale' if wanted.check else 'refreshed'}: {path}\n")
    return 1 if stale and wanted.check else 0


if __name__ == "__main__":
    sys.exit(main())
