"""The list of what changed, and the tables that people read."""

import itertools
from pathlib import Path

import pytest

from tangram.api.old_forms import OLD_FORMS

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
