"""What the operator takes from the metrics page of a pod, and which pages it refuses."""

import math

import pytest

from tangram.scaling.queries import KV_USAGE, RECEIVED, RUNNING, TTFT, WAITING
from tangram.scaling.scrapes.page_layout import READ_BY_OPERATOR
from tangram.shell.measure import scraped_page
from tangram.shell.measure.scraped_page import (
    MOST_ENGINES,
    SLICE_BYTES,
    PageParser,
    PageProblem,
    PodPages,
    is_wanted,
)
from tangram.simulator.metrics import EnginePage
from tests.support import metrics_pages

MODEL = "meta/x"


def line(name, value, labels=f'engine="0",model_name="{MODEL}"'):
    return f"{name}{{{labels}}} {value}".encode()


def parsed(*lines, parser=None, pages=None):
    wanted = [each for each in lines if is_wanted(each)]
    return (parser or PageParser()).parse(wanted, MODEL, PodPages() if pages is None else pages)


def value(engine, name):
    return engine.row[READ_BY_OPERATOR.columns[name]]


def test_a_page_gives_the_values_of_its_engine():
    page = EnginePage()
    page.arrived(7)
    page.first_token(0.3, 100)
    page.running, page.waiting, page.kv_usage = 3, 2, 0.25

    engines = parsed(*metrics_pages.text(metrics_pages.series(page, MODEL)).split(b"\n"))

    assert list(engines) == ["0"]
    engine = engines["0"]
    values = {name: value(engine, name) for name in (RUNNING, WAITING, KV_USAGE, RECEIVED, f"{TTFT}_count")}
    assert values == {RUNNING: 3, WAITING: 2, KV_USAGE: 0.25, RECEIVED: 7, f"{TTFT}_count": 1}
    assert engine.row[READ_BY_OPERATOR.bucket_column(TTFT, 0.25)] == 0
    assert engine.row[READ_BY_OPERATOR.bucket_column(TTFT, 0.5)] == 1


def test_a_series_that_the_page_lacks_is_absent_and_not_zero():
    engine = parsed(line(RUNNING, 1))["0"]

    column = READ_BY_OPERATOR.columns[WAITING]
    assert column in engine.absent
    assert math.isnan(engine.row[column])
    assert READ_BY_OPERATOR.columns[RUNNING] not in engine.absent


def test_each_engine_of_a_page_has_its_values():
    second = f'engine="1",model_name="{MODEL}"'

    engines = parsed(line(RUNNING, 1), line(RUNNING, 2, second))

    assert {engine: value(values, RUNNING) for engine, values in engines.items()} == {"0": 1, "1": 2}


def test_series_of_another_model_do_not_count():
    other = 'engine="0",model_name="other"'

    engines = parsed(line(RUNNING, 1), line(RUNNING, 9, other), line(WAITING, 9, other))

    assert value(engines["0"], RUNNING) == 1
    assert math.isnan(value(engines["0"], WAITING))


def test_a_current_name_has_precedence_over_a_previous_one():
    engine = parsed(line("vllm:gpu_cache_usage_perc", 0.9), line(KV_USAGE, 0.5))["0"]

    assert value(engine, KV_USAGE) == 0.5


def test_a_page_of_an_older_engine_is_read_by_previous_names():
    engine = parsed(line("vllm:gpu_cache_usage_perc", 0.9, f'model_name="{MODEL}"'))[""]

    assert value(engine, KV_USAGE) == 0.9


def test_a_time_behind_a_value_and_escapes_in_labels_are_understood():
    odd = 'engine="}",model_name="meta/x",note="a\\"b\\n}"'

    engines = parsed(line(RUNNING, "4 1700000000000", odd))

    assert value(engines["}"], RUNNING) == 4


def test_a_counter_that_fell_is_noticed_and_a_gauge_is_not():
    high, low = (parsed(line(RUNNING, n), line(RECEIVED, 5))["0"] for n in (9, 1))
    restarted = parsed(line(RUNNING, 9), line(RECEIVED, 4))["0"]

    assert not low.fell_below(high)
    assert restarted.fell_below(high)


