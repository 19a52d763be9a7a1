"""Mutants of functions: one small change of a function's syntax tree, numbered in the order of the source.

A mutation site is found by its number among the sites of its function, so that a function which was renamed
or moved has the same mutants as before.
"""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.structure import Function, functions

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Div,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
_CALLS = {"min": "max", "max": "min", "any": "all", "all": "any", "floor": "ceil", "ceil": "floor"}

Change = Callable[[ast.AST], None]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one function."""

    module: str
    function: str  # qualified name in the module
    site: int  # number among the sites of the function
    line: int
    change: str


def sites(function: Function) -> list[tuple[str, int, Change]]:
    """Return the changes that a function allows, in the order of its source: text, line, and what to do."""
    return [site for node in _code(function) for site in _sites_at(node)]


def _code(function: Function) -> Iterator[ast.AST]:
    """Yield the nodes of a function's body that are computed when it runs; no docstrings, no annotations."""
    stack: list[ast.AST] = list(reversed(function.body))
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        yield node
        children = [
            child
            for name, value in ast.iter_fields(node)
            if name not in {"annotation", "returns"}
            for child in (value if isinstance(value, list) else [value])
            if isinstance(child, ast.AST) and not isinstance(node, ast.JoinedStr | ast.Raise | ast.Assert)
        ]
        stack += reversed(children)


def _sites_at(node: ast.AST) -> Iterator[tuple[str, int, Change]]:  # noqa: C901 - a table of cases
    line = getattr(node, "lineno", 0)
    if isinstance(node, ast.Compare):
        for i, operator in enumerate(node.ops):
            other = _COMPARISONS[type(operator)]
            yield f"{type(operator).__name__} -> {other.__name__}", line, _set_item("ops", i, other)
    elif isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in _ARITHMETIC:
        other_op = _ARITHMETIC[type(node.op)]
        yield f"{type(node.op).__name__} -> {other_op.__name__}", line, _set("op", other_op)
    elif isinstance(node, ast.BoolOp):
        other_bool = ast.Or if isinstance(node.op, ast.And) else ast.And
        yield f"{type(node.op).__name__} -> {other_bool.__name__}", line, _set("op", other_bool)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield "drop USub", line, _set("op", ast.UAdd)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "drop Not", line, _negate_operand
    elif isinstance(node, ast.Constant) and type(node.value) in {int, float, bool}:
        value = (not node.value) if isinstance(node.value, bool) else node.value + 1
        yield f"{node.value!r} -> {value!r}", line, _assign("value", value)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
        name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
        if name in _CALLS:
            yield f"{name} -> {_CALLS[name]}", line, _rename_call
    elif isinstance(node, ast.If | ast.IfExp | ast.While):
        yield "condition -> False", line, _assign("test", ast.Constant(value=False))
        if not isinstance(node, ast.While):
            yield "condition -> True", line, _assign("test", ast.Constant(value=True))
    elif isinstance(node, ast.Return) and node.value is not None and not _is_none(node.value):
        yield "return None", line, _assign("value", ast.Constant(value=None))
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield "drop the call", line, _assign("value", ast.Constant(value=None))


def _set(field: str, kind: type[ast.AST]) -> Change:
    return lambda node: setattr(node, field, kind())


def _negate_operand(node: ast.AST) -> None:
    """Make `not x` of one negation two, which take each other back."""
    assert isinstance(node, ast.UnaryOp)
    node.operand = ast.UnaryOp(ast.Not(), node.operand)


def _set_item(field: str, index: int, kind: type[ast.AST]) -> Change:
    return lambda node: getattr(node, field).__setitem__(index, kind())


def _assign(field: str, value: object) -> Change:
    return lambda node: setattr(node, field, value)


def _rename_call(node: ast.AST) -> None:
    assert isinstance(node, ast.Call)
    if isinstance(node.func, ast.Name):
        node.func.id = _CALLS[node.func.id]
    elif isinstance(node.func, ast.Attribute):
        node.func.attr = _CALLS[node.func.attr]


def _is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def mutants_of(module: str, path: Path, only: frozenset[str] | None = None) -> Iterator[Mutant]:
    """Yield the mutants of a module; `only`: of these functions."""
    for name, function in functions(ast.parse(path.read_text())).items():
        if only is None or name in only:
            for number, (text, line, _) in enumerate(sites(function)):
                yield Mutant(module, name, number, line, text)


def mutated_source(source: str, mutant: Mutant) -> str:
    """Return the source of a module with one mutant in it. Raises `LookupError` without such a site."""
    tree = ast.parse(source)
    function = functions(tree).get(mutant.function)
    if function is None:
        raise LookupError(f"{mutant.module} has no function {mutant.function}")
    nodes = [(node, change) for node in _code(function) for _, _, change in _sites_at(node)]
    if mutant.site >= len(nodes):
        raise LookupError(f"{mutant.function} has {len(nodes)} sites, not {mutant.site + 1}")
    node, change = nodes[mutant.site]
    change(node)
    return ast.unparse(tree)
