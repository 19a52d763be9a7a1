"""Read users' YAML within limits: no small text makes a large document, or a long wait.

Aliases and merges (`<<`) are counted as if they were written out, before anything is constructed.
"""

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from tangram.catalog.reading.fields import short

DEEPEST = 200  # no document of ours has ten levels; far deeper ones would end the process in libyaml
MOST_DOCUMENTS = 20_000  # each costs more than a line; a List holds any number
# Nodes that aliases and merges may add: as many as are written and never fewer than FREE_ALIASES, but no more
# than the text has characters for. Dumps of clusters share a few labels, an Inventory that merges one GPU
# into all adds three nodes per character; a bomb of twenty lines has a million.
FREE_ALIASES = 100_000
ALIASES_OF_ANY_TEXT = 5_000
ALIASES_PER_CHARACTER = 10
LONGEST_NUMBER = 500  # characters; base 60 (`1:30:00`) takes quadratic time in PyYAML
MOST_DIRECTIVES = 100  # libyaml compares each `%TAG` with all before it

_MANY = 500  # brackets, or characters before the first word of a line: fewer cannot nest that deep
_INDENTED = re.compile(rf"^[ \t?:-]{{{DEEPEST}}}", re.MULTILINE)
_DIRECTIVE = re.compile(r"^%", re.MULTILINE)
_MERGE = "tag:yaml.org,2002:merge"
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_Fast: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

ERRORS = (yaml.YAMLError, ValueError, ArithmeticError, RecursionError)
"""What reading YAML raises; `line_and_problem` makes a line and a sentence of it."""


@dataclass(slots=True)
class _Account:
    """Nodes of a stream so far, against what its text may become."""

    characters: int
    written: int = 0
    added: int = 0  # by aliases and merges

    @property
    def most(self) -> int:
        """How many nodes aliases and merges may add."""
        by_text = ALIASES_OF_ANY_TEXT + ALIASES_PER_CHARACTER * self.characters
        return min(max(FREE_ALIASES, self.written), by_text)


def load_all(text: str) -> Iterator[Any]:
    """Yield the documents of `text`. Raises one of `ERRORS`."""
    _shallow(text)
    loader = _Loader(text)
    try:
        count = 0
        while loader.check_data():
            count += 1
            if count > MOST_DOCUMENTS:
                raise yaml.MarkedYAMLError(problem=f"more than {MOST_DOCUMENTS:,} documents")
            yield loader.get_data()
    finally:
        loader.dispose()


def load(text: str) -> Any:
    """Return the one document of `text`, None where it is empty. Raises one of `ERRORS`."""
    documents = list(load_all(text))
    if len(documents) > 1:
        raise yaml.MarkedYAMLError(problem="more than one document")
    return documents[0] if documents else None


def compose(text: str) -> Any:
    """Return the one document as nodes with their lines, None where it is empty. Raises one of `ERRORS`."""
    _shallow(text)
    root = yaml.compose(text, Loader=_Fast)
    if root is not None:
        _bound(root, _Account(len(text)))
    return root


def line_and_problem(error: BaseException) -> tuple[str, str]:
    """Return `:LINE`, or nothing where it is not known, and what is wrong."""
    mark = getattr(error, "problem_mark", None)
    return f":{mark.line + 1}" if mark else "", getattr(error, "problem", None) or "it cannot be read"


