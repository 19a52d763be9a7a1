"""The list of what changed, and the tables that people read."""

import itertools
from pathlib import Path

import pytest

from tangram.api import parse
from tangram.api.common.old_forms import OLD_FORMS
from tangram.fleet import InvalidIntent

ROOT = Path(__file__).parents[2]


def rows(text):
    """The rows of the first table whose columns are object, before and now."""
    lines = [line.strip() for line in text.splitlines()]
    start = lines.index("| object | before | now |") + 2
    return list(itertools.takewhile(lambda line: line.startswith("|"), lines[start:]))


@pytest.mark.parametrize("name", ["CHANGELOG.md", "docs/upgrading.md"])
def test_the_tables_are_the_list(name):
    expected = [f"| {form.kind} | `{form.old}` | `{form.new}` |" for form in OLD_FORMS]

    assert rows((ROOT / name).read_text()) == expected


def test_an_object_of_the_old_form_is_not_taken_for_what_the_api_server_shows_of_it():
    meta = {"uid": "1", "namespace": "a", "name": "chat", "creationTimestamp": "2026-01-01T00:00:00Z"}
    shown = {"model": {"uri": "image:///m"}, "scaling": {"minReplicas": 1}}  # scaling.min: 3 before

    before = parse({"metadata": meta, "spec": shown, "status": {"replicas": "3/4"}})
    now = parse({"metadata": meta, "spec": shown, "status": {"replicas": 4, "replicasDisplay": "3/4"}})

    assert isinstance(before, InvalidIntent)
    assert "docs/upgrading.md" in before.message
    assert not isinstance(now, InvalidIntent)
