"""Which tests run a function, and which mutants of it they kill.

Each run is a process that imports the product anew, forked from one that has imported third-party packages
alone: a mutant costs the import of the product and the tests that call the mutated function, fastest first,
until one fails.
"""

import ast
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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import pytest

from benchmarks.structure import functions
from tests.mutation.mutants import Mutant, mutated_source
from tests.support.process_tree import processor_seconds

_QUIET = ["-q", "--no-header", "-p", "no:cacheprovider", "-p", "no:logging"]
_QUIET += [
    "-W",
    "ignore::pytest.PytestAssertRewriteWarning",
    "-m",
    "not apiserver and not cluster and not faults and not campaign",
]
KILLED, SURVIVED, TIMEOUT, NOT_COVERED = "killed", "survived", "timeout", "not covered"


@dataclass(slots=True)
class Coverage:
    """Which tests call a function, by (file, qualified name); and the processor time of each test."""

    tests: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


class Tracer:
    """A pytest plugin that notes which functions each test calls, those of its fixtures included."""

    def __init__(self) -> None:
        self.called: set[tuple[str, str]] = set()  # by the running test: what `_noting` adds
        self.calls: dict[str, list[tuple[str, str]]] = {}
        self.seconds: dict[str, float] = {}
        self.failed: list[str] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Note the calls of one test."""
        self.called.clear()
        started = processor_seconds()
        try:
            return (yield)
        finally:
            self.seconds[item.nodeid] = processor_seconds() - started
            self.calls[item.nodeid] = sorted(self.called)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remember failures: a test that fails without a mutant judges nothing."""
        if report.failed:
            self.failed.append(report.nodeid)


def traced(tests: list[str], files: Mapping[str, Path], folder: Path) -> Coverage:
    """Run the tests once and return which of them call the functions of `files`, which are named by module.

    A test that fails without a mutant judges nothing: it is left out, and said.
    """

    def job() -> int:
        tracer = Tracer()
        sources = {module: (path, _noting(path)) for module, path in files.items()}
        sys.meta_path.insert(0, RewrittenModules(sources, {"__called__": tracer.called}))
        pytest.main([*_QUIET, *tests], plugins=[tracer])
        document = {"calls": tracer.calls, "seconds": tracer.seconds, "failed": tracer.failed}
        (folder / "coverage.json").write_text(json.dumps(document))
        return 0

    if forked(job, folder / "coverage.log", 3600) != 0:
        raise RuntimeError(f"the tests could not be traced: see {folder / 'coverage.log'}")
    document = json.loads((folder / "coverage.json").read_text())
    if document["failed"]:
        print(f"left out, for they fail without a mutant: {document['failed']}", flush=True)  # noqa: T201
    coverage = Coverage(seconds=document["seconds"])
    for test in document["calls"].keys() - set(document["failed"]):
        for file, function in document["calls"][test]:
            coverage.tests.setdefault((file, function), []).append(test)
    return coverage


def _noting(path: Path) -> str:
    """Return the source of a file whose functions add their (file, qualified name) to `__called__`."""
    tree = ast.parse(path.read_text())
    for name, function in functions(tree).items():
        note = ast.parse(f"__called__.add({(str(path), name)!r})").body[0]
        first = function.body[0]
        has_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
        function.body.insert(int(has_docstring), note)
    return ast.unparse(ast.fix_missing_locations(tree))


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
        sys.meta_path.insert(0, RewrittenModules({mutant.module: (path, source)}, {}))
        return int(pytest.main([*_QUIET, "-x", "--timeout=60", *chosen]))

    seconds = sum(coverage.seconds[test] for test in chosen)
    status = forked(job, folder / "mutant.log", 60 + 6 * seconds)
    return SURVIVED if status == 0 else TIMEOUT if status is None else KILLED


class RewrittenModules(importlib.machinery.PathFinder):
    """Finds modules with another source, which may use `names` beside the built-in ones."""

    def __init__(self, sources: Mapping[str, tuple[Path, str]], names: Mapping[str, Any]) -> None:
        self.sources, self.names = sources, names

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> Any:
        """Return where a rewritten module is loaded from; None: not this finder's."""
        if fullname not in self.sources:
            return None
        file, source = self.sources[fullname]
        return importlib.util.spec_from_file_location(
            fullname,
            file,
            loader=RewrittenLoader(fullname, str(file), source, self.names),
            submodule_search_locations=[str(file.parent)] if file.name == "__init__.py" else None,
        )


class RewrittenLoader(importlib.machinery.SourceFileLoader):
    """Compiles a given source in place of the file."""

    def __init__(self, fullname: str, path: str, source: str, names: Mapping[str, Any]) -> None:
        super().__init__(fullname, path)
        self.source, self.names = source, names

    def get_code(self, fullname: str) -> CodeType:
        """Return the code of the source."""
        return compile(self.source, self.path, "exec")

    def exec_module(self, module: ModuleType) -> None:
        """Run the module with the names in it."""
        vars(module).update(self.names)
        super().exec_module(module)


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
