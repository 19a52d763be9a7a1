import json
import math

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tangram.cli import output
from tangram.cli.output import ANY, Column, document, table

COLUMNS = (
    Column("NAME", "name"),
    Column("SIZE", "size", right=True, rank=1),
    Column("WHERE IT COMES FROM", lambda row: row["where"], rank=2),
)
ROWS = [
    {"name": "a", "size": 1, "where": "somewhere"},
    {"name": "bb", "size": 22, "where": "elsewhere"},
]


@pytest.fixture
def width(monkeypatch):
    return lambda columns: monkeypatch.setenv("COLUMNS", str(columns))


@pytest.fixture
def piped(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)


def test_a_pipe_gets_every_column_on_one_line_a_row(piped, capsys):
    table(COLUMNS, [{"name": "a" * 300, "size": 1, "where": "x"}])

    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert lines[1].split() == ["a" * 300, "1", "x"]
    assert "\x1b" not in lines[0]


def test_columns_line_up_and_lines_end_without_blanks(piped, capsys):
    table(COLUMNS, ROWS)

    assert capsys.readouterr().out == (
        "NAME  SIZE  WHERE IT COMES FROM\n"
        "a        1  somewhere\n"
        "bb      22  elsewhere\n"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("columns", "kept"),
    [
        (31, ["NAME", "SIZE", "WHERE"]),
        (30, ["NAME", "SIZE"]),
        (10, ["NAME", "SIZE"]),
        (9, ["NAME"]),
        (1, ["NAME"]),
    ],
)
def test_a_narrow_terminal_loses_the_least_important_columns_and_says_so(width, capsys, columns, kept):
    width(columns)

    table(COLUMNS, ROWS)

    head, *_, last = capsys.readouterr().out.splitlines()
    assert [title for title in ("NAME", "SIZE", "WHERE") if title in head] == kept
    assert ("wider" in last or "-o json" in last or "shows all" in last) == (len(kept) < 3)


def test_cells_are_printed_as_they_are(piped, capsys):
    table([Column("A", "a")], [{"a": "[bold]x[/bold] :smile: 100"}])

    assert "[bold]x[/bold] :smile: 100" in capsys.readouterr().out


@given(
    st.integers(20, 200), st.lists(st.tuples(*[st.text("abc*-", max_size=30)] * 3), min_size=1, max_size=5)
)
def test_no_line_of_a_table_is_longer_than_the_terminal_unless_it_must(columns, rows):
    kept = output._fitting_columns(COLUMNS, rows, columns)

    sizes = [max(len(COLUMNS[i].title), *(len(row[i]) for row in rows)) for i in kept]
    assert kept[0] == 0
    assert sum(sizes) + 2 * (len(kept) - 1) <= columns or kept == [0]


@pytest.mark.parametrize(
    ("column", "text"),
    [
        (Column("$/h", "usd", ".2f"), "1.50"),
        (Column("NODE", "node"), "-"),
        (Column("NODE", "node", missing="none"), "none"),
        (Column("$/h", "usd", ".2f", mark="price"), "1.50*"),
        (Column("$/h", "usd", ".2f", mark="memory"), "1.50"),
        (Column("$/h", "usd", ".2f", mark=ANY), "1.50*"),
    ],
)
def test_a_cell_is_the_value_in_its_format_with_the_mark_of_an_unverified_fact(column, text):
    assert column.text({"usd": 1.5, "node": None, "unverified": ["price"]}) == text


def test_a_document_has_six_significant_digits_and_times_to_the_millisecond():
    value = {"share": 0.123456789, "at": [86_400.12345], "count": 1_234_567, "usd": 12.3456789, "fits": True}

    assert output.rounded(value) == {
        "share": 0.123457,
        "at": [86_400.123],
        "count": 1_234_567,
        "usd": 12.3457,
        "fits": True,
    }


def test_documents_are_the_same_in_both_formats(capsys):
    value = {"rows": [{"sku": "L4", "usd": 0.5, "none": None}], "text": "a: b"}

    document(value, "json")
    as_json = capsys.readouterr().out
    document(value, "yaml")
    as_yaml = capsys.readouterr().out

    assert json.loads(as_json) == value
    assert yaml.safe_load(as_yaml) == value


def test_a_document_never_holds_what_json_has_no_number_for():
    with pytest.raises(ValueError, match="not JSON compliant"):
        document({"x": math.nan}, "json")