class _Loader(_Fast):  # type: ignore[misc]
    """Refuses bombs, and an object that has a key twice, as kubectl does: YAML itself takes the last."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._account = _Account(len(text))
        self._own: dict[int, list[Any]] = {}  # by id of a node with merges: the keys that it has itself

    def construct_document(self, node: Any) -> Any:
        _bound(node, self._account)
        self._own.clear()  # ids of another document's nodes
        return super().construct_document(node)

    def flatten_mapping(self, node: Any) -> None:
        """Write the merges of a mapping out. One that another merges has been written out before its turn."""
        if any(key.tag == _MERGE for key, _ in node.value):
            self._own[id(node)] = [key for key, _ in node.value if key.tag != _MERGE]
        super().flatten_mapping(node)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        if len(mapping) < len(node.value):
            keys = set()
            for key in self._own.get(id(node), [key for key, _ in node.value]):
                constructed = self.construct_object(key, deep=True)
                if constructed in keys:
                    raise yaml.MarkedYAMLError(
                        problem=f"the key {short(constructed)} is there twice", problem_mark=key.start_mark
                    )
                keys.add(constructed)
        return mapping


def _checked(construct: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return the constructor with errors that name the line, whatever PyYAML raises."""

    def checked(loader: Any, node: Any) -> Any:
        try:
            return construct(loader, node)
        except (ValueError, LookupError, AttributeError, ArithmeticError) as error:
            kind = node.tag.removeprefix("tag:yaml.org,2002:")
            raise yaml.MarkedYAMLError(
                problem=f"{short(node.value)} is no {kind}", problem_mark=node.start_mark
            ) from error

    return checked


for _tag in (*_NUMBERS, "tag:yaml.org,2002:bool", "tag:yaml.org,2002:timestamp"):
    _Loader.add_constructor(_tag, _checked(_Loader.yaml_constructors[_tag]))


def _shallow(text: str) -> None:
    if len(list(itertools.islice(_DIRECTIVE.finditer(text), MOST_DIRECTIVES + 1))) > MOST_DIRECTIVES:
        raise yaml.MarkedYAMLError(problem=f"more than {MOST_DIRECTIVES} lines that begin with %")
    if text.count("[") + text.count("{") < _MANY and not _INDENTED.search(text):
        return
    depth = 0
    events: Iterator[Any] = yaml.parse(text, Loader=_Fast)
    for event in events:
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > DEEPEST:
            raise _too_deep(event)


def _too_deep(where: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=f"more than {DEEPEST} levels deep", problem_mark=where.start_mark)


def _bound(root: Any, account: _Account) -> None:
    """Count the nodes of a document, as written and with its aliases and merges written out.

    Raises for a document that is too large or too deep once they are.
    """
    sizes: dict[int, int] = {}  # nodes as written out, by id
    depths: dict[int, int] = {}
    open_nodes: set[int] = set()
    stack = [root]
    while stack:
        node = stack[-1]
        if id(node) in sizes:
            stack.pop()
            continue
        children = _children(node)
        if id(node) not in open_nodes:
            open_nodes.add(id(node))
            if any(id(child) in open_nodes for child in children):
                raise yaml.MarkedYAMLError(problem="an alias contains itself", problem_mark=node.start_mark)
            unknown = [child for child in children if id(child) not in sizes]
            stack += unknown
            if unknown:
                continue
        stack.pop()
        open_nodes.discard(id(node))
        sizes[id(node)] = 1 + sum(sizes[id(child)] for child in children)
        depths[id(node)] = 1 + max((depths[id(child)] for child in children), default=0)
        if depths[id(node)] > DEEPEST + 1:
            raise _too_deep(node)
        account.written += 1
        if account.added + sizes[id(node)] - len(sizes) > account.most:
            raise yaml.MarkedYAMLError(
                problem=f"its aliases and merges make too much of it, more than {account.most:,} nodes: write"
                " them out, or split the file",
                problem_mark=node.start_mark,
            )
    account.added += sizes[id(root)] - len(sizes)


def _children(node: Any) -> list[Any]:
    if isinstance(node, yaml.MappingNode):
        return [child for pair in node.value for child in pair]
    if isinstance(node, yaml.SequenceNode):
        return list(node.value)
    if node.tag in _NUMBERS and len(node.value) > LONGEST_NUMBER:
        raise yaml.MarkedYAMLError(
            problem=f"a number of more than {LONGEST_NUMBER} characters", problem_mark=node.start_mark
        )
    return []
