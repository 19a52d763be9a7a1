"""`python -m benchmarks.structure [ROOT]`: how the product's code hangs together, in figures.

Rooms are folders of Python files; a room depends on another where one of its files imports one of the other's, in
functions, too. The fan-in of a function is how many names it uses that it does not define: names of its module and
of others, without built-ins.
"""

import ast
import builtins
import json
import statistics
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = (("operator", "tangram"), ("engine", "tangram_engine"), ("engine", "tangram_http"))
# Names that say nothing about the value that they are bound to.
VAGUE = frozenset(
    [
        "about",
        "asked",
        "both",
        "each",
        "everybody",
        "everyone",
        "found",
        "given",
        "got",
        "here",
        "kept",
        "known",
        "made",
        "mine",
        "much",
        "nobody",
        "one",
        "ones",
        "ours",
        "said",
        "seen",
        "somebody",
        "stuff",
        "taken",
        "theirs",
        "there",
        "thing",
        "things",
        "told",
        "tried",
        "wanted",
        "way",
        "ways",
        "whoever",
        "wished",
    ]
)

MOST_IDENTIFIERS = 45  # of a function that a reader can hold at once: a judgement

Graph = Mapping[str, frozenset[str]]
Function = ast.FunctionDef | ast.AsyncFunctionDef


def modules(root: Path = ROOT) -> dict[str, Path]:
    """Return the files of the product by module name."""
    found = {}
    for folder, package in PACKAGES:
        for path in sorted((root / folder / package).rglob("*.py")):
            parts = path.relative_to(root / folder).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def room_of(module: str, path: Path) -> str:
    """Return the package that a module's file lies in."""
    return module if path.name == "__init__.py" else module.rpartition(".")[0]


def imports(module: str, path: Path, known: Iterable[str]) -> set[str]:
    """Return the product's modules that a file imports, anywhere in it; of packages the module meant."""
    every, found = set(known), set()
    package = room_of(module, path)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name in every}
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                name = f"{source}.{alias.name}"
                found |= {name} if name in every else {source} & every
    return found - {module}


def module_graph(root: Path = ROOT) -> Graph:
    """Return which modules each module imports."""
    known = modules(root)
    return {name: frozenset(imports(name, path, known)) for name, path in known.items()}


def room_graph(root: Path = ROOT) -> Graph:
    """Return which rooms each room imports from. Entry points (`__main__`) belong to no room."""
    known = modules(root)
    graph: dict[str, set[str]] = {}
    for name, path in known.items():
        if path.name != "__main__.py":
            rooms = {room_of(other, known[other]) for other in imports(name, path, known)}
            graph.setdefault(room_of(name, path), set()).update(rooms - {room_of(name, path)})
    return {room: frozenset(others) for room, others in graph.items()}


