"""YAML and JSON text as documents. What people write wrongly is one line that names file and line."""

import json
import re
from collections.abc import Iterator
from typing import Any

import yaml

from tangram.catalog import InputError

DEEPEST = 200  # no document of ours has ten levels; far deeper ones would end the process in libyaml
_MANY = 500  # brackets, or characters before the first word of a line: fewer cannot nest that deep
_INDENTED = re.compile(rf"^[ \t?:-]{{{DEEPEST}}}", re.MULTILINE)
_MERGE = "tag:yaml.org,2002:merge"
_Fast: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def documents(text: str, shown: str) -> Iterator[Any]:
    """Yield every document of `text`. Raises `InputError`: it is neither, nests too deep, has a key twice."""
    if text.lstrip().startswith("{"):
        try:  # ten times faster than YAML, of which JSON is a part
            yield json.loads(text, object_pairs_hook=_object)
            return
        except (ValueError, RecursionError):
            pass
    try:
        _shallow(text)
        yield from yaml.load_all(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "it cannot be read"
        raise InputError(f"{shown}{line}", f"not YAML: {problem}") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError  # the YAML reader says where
    return found


def _shallow(text: str) -> None:
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
            raise yaml.MarkedYAMLError(
                problem=f"more than {DEEPEST} levels deep", problem_mark=event.start_mark
            )


class _Loader(_Fast):  # type: ignore[misc]
    """Refuses an object that has a key twice, as kubectl does: YAML itself would take the last."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        own = list(node.value) if isinstance(node, yaml.MappingNode) else []
        found: dict[Any, Any] = super().construct_mapping(node, deep)
        if len(found) < len(own):
            seen = set()
            for key, _ in own:
                if key.tag != _MERGE and (key.tag, key.value) in seen:
                    raise yaml.MarkedYAMLError(
                        problem=f"the key {key.value!r} is there twice", problem_mark=key.start_mark
                    )
                seen.add((key.tag, key.value))
        return found
