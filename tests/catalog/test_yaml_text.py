"""Small texts that would become large documents are refused before anything is made of them."""

import time
import tracemalloc

import pytest

from tangram.catalog import InputError
from tangram.catalog.price_file import parse_prices
from tangram.catalog.reading import yaml_text
from tangram.cli.input_documents import documents
from tangram.cli.options.csv_file import read_csv
from tangram.shell.settings import SettingsError, load_settings, parse_settings


def merges(levels):
    lines = (f"a{i}: &a{i}\n  <<: [*a{i - 1}, *a{i - 1}]\n" for i in range(1, levels))
    return "a0: &a0 {k: 1}\n" + "".join(lines)


def aliases(levels):
    return "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, levels))


def chain(levels):
    return "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, levels))


TOO_MUCH = "make too much of it"
BOMBS = {
    "nested merges": (merges(26), TOO_MUCH),
    "nested aliases": (aliases(60), TOO_MUCH),
    "one bomb for each document": ("---\n".join([merges(15)] * 40), TOO_MUCH),
    "a chain of aliases": (chain(5_000), "more than 200 levels deep"),
    "an alias in itself": ("a: &a\n- *a\n", "contains itself"),
    "an alias in itself, two levels on": ("a: &a {b: {c: *a}}\n", "contains itself"),
    "a number in base 60": ("a: 1" + ":11" * 300_000 + "\n", "a number of more than 500 characters"),
    "a fraction in base 60": ("a: 1" + ":11" * 300_000 + ".5\n", "a number of more than 500 characters"),
    "tags": ("".join(f"%TAG !{i}! x{i}:\n" for i in range(60_000)) + "---\na: 1\n", "begin with %"),
    "documents": ("---\n" * 100_000, "more than 20,000 documents"),
    "brackets": ("[" * 300_000, "more than 200 levels deep"),
}


@pytest.mark.parametrize("case", BOMBS)
def test_a_bomb_is_refused_with_little_work(case):
    text, problem = BOMBS[case]
    begun = time.process_time()

    with pytest.raises(InputError) as refused:
        list(documents(text, "file.yaml"))

    assert time.process_time() - begun < 8  # 2 s on a quiet machine; unbounded: minutes, or never
    assert problem in str(refused.value)
    assert refused.value.field.startswith("file.yaml")


@pytest.mark.parametrize("text", [merges(26), aliases(60)], ids=["merges", "aliases"])
def test_a_bomb_takes_little_memory(text):
    tracemalloc.start()
    try:
        with pytest.raises(InputError):
            list(documents(text, "file.yaml"))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 4 << 20


def merges_inside(levels):
    """Merges that are nested without a name of their own."""
    return "a0: &a0 {k: 1}\nb: " + "{<<: [*a0, " * levels + "*a0" + "]}" * levels


def merged_and_held(levels):
    """Each mapping is merged into the next and is a value of it."""
    lines = (f"a{i}: &a{i} {{<<: *a{i - 1}, k{i}: *a{i - 1}}}\n" for i in range(1, levels))
    return "a0: &a0 {k: 1}\n" + "".join(lines)


@pytest.mark.parametrize("levels", range(8, 20))
@pytest.mark.parametrize("form", [merges, aliases, merges_inside, merged_and_held])
def test_a_few_hundred_bytes_become_little_whether_refused_or_not(monkeypatch, form, levels):
    constructed = []
    construct = yaml_text._Loader.construct_mapping

    def counting(loader, node, deep=False):
        found = construct(loader, node, deep)
        constructed.append(len(node.value))  # with what merges write into it
        return found

    monkeypatch.setattr(yaml_text._Loader, "construct_mapping", counting)
    text, refusal = form(levels), ""
    tracemalloc.start()
    try:
        list(documents(text, "file.yaml"))
    except InputError as error:
        refusal = str(error)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()

    limit = 5_000 + 10 * len(text)
    assert not refusal or f"more than {limit:,} nodes" in refusal
    assert sum(constructed) <= (0 if refusal else limit + len(text))
    assert peak < 1 << 20


