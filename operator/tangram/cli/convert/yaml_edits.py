"""Edit YAML or JSON text in place: every byte outside the edits stays the same.

The positions of the parsed nodes say where to edit, so comments, order, quoting, indentation and line ends
stay. The edited text is parsed again and compared with the expected document, because anchors, aliases and
merges can use one place of the text for several places of the document.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from tangram.catalog import InputError
from tangram.catalog.reading.yaml_text import ERRORS, compose_all, line_and_problem

Path = tuple[str | int, ...]
"""Keys and indices from the root of a document."""

Tree = Any
"""A node without its place: dict, list, or (tag, text) of a scalar."""

_ALIAS = re.compile(r"[ \t]*:[ \t]*(\*[^\s,\[\]{}]+)")
_PROPERTY = re.compile(r"&[^\s,\[\]{}]+[ \t]+")
_REST_OF_LINE = re.compile(r"[ \t]*(#[^\r\n]*)?(\r\n|\n|\r|\Z)")
_COMMENT = re.compile(r"[ \t]*#[^\r\n]*")


@dataclass(frozen=True, slots=True)
class EntryChange:
    """A new key, a new value, or both, at `path`. `value` is one line of YAML; None: unchanged."""

    path: Path
    key: str | None = None
    value: str | None = None


@dataclass(frozen=True, slots=True)
class EntryInsertion:
    """A new entry with a copy of the value at `source`, before the entry at `path`."""

    path: Path
    key: str
    source: Path


@dataclass(frozen=True, slots=True)
class EntryRemoval:
    """Remove the entry at `path`, and mappings that become empty."""

    path: Path


Edit = EntryChange | EntryInsertion | EntryRemoval


@dataclass(frozen=True, slots=True)
class _TextReplacement:
    """Characters `start` to `end` of the text become `new`."""

    start: int
    end: int
    new: str


def entry(root: Any, path: Path) -> tuple[Any, Any, Any] | None:
    """Return the mapping, key and value nodes of the entry at `path`; None where there is none."""
    *outer, last = path
    node = node_at(root, tuple(outer))
    if not isinstance(node, yaml.MappingNode):
        return None
    return next(((node, key, value) for key, value in node.value if key.value == last), None)


def node_at(root: Any, path: Path) -> Any:
    """Return the node at `path`, None where there is none."""
    node = root
    for step in path:
        if isinstance(node, yaml.MappingNode) and isinstance(step, str):
            node = next((value for key, value in node.value if key.value == step), None)
        elif isinstance(node, yaml.SequenceNode) and isinstance(step, int):
            node = node.value[step] if step < len(node.value) else None
        else:
            return None
    return node


def tree(node: Any) -> Tree:
    """Return the content of a node with its aliases expanded."""
    if isinstance(node, yaml.MappingNode):
        return {
            tree(key) if not isinstance(key, yaml.ScalarNode) else key.value: tree(value)
            for key, value in node.value
        }
    if isinstance(node, yaml.SequenceNode):
        return [tree(item) for item in node.value]
    return None if node is None else (node.tag, node.value)


def edited(text: str, edits: Sequence[Sequence[Edit]], shown: str) -> str:
    """Return `text` with the edits of each of its documents made.

    Raises `InputError` where an anchor, an alias or the layout of the text prevents it.
    """
    roots = list(compose_all(text))
    replacements: set[_TextReplacement] = set()
    expected: list[Tree] = []
    for root, own in zip(roots, edits, strict=True):
        content = tree(root)
        removed = _removed_paths(content, [edit.path for edit in own if isinstance(edit, EntryRemoval)])
        replacements.update(_replacements(text, root, own, removed))
        expected.append(_edited_tree(content, own, removed))
    new = _replaced(text, replacements, shown)
    try:
        result = [tree(root) for root in compose_all(new)]
    except ERRORS as error:
        line, problem = line_and_problem(error)
        raise _refusal(f"{shown}{line}", problem) from error
    for root, before, after in zip(roots, expected, result, strict=False):
        if before != after:
            raise _refusal(
                f"{shown}:{root.start_mark.line + 1}", "an anchor uses a part of it in several places"
            )
    if len(result) != len(expected):
        raise _refusal(shown, "its documents cannot be separated")
    return new


def _refusal(where: str, problem: str) -> InputError:
    return InputError(
        where, f"cannot be converted in place ({problem}): write out its anchors, aliases and merges first"
    )


def _removed_paths(content: Tree, paths: Iterable[Path]) -> list[Path]:
    """Return the paths to remove: a mapping as a whole if all of its keys are removed."""
    removed = set(paths)
    while True:
        parents = {path[:-1] for path in removed if len(path) > 1 and isinstance(path[-2], str)}
        empty = {
            parent for parent in parents if all((*parent, key) in removed for key in _value(content, parent))
        }
        if not empty:
            return sorted(removed, key=str)
        removed = {path for path in removed if path[:-1] not in empty} | empty


def _value(content: Tree, path: Path) -> Any:
    for step in path:
        content = content[step]
    return content


def _edited_tree(content: Tree, edits: Iterable[Edit], removed: Iterable[Path]) -> Tree:
    """Return the content of a document after the edits."""
    for edit in edits:
        if isinstance(edit, EntryInsertion):
            _value(content, edit.path[:-1])[edit.key] = _value(content, edit.source)
    for path in removed:
        _value(content, path[:-1]).pop(path[-1])
    for edit in edits:
        if isinstance(edit, EntryChange):
            parent = _value(content, edit.path[:-1])
            value = parent.pop(edit.path[-1])
            key = edit.path[-1] if edit.key is None else edit.key
            parent[key] = value if edit.value is None else tree(next(iter(compose_all(edit.value))))
    return content


def _replacements(
    text: str, root: Any, edits: Iterable[Edit], removed: Iterable[Path]
) -> Iterable[_TextReplacement]:
    for edit in edits:
        if isinstance(edit, EntryChange):
            yield from _write(text, root, edit)
        elif isinstance(edit, EntryInsertion):
            yield _insertion(text, root, edit)
    gone: dict[Path, set[int | str]] = {}
    for path in removed:
        gone.setdefault(path[:-1], set()).add(path[-1])
    for parent, keys in gone.items():
        yield from _removals(text, node_at(root, parent), keys)


def _write(text: str, root: Any, edit: EntryChange) -> Iterable[_TextReplacement]:
    edited_entry = entry(root, edit.path)
    if edited_entry is None:
        raise KeyError(edit.path)
    _, key, value = edited_entry
    if edit.key is not None:
        yield _TextReplacement(*_marks(key), _quoted(text, key, edit.key))
    if edit.value is not None:
        start, end = _span(text, key, value)
        colon = text.find(":", key.end_mark.index) + 1
        if not text[colon:start].strip():  # only blanks and line ends, if anything, between the two
            start = colon
        anchor = _PROPERTY.search(text, start, end) if _has_anchor(text, start) else None
        if anchor:
            yield _TextReplacement(anchor.end(), end, edit.value)
        else:
            yield _TextReplacement(start, end, edit.value if text[start - 1].isspace() else f" {edit.value}")


def _has_anchor(text: str, start: int) -> bool:
    return text[start:].lstrip()[:1] == "&"


def _insertion(text: str, root: Any, edit: EntryInsertion) -> _TextReplacement:
    successor, source = entry(root, edit.path), entry(root, edit.source)
    if successor is None or source is None:
        raise KeyError(edit.path)
    mapping, key, _ = successor
    start, end = _span(text, *source[1:])
    new = f"{_quoted(text, key, edit.key)}: {text[start:end]}"
    place = key.start_mark.index
    if mapping.flow_style:
        return _TextReplacement(place, place, f"{new}, ")
    comment = _COMMENT.match(text, end)
    new += comment[0] if comment and not source[0].flow_style else ""
    return _TextReplacement(place, place, new + _line_end(text) + " " * key.start_mark.column)


def _line_end(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _quoted(text: str, like: Any, key: str) -> str:
    mark = text[like.start_mark.index]
    return f"{mark}{key}{mark}" if mark in "\"'" else key


def _marks(node: Any) -> tuple[int, int]:
    return node.start_mark.index, node.end_mark.index


def _span(text: str, key: Any, value: Any) -> tuple[int, int]:
    """Return where the value of an entry begins and ends, an alias included."""
    if value.start_mark.index < key.start_mark.index:  # an alias: its node is where the anchor is
        alias = _ALIAS.match(text, key.end_mark.index)
        if alias is None:
            raise yaml.MarkedYAMLError(problem="an alias on a line of its own", problem_mark=key.start_mark)
        return alias.span(1)
    return value.start_mark.index, _end(text, value)


def _end(text: str, node: Any) -> int:
    """Return where a node ends; libyaml ends a block where the next one begins, comments included."""
    start, end = _marks(node)
    if isinstance(node, yaml.ScalarNode) or node.flow_style or not node.value:
        return int(end)
    last = node.value[-1][1] if isinstance(node, yaml.MappingNode) else node.value[-1]
    if last.start_mark.index >= start:
        return _end(text, last)
    return _without_comments(text, start, end)  # an alias: its node is where the anchor is


def _without_comments(text: str, start: int, end: int) -> int:
    """Return where the last line that is neither blank nor a comment ends."""
    lines = text[start:end].splitlines(keepends=True)
    while lines and (not lines[-1].strip() or lines[-1].lstrip().startswith("#")):
        end -= len(lines.pop())
    return end - (len(lines[-1]) - len(lines[-1].rstrip()) if lines else 0)


def _removals(text: str, mapping: Any, keys: set[int | str]) -> Iterable[_TextReplacement]:
    entries = mapping.value
    gone = [key.value in keys for key, _ in entries]
    last_kept = max((i for i, is_gone in enumerate(gone) if not is_gone), default=-1)
    for i, (key, value) in enumerate(entries):
        if not gone[i]:
            continue
        start, end = key.start_mark.index, _span(text, key, value)[1]
        before = text[max(text.rfind("\n", 0, start), text.rfind("\r", 0, start)) + 1 : start]
        if mapping.flow_style and i > last_kept >= 0:
            if i == last_kept + 1:
                yield _TextReplacement(_span(text, *entries[last_kept])[1], _span(text, *entries[-1])[1], "")
        elif i + 1 < len(entries) and (mapping.flow_style or before.strip()):
            yield _TextReplacement(start, entries[i + 1][0].start_mark.index, "")
        elif before.strip() or mapping.flow_style:
            yield _TextReplacement(start, end, "")
        else:
            yield _line_removal(text, start - len(before), end)


def _line_removal(text: str, start: int, end: int) -> _TextReplacement:
    if text[end - 1] in "\r\n":  # a block scalar: it ends where the next line begins
        return _TextReplacement(start, end, "")
    rest = _REST_OF_LINE.match(text, end)
    return _TextReplacement(start, rest.end() if rest else end, "")


def _replaced(text: str, replacements: Iterable[_TextReplacement], shown: str) -> str:
    parts, place = [], 0
    for replacement in sorted(replacements, key=lambda replacement: (replacement.start, replacement.end)):
        if replacement.start < place:
            line = text.count("\n", 0, replacement.start) + 1
            raise _refusal(f"{shown}:{line}", "two edits overlap there")
        parts += [text[place : replacement.start], replacement.new]
        place = replacement.end
    return "".join((*parts, text[place:]))