@pytest.mark.parametrize(
    "bad",
    ["NaN", "+Inf", "-Inf", "-1", "1e16", "1e999", "0x10", "1_000", "", "one", "1 2 3", "9" * 4000, "1.2.3"],
)
def test_a_value_that_no_engine_has_makes_the_page_unusable(bad):
    with pytest.raises(PageProblem, match=r"cannot be|without a value"):
        parsed(line(RUNNING, 1), line(RECEIVED, bad))


@pytest.mark.parametrize(
    "bad",
    [
        b'{RUN}{engine="0',
        b"{RUN}{engine} 1",
        b'{RUN}{engine="0" 1',
        b'{RUN}{="x"} 1',
        b'{RUN}{a="\xff"} 1',
    ],
)
def test_a_line_that_is_no_series_makes_the_page_unusable(bad):
    with pytest.raises(PageProblem, match="no series"):
        parsed(line(RUNNING, 1), bad.replace(b"{RUN}", RUNNING.encode()))


def test_a_series_twice_makes_the_page_unusable():
    reordered = f'model_name="{MODEL}",engine="0"'

    with pytest.raises(PageProblem, match="twice"):
        parsed(line(RUNNING, 1), line(RUNNING, 1, reordered))


def test_a_page_without_the_served_model_is_refused():
    with pytest.raises(PageProblem, match="no metrics of the model 'meta/x'"):
        parsed(line(RUNNING, 1, 'engine="0",model_name="other"'))


def test_a_page_with_too_many_engines_is_refused():
    lines = [
        line(RUNNING, 1, f'engine="{number}",model_name="{MODEL}"') for number in range(MOST_ENGINES + 1)
    ]

    assert len(parsed(*lines[:-1])) == MOST_ENGINES
    with pytest.raises(PageProblem, match="engines"):
        parsed(*lines)


def test_labels_that_change_with_each_page_do_not_fill_the_memory(monkeypatch):
    monkeypatch.setattr("tangram.shell.measure.scraped_page._MOST_KNOWN", 100)
    parser = PageParser()

    for number in range(1000):
        parsed(line(RUNNING, 1, f'engine="0",model_name="{MODEL}",nonce="{number}"'), parser=parser)

    assert len(parser._known) <= 100


LONG = ",".join(f'a{number}="b"' for number in range(400))


@pytest.mark.parametrize(("more", "count"), [("", 4000), (f",{LONG}", 200)], ids=["many lines", "long lines"])
def test_a_page_of_new_series_is_parsed_in_slices(more, count, monkeypatch):
    slices = [0]
    real = scraped_page._series

    def counting(text):
        slices[-1] += len(text)
        return real(text)

    monkeypatch.setattr(scraped_page, "_series", counting)
    lines = [line(RUNNING, 1, f'engine="0",model_name="other",x="{number}"{more}') for number in range(count)]
    parsing = PageParser().slices([line(RUNNING, 1), *lines], MODEL, PodPages())
    while next(parsing, "end") is None:
        slices.append(0)

    assert len(slices) > 10
    assert max(slices) < SLICE_BYTES + 4096
    assert sum(slices) > count * len(more)


def test_a_large_page_is_not_remembered():
    pages = PodPages()
    labels = [f'engine="0",model_name="{MODEL}",note="{"x" * 3000}{n}"' for n in range(30)]
    lines = [line(RECEIVED, 1, label.replace("model_name", "other")) for label in labels]

    for _ in range(2):
        assert value(parsed(*lines, line(RUNNING, 4), pages=pages)["0"], RUNNING) == 4
        assert pages.layout is None


def test_the_layout_of_a_page_is_remembered_for_its_model_alone():
    pages, lines = PodPages(), [line(RUNNING, 1), line(RUNNING, 2, 'engine="0",model_name="other"')]
    wanted = [each for each in lines if is_wanted(each)]
    parser = PageParser()

    of_each = [parser.parse(wanted, model, pages)["0"] for model in (MODEL, "other", MODEL)]

    assert [value(engine, RUNNING) for engine in of_each] == [1, 2, 1]


def test_a_problem_quotes_little_of_the_page():
    with pytest.raises(PageProblem) as problem:
        parsed(line(RUNNING, 1), line(RECEIVED, "x" * 3000, f'model_name="{MODEL}",a="{"b" * 3000}"'))

    assert len(str(problem.value)) < 300
