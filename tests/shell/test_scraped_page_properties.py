"""What is remembered of a pod's pages changes no reading: pages of any series, orders and defects."""

import math

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from tangram.scaling.queries import KV_USAGE, PREVIOUS_NAMES, RECEIVED, RUNNING
from tangram.scaling.scrapes.page_layout import READ_BY_OPERATOR
from tangram.shell.measure.scraped_page import PageParser, PageProblem, PodPages, is_wanted, wanted_lines
from tangram.simulator.metrics import EnginePage
from tests.support import metrics_pages

MODEL, OTHER = "meta/x", "other"
ODD_VALUES = [
    *(
        "NaN",
        "+Inf",
        "-1",
        "1e16",
        "1e15",
        "1_0",
        "",
        "1 1700000000000",
        "1 2 3",
        " 7 ",
        "\t7\r",
        "0x10",
        "1e3",
    ),
    *("-0", "+5", "7}", "infinity", "٣", "1\x00", "1,2", "nan(1)"),
]


def shown(numbers):
    """The lines of a busy engine's page, with an odd engine beside it."""
    page = EnginePage()
    for number in numbers:
        page.arrived()
        page.first_token(number / 1000, 500)
        page.finished(number / 20_000, 100, 10 + number, 3.0)
    page.running, page.kv_usage = len(numbers), 0.25
    values = metrics_pages.series(page, MODEL) | metrics_pages.rejections(MODEL, "0", {"a": 1.0})
    values |= metrics_pages.series(page, OTHER, "1", without=("bucket",))
    return metrics_pages.text(values).split(b"\n")


numbers = st.lists(st.integers(1, 20_000), max_size=5)
places = st.integers(0, 10_000)
changes = st.one_of(
    st.tuples(st.just("value"), places, st.sampled_from(ODD_VALUES)),
    st.tuples(st.just("again"), places, places),
    st.tuples(st.just("without"), places, st.integers(1, 40)),
    st.tuples(st.just("move"), places, places),
    st.tuples(st.just("byte"), places, st.integers(0, 255)),
    st.tuples(
        st.just("replace"), places, st.sampled_from([b'engine="0"', b'engine="1"', b'engine="}"', b"{", b"}"])
    ),
    st.tuples(st.just("insert"), places, st.binary(max_size=20)),
    st.tuples(
        st.just("insert"),
        places,
        st.sampled_from(
            [
                f'{PREVIOUS_NAMES[KV_USAGE]}{{engine="0",model_name="{MODEL}"}} 0.75'.encode(),
                f'{PREVIOUS_NAMES[KV_USAGE]}{{engine="2",model_name="{MODEL}"}} 0.75'.encode(),
                f'{RECEIVED}{{engine="0",model_name="{MODEL}",reason="c"}} 3'.encode(),
                f"{RUNNING}{{".encode(),
                RUNNING.encode(),
                b"process_cpu_seconds_total 3.5",
            ]
        ),
    ),
)


def changed(lines, change):
    kind, place, with_what = change
    lines, at = list(lines), place % len(lines)
    line = lines[at]
    if kind == "value":
        lines[at] = line.rpartition(b" ")[0] + b" " + with_what.encode()
    elif kind == "again":
        lines.insert(with_what % len(lines), line)
    elif kind == "without":
        del lines[at : at + with_what]
    elif kind == "move":
        lines.insert(with_what % len(lines), lines.pop(at))
    elif kind == "byte" and line:
        lines[at] = line[: place % len(line)] + bytes([with_what]) + line[place % len(line) + 1 :]
    elif kind == "replace":
        lines[at] = line.replace(b'engine="0"', with_what)
    elif kind == "insert":
        lines.insert(at, with_what)
    return lines or [b""]


def outcome(parser, text, pages):
    """What a page gives, in terms that are equal where nothing differs."""
    try:
        engines = parser.parse(wanted_lines(text), MODEL, pages)
    except PageProblem as problem:
        return str(problem)
    return {
        name: ([None if math.isnan(value) else value for value in engine.row], engine.absent)
        for name, engine in engines.items()
    }


@given(st.lists(st.tuples(numbers, st.lists(changes, max_size=3)), min_size=1, max_size=5))
def test_a_page_gives_the_same_whatever_the_pages_before_it_were(scrapes):
    remembering, pages = PageParser(), PodPages()
    for counts, defects in scrapes:
        lines = shown(counts)
        for defect in defects:
            lines = changed(lines, defect)
        text = b"\n".join(lines)

        assert outcome(remembering, text, pages) == outcome(PageParser(), text, PodPages())


@given(
    numbers, numbers, st.lists(changes.filter(lambda change: change[0] in ("move", "without")), max_size=3)
)
def test_a_page_gives_the_values_that_the_client_library_reads(before, counts, defects):
    parser, pages = PageParser(), PodPages()
    outcome(parser, b"\n".join(shown(before)), pages)
    lines = shown(counts)
    for defect in defects:
        lines = changed(lines, defect)
    text = b"\n".join(lines)
    expected = read_by_the_client_library(text.decode())

    found = outcome(parser, text, pages)

    if not expected:
        assert "no metrics of the model" in found
        return
    assert found.keys() == expected.keys()
    for engine, (row, absent) in found.items():
        columns = expected[engine]
        assert {column: value for column, value in enumerate(row) if value is not None} == columns
        assert absent == frozenset(range(READ_BY_OPERATOR.width)) - columns.keys()


def read_by_the_client_library(text):
    """The values of the model by engine and column."""
    engines = {}
    for family in text_string_to_metric_families(text + "\n"):
        for sample in family.samples:
            labels, name = sample.labels, sample.name
            if labels.get("model_name") != MODEL:
                continue
            histogram, edge = name.removesuffix("_bucket"), labels.get("le")
            values = engines.get(labels["engine"], {})
            if name in READ_BY_OPERATOR.columns:
                values[READ_BY_OPERATOR.columns[name]] = sample.value
            elif histogram in READ_BY_OPERATOR.edges and float(edge) in READ_BY_OPERATOR.edges[histogram]:
                values[READ_BY_OPERATOR.bucket_column(histogram, float(edge))] = sample.value
            else:
                continue
            engines[labels["engine"]] = values
    return engines


@given(st.lists(st.one_of(changes, changes), max_size=8), st.binary(max_size=40))
def test_the_lines_that_are_kept_are_those_that_begin_with_a_name_that_is_read(defects, end):
    lines = shown([1, 200])
    for defect in defects:
        lines = changed(lines, defect)
    text = b"\n".join([*lines, end])

    assert sorted(wanted_lines(text)) == sorted(filter(is_wanted, text.split(b"\n")))
