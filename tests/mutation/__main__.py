"""`python -m tests.mutation`: mutants of the decisions, and how many of them the tests kill.

    python -m tests.mutation                      200 mutants an area; fails if a score is below scores.toml
    python -m tests.mutation sample -o FILE       the mutants alone
    python -m tests.mutation run SAMPLE -o FILE   those mutants; --areas: in a tree with other names
    python -m tests.mutation translate SAMPLE TREE -o FILE   a sample of another tree, in this one's names

A sample is drawn with a seed. `translate` matches functions by what they compute, whatever they are called.
"""

import argparse
import ast
import json
import multiprocessing
import random
import sys
import tempfile
import tomllib
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.structure import Function, functions, modules
from tests.mutation.mutants import Mutant, mutants_of, sites
from tests.mutation.run import KILLED, NOT_COVERED, TIMEOUT, Coverage, preload, traced, verdict

FOLDER = Path(__file__).parent
BUDGET_S = 10.0  # of tests for one mutant


@dataclass(frozen=True, slots=True)
class Area:
    """Functions that are mutated together, and the tests that judge them."""

    name: str
    modules: tuple[str, ...]
    tests: tuple[str, ...]
    preload: tuple[str, ...]

    def files(self, root: Path) -> dict[str, Path]:
        """Return the files of the area by module."""
        return {
            module: path
            for module, path in modules(root).items()
            if any(f"{module}.".startswith(f"{name}.") for name in self.modules)
        }


def areas(path: Path) -> list[Area]:
    """Read the areas."""
    document = tomllib.loads(path.read_text())
    return [
        Area(name, tuple(each["modules"]), tuple(each["tests"]), tuple(each["preload"]))
        for name, each in document.items()
    ]


def sample(area: Area, root: Path, count: int, seed: int) -> list[Mutant]:
    """Draw mutants of an area, in an order that does not depend on files."""
    every = [
        mutant for module, path in sorted(area.files(root).items()) for mutant in mutants_of(module, path)
    ]
    drawn = random.Random(f"{area.name}/{seed}").sample(every, min(count, len(every)))
    return sorted(drawn, key=lambda m: (m.module, m.function, m.site))


def fingerprint(function: ast.AST) -> str:
    """Return what a function computes, without the names of variables, attributes and functions."""
    return ast.dump(_Nameless().visit(ast.parse(ast.unparse(function))), annotate_fields=False)