def test_a_mapping_with_merges_may_be_merged_before_its_own_turn():
    text = "d: &d {a: 1}\nbase: {inner: &n {<<: *d, a: 2}}\nk: {<<: *n, b: 3}\n"

    (found,) = documents(text, "f")

    assert found == {"d": {"a": 1}, "base": {"inner": {"a": 2}}, "k": {"a": 2, "b": 3}}


@pytest.mark.parametrize("text", ["{<<: *d, a: 2, a: 3}", "{<<: *d, 1: x, 0x1: y}", "{~: x, null: y}"])
def test_a_key_that_is_there_twice_is_refused_beside_merges_and_in_other_words(text):
    with pytest.raises(InputError, match="is there twice"):
        list(documents(f"d: &d {{a: 1}}\nk: {text}\n", "f"))


@pytest.mark.parametrize(
    "text", ["!!bool maybe", "!!int ''", "!!float ''", "!!int x", "!!timestamp 99999-01-01", "2001-99-99"]
)
def test_a_value_that_is_not_what_its_tag_says_is_an_error_with_its_line(text):
    with pytest.raises(InputError, match=r"is no (bool|int|float|timestamp)") as refused:
        list(documents(f"kind: x\nvalue: {text}\n", "f"))
    assert refused.value.field == "f:2"


def test_a_bomb_names_its_line():
    with pytest.raises(InputError) as refused:
        list(documents("kind: x\n" + merges(26), "file.yaml"))

    line = int(refused.value.field.removeprefix("file.yaml:"))
    assert 10 < line < 60


def test_work_grows_with_the_text_and_not_with_what_it_would_become(monkeypatch):
    """Nodes that are looked at: those that are written, however many they would be."""
    counted = []
    children = yaml_text._children
    monkeypatch.setattr(yaml_text, "_children", lambda node: counted.append(1) or children(node))
    for levels in (30, 60):
        counted.clear()
        with pytest.raises(InputError):
            list(documents(aliases(levels), "f"))
        assert len(counted) < 20 * levels


def test_what_dumps_share_is_no_bomb():
    shared = "l: &l {a: b, c: d}\nitems:\n" + "- {<<: *l, x: 1}\n- *l\n" * 5_000

    (found,) = documents(shared, "f")

    assert found["items"][0] == {"a": "b", "c": "d", "x": 1}
    assert len(found["items"]) == 10_000


def test_json_is_bounded_in_depth_as_yaml_is():
    with pytest.raises(InputError, match="more than 200 levels deep"):
        list(documents('{"a":' * 400 + "1" + "}" * 400, "f.json"))
    assert list(documents('{"a":' * 150 + "1" + "}" * 150, "f.json"))


@pytest.mark.parametrize("text", [merges(26), aliases(60), "[" * 300_000, "a: &a\n- *a\n"])
def test_price_files_and_settings_are_read_by_the_same_rules(text, tmp_path):
    with pytest.raises(InputError, match="not YAML"):
        parse_prices(text, "prices.yaml")
    with pytest.raises(SettingsError, match="not YAML"):
        parse_settings(text, "settings.yaml")


def test_a_settings_file_has_a_size_and_an_encoding(tmp_path):
    (tmp_path / "large").write_bytes(b"#" * ((1 << 20) + 1))
    (tmp_path / "binary").write_bytes(b"\xff\xfe")

    with pytest.raises(SettingsError, match="larger than 1 MiB"):
        load_settings(tmp_path / "large")
    with pytest.raises(SettingsError, match="not UTF-8"):
        load_settings(tmp_path / "binary")


def test_a_csv_header_of_many_columns_is_read_in_linear_time(tmp_path):
    path = tmp_path / "wide.csv"
    path.write_text(",".join(f"c{i}" for i in range(300_000)) + ",c7\n1\n")
    begun = time.process_time()

    with pytest.raises(InputError, match="two columns named c7"):
        read_csv(path, ())
    assert time.process_time() - begun < 5
