"""What every module here shares: one kind of error, one kind of progress, bounded waits and commands."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

Progress = Callable[[str], None]

REPOSITORY = Path(__file__).resolve().parents[2]


def silent(_message: str) -> None:
    """The progress callback of a caller that does not listen."""


class ClusterError(Exception):
    """Something is missing or failed. ``remedy`` is the command or the change that gets it."""

    def __init__(self, problem: str, remedy: str = "") -> None:
        super().__init__(f"{problem}\n  remedy: {remedy}" if remedy else problem)
        self.problem = problem
        self.remedy = remedy


def run(
    command: Sequence[str | Path],
    *,
    timeout_s: float,
    stdin: str | bytes | Path | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    check: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Run a command within ``timeout_s``; ``ClusterError`` with the end of its output if it fails.

    ``stdin``: text, bytes, or the path of a file to read from; nothing by default.
    """
    words = [str(word) for word in command]
    try:
        with Path(os.devnull if not isinstance(stdin, Path) else stdin).open("rb") as source:
            done = subprocess.run(
                words,
                **({"input": _bytes(stdin)} if isinstance(stdin, str | bytes) else {"stdin": source}),
                capture_output=True,
                timeout=timeout_s,
                env=None if env is None else {**os.environ, **env},
                cwd=cwd,
                check=False,
            )
    except FileNotFoundError as error:
        raise ClusterError(f"{error.filename} is not there (wanted: {' '.join(words)})") from error
    except subprocess.TimeoutExpired as error:
        raise ClusterError(f"{' '.join(words)} took more than {timeout_s:g} s") from error
    out, err = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
    if check and done.returncode != 0:
        raise ClusterError(f"{' '.join(words)} failed ({done.returncode}):\n{tail(out + err)}")
    return subprocess.CompletedProcess(words, done.returncode, out, err)


def _bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


def tail(text: str, lines: int = 15) -> str:
    """The last lines of an output, where programs say what went wrong."""
    return "\n".join(text.strip().splitlines()[-lines:])


def wait_until(what: str, ready: Callable[[], bool], *, timeout_s: float, every_s: float = 0.1) -> float:
    """Poll ``ready`` until it holds; returns the seconds that it took, or raises naming ``what``."""
    start = time.monotonic()
    while not ready():
        if time.monotonic() - start > timeout_s:
            raise ClusterError(f"{what} did not happen within {timeout_s:g} s")
        time.sleep(every_s)
    return time.monotonic() - start


def write_atomically(path: Path, content: str | bytes, mode: int = 0o644) -> None:
    """Replace a file in one step, so that a reader or an interruption never meets half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # The thread too: steps of one process write the same file side by side.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    temporary.touch(mode=mode)
    temporary.chmod(mode)
    temporary.write_bytes(content.encode() if isinstance(content, str) else content)
    temporary.replace(path)


def which(name: str) -> Path | None:
    """A program on PATH, or in the folders of administrators that a user's PATH often lacks."""
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin:/usr/local/sbin")
    return Path(found) if found else None