def cycles(graph: Graph) -> list[tuple[str, ...]]:
    """Return the groups of nodes that all reach each other, by Tarjan's algorithm; groups of one are left out."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    groups: list[tuple[str, ...]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph.get(node, ())):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            group = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(group) > 1:
                groups.append(tuple(sorted(group)))

    sys.setrecursionlimit(10_000)
    for node in sorted(graph):
        if node not in index:
            visit(node)
    return groups


def files_per_room(root: Path = ROOT) -> Counter[str]:
    """Return how many files each room holds, its face included."""
    return Counter(room_of(name, path) for name, path in modules(root).items())


def classes_defined_twice(root: Path = ROOT) -> list[str]:
    """Return the names of classes that are defined more than once."""
    nodes = (node for path in modules(root).values() for node in ast.walk(ast.parse(path.read_text())))
    counts = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef))
    return sorted(name for name, count in counts.items() if count > 1)


def bindings(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the variables and parameters that a tree binds, with their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno


def vague_bindings(path: Path) -> tuple[list[tuple[str, int]], int]:
    """Return the bindings of a file whose name is in `VAGUE`, and the number of all its bindings."""
    every = list(bindings(ast.parse(path.read_text())))
    return [(name, line) for name, line in every if name.strip("_") in VAGUE], len(every)


def fan_ins(root: Path = ROOT) -> dict[str, int]:
    """Return the fan-in of each function of the product, by module and qualified name."""
    found: dict[str, int] = {}
    for module, path in modules(root).items():
        for name, function in functions(ast.parse(path.read_text())).items():
            own = {binding for binding, _ in bindings(function)}
            used = {
                n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)
            }
            inner = {n.name for n in ast.walk(function) if isinstance(n, ast.FunctionDef | ast.ClassDef)}
            found[f"{module}:{name}"] = len(used - own - inner - set(dir(builtins)))
    return found


def identifiers(function: Function) -> set[str]:
    """Return the names that a reader of a function meets: variables, attributes, parameters, keywords."""
    names: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.arg | ast.keyword) and node.arg:
            names.add(node.arg)
    return names


def identifier_counts(root: Path = ROOT) -> dict[str, int]:
    """Return the number of distinct identifiers in each function of the product."""
    return {
        f"{module}:{name}": len(identifiers(function))
        for module, path in modules(root).items()
        for name, function in functions(ast.parse(path.read_text())).items()
    }


def density(root: Path = ROOT) -> dict[str, float]:
    """Return the distinct identifiers per line of a function, docstrings included, by package."""
    names, lines = Counter[str](), Counter[str]()
    for module, path in modules(root).items():
        package = ".".join(module.split(".")[:2])
        for function in functions(ast.parse(path.read_text())).values():
            names[package] += len(identifiers(function))
            lines[package] += (function.end_lineno or 0) - function.lineno + 1
    return {package: round(names[package] / lines[package], 2) for package in sorted(lines)}


def functions(tree: ast.Module) -> dict[str, Function]:
    """Return the functions and methods of a module by qualified name; inner ones belong to them."""
    found: dict[str, Function] = {}

    def visit(node: ast.Module | ast.ClassDef, prefix: str) -> None:
        for child in node.body:
            if isinstance(child, ast.ClassDef):
                visit(child, f"{prefix}{child.name}.")
            elif isinstance(child, Function):
                found[f"{prefix}{child.name}"] = child

    visit(tree, "")
    return found


def figures(root: Path = ROOT) -> dict[str, object]:
    """Return the figures of a tree."""
    paths = modules(root)
    fans = fan_ins(root)
    vague = [vague_bindings(path) for path in paths.values()]
    largest = files_per_room(root).most_common(5)
    most = max(fans, key=lambda name: fans[name])
    counts = identifier_counts(root)
    densest = max(counts, key=lambda name: counts[name])
    return {
        "lines": sum(len(path.read_text().splitlines()) for path in paths.values()),
        "files": len(paths),
        "classes defined more than once": len(classes_defined_twice(root)),
        "largest rooms": dict(largest),
        "rooms above 15 files": sum(count > 15 for count in files_per_room(root).values()),
        "cycles between modules": cycles(module_graph(root)),
        "cycles between rooms": cycles(room_graph(root)),
        "functions": len(fans),
        "fan-in: median": statistics.median(fans.values()),
        "fan-in: maximum": f"{fans[most]} ({most})",
        f"functions above {MOST_IDENTIFIERS} identifiers": sum(n > MOST_IDENTIFIERS for n in counts.values()),
        "identifiers per line of a function": density(root),
        "identifiers: maximum": f"{counts[densest]} ({densest})",
        "vague bindings": f"{100 * sum(len(v) for v, _ in vague) / sum(n for _, n in vague):.2f} %",
    }


if __name__ == "__main__":
    sys.stdout.write(
        json.dumps(figures(Path(sys.argv[1]).resolve() if sys.argv[1:] else ROOT), indent=2) + "\n"
    )
