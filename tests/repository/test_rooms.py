"""Rooms: how many files they hold, that each has a face, and that none of them import each other."""

import ast
import re

import pytest

from benchmarks.structure import (
    ROOT,
    cycles,
    files_per_room,
    module_graph,
    modules,
    room_graph,
)

MOST_FILES = 15


def test_no_room_holds_more_files_than_one_can_look_over() -> None:
    counts = files_per_room()

    assert len(counts) > 50
    assert {room: count for room, count in counts.items() if count > MOST_FILES} == {}


def test_every_room_has_a_face() -> None:
    faces = {name: path for name, path in modules().items() if path.name == "__init__.py"}

    assert files_per_room().keys() == faces.keys()
    assert [name for name, path in faces.items() if not ast.get_docstring(ast.parse(path.read_text()))] == []


def test_every_room_that_a_face_or_the_architecture_lists_is_there() -> None:
    known = modules()
    faces = {name: path.read_text() for name, path in known.items() if path.name == "__init__.py"}
    architecture = (ROOT / "docs" / "architecture.md").read_text()
    for section in re.split(r"^### ", architecture, flags=re.MULTILINE)[1:]:
        title = re.match(r"`([\w.]+)`", section)
        if title:
            faces[title[1]] = faces.get(title[1], "") + section.split("\n#")[0]
    listed = {
        f"{face}.{row}"
        for face, text in faces.items()
        for row in re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)
    }

    assert len(listed) > 30
    assert sorted(listed - known.keys()) == []


def test_no_two_rooms_import_each_other() -> None:
    assert cycles(room_graph()) == []


def test_no_two_modules_import_each_other() -> None:
    assert cycles(module_graph()) == []


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        ({"a": {"b"}, "b": {"c"}, "c": set()}, []),
        ({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}, [("a", "b", "c")]),
    ],
)
def test_a_cycle_is_found(graph: dict[str, frozenset[str]], expected: list[tuple[str, ...]]) -> None:
    assert cycles(graph) == expected