class _Nameless(ast.NodeTransformer):
    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.copy_location(ast.Name("_", node.ctx), node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        node.attr = "_"
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        return ast.arg("_")

    def visit_keyword(self, node: ast.keyword) -> ast.AST:
        self.generic_visit(node)
        node.arg = "_"
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return ast.Constant("_") if isinstance(node.value, str) else node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        return ast.Constant("_")

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.name, node.returns, node.decorator_list = "_", None, []
        body = node.body
        if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
            node.body = body[1:] or [ast.Pass()]
        self.generic_visit(node)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        self.generic_visit(node)
        node.annotation = ast.Name("_", ast.Load())
        return node


def _functions(root: Path) -> dict[tuple[str, str], Function]:
    return {
        (module, name): function
        for module, path in modules(root).items()
        for name, function in functions(ast.parse(path.read_text())).items()
    }


def translate(document: dict[str, Any], other: Path, root: Path, names: dict[str, str]) -> dict[str, Any]:
    """Return a sample of the tree `other` in the names of this one. `names`: what no fingerprint tells.

    A function that is not found, or that has other sites, is listed under `lost`.
    """
    before, after = _functions(other), _functions(root)
    by_print: dict[str, list[tuple[str, str]]] = {}
    for key, function in after.items():
        by_print.setdefault(fingerprint(function), []).append(key)
    result: dict[str, Any] = {"lost": []}
    for area, drawn in document.items():
        if area == "lost":
            continue
        result[area] = []
        for each in drawn:
            old = (each["module"], each["function"])
            told = names.get(":".join(old))
            matches = [tuple(told.split(":"))] if told else by_print.get(fingerprint(before[old]), [])
            best = (
                [key for key in matches if key == old]
                or [key for key in matches if key[1] == old[1]]
                or matches
            )
            if old in after and not matches:
                best = [old]
            site = same_site(each, before[old], after[best[0]]) if best else None
            if site is None:
                result["lost"].append(each)
                continue
            module, name = best[0]
            result[area].append({**each, "module": module, "function": name, "site": site})
    return result


def same_site(drawn: dict[str, Any], before: Function, after: Function) -> int | None:
    """Return the site of a mutant in another form of its function: the same change, by its number."""
    changes, others = ([change for change, _line, _apply in sites(each)] for each in (before, after))
    nth = changes[: drawn["site"]].count(drawn["change"])
    alike = [site for site, change in enumerate(others) if change == drawn["change"]]
    return alike[nth] if nth < len(alike) else None


def judge(area: Area, drawn: list[Mutant], root: Path, coverage: Coverage, part: range, results: Any) -> None:
    """Judge the mutants of these numbers; puts (number, verdict) into `results`."""
    paths = modules(root)
    with tempfile.TemporaryDirectory() as folder:
        for number in part:
            mutant = drawn[number]
            try:
                path = paths[mutant.module]
                results.put((number, verdict(mutant, path, coverage, BUDGET_S, Path(folder))))
            except LookupError as error:
                results.put((number, f"lost: {error}"))


def run(area: Area, drawn: list[Mutant], root: Path, workers: int) -> dict[str, Any]:
    """Return the verdicts on an area's mutants and its score: the share that is killed."""
    preload(list(area.preload))
    paths = modules(root)
    files = area.files(root) | {m.module: paths[m.module] for m in drawn if m.module in paths}
    with tempfile.TemporaryDirectory() as folder:
        coverage = traced(list(area.tests), files, Path(folder))
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    parts = [range(worker, len(drawn), workers) for worker in range(workers)]
    processes = [
        context.Process(target=judge, args=(area, drawn, root, coverage, part, results)) for part in parts
    ]
    for process in processes:
        process.start()
    verdicts: dict[int, str] = {}
    while len(verdicts) < len(drawn):
        try:
            number, text = results.get(timeout=5)
        except Exception:  # noqa: BLE001 - the queue is empty: are the processes alive?
            if not any(process.is_alive() for process in processes) and results.empty():
                raise RuntimeError(f"{area.name}: the workers ended early") from None
            continue
        verdicts[number] = text
        if len(verdicts) % 20 == 0:
            print(f"{area.name}: {len(verdicts)} of {len(drawn)}", flush=True)  # noqa: T201
    for process in processes:
        process.join()
    counts = Counter(verdicts.values())
    dead = counts[KILLED] + counts[TIMEOUT]
    return {
        "mutants": len(drawn),
        "killed": dead,
        "score": round(dead / max(1, len(drawn)), 4),
        "timeouts": counts[TIMEOUT],
        "not covered": counts[NOT_COVERED],
        "survivors": [
            {**asdict(drawn[number]), "verdict": text}
            for number, text in sorted(verdicts.items())
            if text not in {KILLED, TIMEOUT}
        ],
    }


def main() -> int:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("verb", nargs="?", default="score", choices=("score", "sample", "run", "translate"))
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--areas", type=Path, default=FOLDER / "areas.toml")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--root", type=Path, default=FOLDER.parents[1])
    parser.add_argument("--mutants", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--names", type=Path, help="lines OLD_MODULE:FUNCTION NEW_MODULE:FUNCTION")
    parser.add_argument("-o", "--output", type=Path)
    args = parser.parse_args()
    root = args.root.resolve()
    chosen = [area for area in areas(args.areas) if not args.only or area.name in args.only]
    if args.verb == "translate":
        pairs = [line.split() for line in args.names.read_text().splitlines()] if args.names else []
        names = dict(pairs)
        document = translate(json.loads(args.files[0].read_text()), args.files[1].resolve(), root, names)
        print(f"lost: {len(document['lost'])}")  # noqa: T201
    elif args.verb == "sample":
        document = {a.name: [asdict(m) for m in sample(a, root, args.mutants, args.seed)] for a in chosen}
    else:
        given = json.loads(args.files[0].read_text()) if args.verb == "run" else None
        document = {}
        for area in chosen:
            drawn = (
                [Mutant(**each) for each in given[area.name]]
                if given
                else sample(area, root, args.mutants, args.seed)
            )
            document[area.name] = run(area, drawn, root, args.workers)
            figures = {k: v for k, v in document[area.name].items() if k != "survivors"}
            print(f"{area.name}: {figures}", flush=True)  # noqa: T201
            if args.output:
                args.output.write_text(json.dumps(document, indent=1) + "\n")
    if args.output:
        args.output.write_text(json.dumps(document, indent=1) + "\n")
    return _fallen(document) if args.verb == "score" else 0


def _fallen(document: dict[str, Any]) -> int:
    """Return 1 where a score is below the one that is written down."""
    least = tomllib.loads((FOLDER / "scores.toml").read_text())
    fallen = {
        area: found["score"] for area, found in document.items() if found["score"] < least.get(area, 0.0)
    }
    for area, score in fallen.items():
        print(f"{area}: the score is {score}, below {least[area]} of scores.toml", file=sys.stderr)  # noqa: T201
    return int(bool(fallen))


if __name__ == "__main__":
    sys.exit(main())
