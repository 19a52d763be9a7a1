"""Which tests run a function, and which mutants of it they kill.

Each run is a process that imports the product anew, forked from one that has imported third-party packages
alone: a mutant costs the import of the product and the tests that call the mutated function, fastest first,
until one fails.
"""

import contextlib
import importlib
import importlib.machinery
import importlib.util
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

import pytest

from tests.mutation.mutants import Mutant, mutated_source

_QUIET = ["-q", "--no-header", "-p", "no:cacheprovider", "-p", "no:logging"]
_QUIET += ["-W", "ignore::pytest.PytestAssertRewriteWarning", "-m", "not apiserver and not cluster"]
KILLED, SURVIVED, TIMEOUT, NOT_COVERED = "killed", "survived", "timeout", "not covered"


@dataclass(slots=True)
class Coverage:
    """Which tests call a function, by (file, qualified name); and the seconds that each test takes."""

    tests: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


class Tracer:
    """A pytest plugin that notes which functions of some files each test calls."""

    def __init__(self, files: frozenset[str]) -> None:
        self.files = files
        self.calls: dict[str, set[tuple[str, str]]] = {}
        self.seconds: dict[str, float] = {}
        self.failed: list[str] = []
        self._known: dict[CodeType, tuple[str, str] | None] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Note the calls of one test, its fixtures included."""
        called: set[tuple[str, str]] = set()
        known, files = self._known, self.files

        def note(frame: FrameType, event: str, _arg: Any) -> None:
            if event == "call":
                code = frame.f_code
                if code not in known:
                    known[code] = (
                        (code.co_filename, code.co_qualname.split(".<")[0])
                        if code.co_filename in files
                        else None
                    )
                if (name := known[code]) is not None:
                    called.add(name)

        started = time.perf_counter()
        sys.setprofile(note)
        try:
            return (yield)
        finally:
            sys.setprofile(None)
            self.seconds[item.nodeid] = time.perf_counter() - started
            self.calls[item.nodeid] = called

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remember failures: a test that fails without a mutant judges nothing."""
        if report.failed:
            self.failed.append(report.nodeid)


def traced(tests: list[str], files: frozenset[str], folder: Path) -> Coverage:
    """Run the tests once and return what each function is called by. Raises where a test fails."""

    def job() -> int:
        tracer = Tracer(files)
        pytest.main([*_QUIET, *tests], plugins=[tracer])
        document = {
            "calls": {test: sorted(names) for test, names in tracer.calls.items()},
            "seconds": tracer.seconds,
            "failed": tracer.failed,
        }
        (folder / "coverage.json").write_text(json.dumps(document))
        return 0

    if forked(job, folder / "coverage.log", 3600) != 0:
        raise RuntimeError(f"the tests could not be traced: see {folder / 'coverage.log'}")
    document = json.loads((folder / "coverage.json").read_text())
    if document["failed"]:
        raise RuntimeError(f"tests fail without a mutant: {document['failed'][:5]}")
    coverage = Coverage(seconds=document["seconds"])
    for test, names in document["calls"].items():
        for name in names:
            coverage.tests.setdefault((name[0], name[1]), []).append(test)
    return coverage


def verdict(mutant: Mutant, path: Path, coverage: Coverage, budget_s: float, folder: Path) -> str:
    """Return what becomes of a mutant under the tests that call its function, within a budget of seconds."""
    tests = sorted(
        coverage.tests.get((str(path), mutant.function), ()), key=lambda test: (coverage.seconds[test], test)
    )
    if not tests:
        return NOT_COVERED
    chosen, total = [], 0.0
    for test in tests:
        total += coverage.seconds[test]
        if chosen and total > budget_s:
            break
        chosen.append(test)
    source = mutated_source(path.read_text(), mutant)

    def job() -> int:
        sys.meta_path.insert(0, MutatedFinder(mutant.module, path, source))
        return int(pytest.main([*_QUIET, "-x", "--timeout=60", *chosen]))

    seconds = sum(coverage.seconds[test] for test in chosen)
    status = forked(job, folder / "mutant.log", 20 + 4 * seconds)
    return SURVIVED if status == 0 else TIMEOUT if status is None else KILLED


class MutatedFinder(importlib.machinery.PathFinder):
    """Finds one module with another source."""

    def __init__(self, module: str, path: Path, source: str) -> None:
        self.module, self.path, self.source = module, path, source

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> Any:
        """Return where the mutated module is loaded from; None: not this finder's."""
        if fullname != self.module:
            return None
        loader = MutatedLoader(fullname, str(self.path), self.source)
        is_package = self.path.name == "__init__.py"
        return importlib.util.spec_from_file_location(
            fullname,
            self.path,
            loader=loader,
            submodule_search_locations=[str(self.path.parent)] if is_package else None,
        )


class MutatedLoader(importlib.machinery.SourceFileLoader):
    """Compiles a given source in place of the file."""

    def __init__(self, fullname: str, path: str, source: str) -> None:
        super().__init__(fullname, path)
        self.source = source

    def get_code(self, fullname: str) -> CodeType:
        """Return the code of the mutated source."""
        return compile(self.source, self.path, "exec")


def forked(job: Callable[[], int], log: Path, limit_s: float) -> int | None:
    """Run a job in a process of its own and return its exit status; None: it was ended after `limit_s`."""
    child = os.fork()
    if child == 0:
        status = 70
        try:
            os.setsid()
            out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(out, 1)
            os.dup2(out, 2)
            status = job()
        except BaseException:  # noqa: BLE001 - the process ends here, whatever it was
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(status)
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)  # what the tests started and left
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def preload(modules: list[str]) -> None:
    """Import third-party packages once, for all processes that are forked from this one."""
    for name in ("hypothesis", *modules):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
