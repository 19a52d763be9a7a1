import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram.catalog import InputError, gpu, skus
from tangram.catalog.price_file import parse_prices
from tangram.catalog.prices import Prices
from tangram.cli.options.prices import read_prices


def test_prices_of_the_file_hold_and_the_others_stay():
    prices = parse_prices("H100-80GB-SXM: 2.49  # per GPU\nGB200-186GB: 9\n", "prices.yaml")

    assert prices.gpu_hour("H100-80GB-SXM") == pytest.approx(2.49)
    assert prices.gpu_hour("GB200-186GB") == pytest.approx(9)
    assert prices.gpu_hour("L4") == gpu("L4").price_per_hour
    assert [sku for sku in skus() if not prices.is_default(sku)] == ["GB200-186GB", "H100-80GB-SXM"]


def test_without_a_file_prices_are_list_prices_and_none_is_invented():
    prices = read_prices(None)

    assert prices == Prices()
    assert prices.gpu_hour("GB200-186GB") is None


def test_an_empty_file_overrides_nothing():
    assert parse_prices("# none yet\n", "prices.yaml") == Prices()


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("L4: 1\nH100-80G-SXM: 2\n", 2, "nearest is H100-80GB-SXM"),
        ("h200-141gb-sxm: 2\n", 1, "nearest is H200-141GB-SXM"),
        ("banana: 2\n", 1, "no GPU is called 'banana'"),
        ("L4: -1\n", 1, "not a price"),
        ("L4: 0\n", 1, "not a price"),
        ("L4: .nan\n", 1, "not a price"),
        ("L4: .inf\n", 1, "not a price"),
        ("L4: 1e999\n", 1, "not a price"),
        ("L4: '1.5'\n", 1, "not a price"),
        ("L4: cheap\n", 1, "not a price"),
        ("L4: true\n", 1, "not a price"),
        ("L4:\n", 1, "not a price"),
        ("L4: [1]\n", 1, "not a price"),
        ("L4: {usd: 1}\n", 1, "not a price"),
        ("L4: 2000\n", 1, "not a price"),
        ("L4: 1\nT4: 1\nL4: 2\n", 3, "already"),
        ("? [L4]\n: 1\n", 1, "of the form"),
        ("L4: 1\n\tT4: 2\n", 2, "not YAML"),
        ("L4: 1\nT4: *nowhere\n", 2, "not YAML"),
    ],
)
def test_a_wrong_line_is_named(text, line, says):
    with pytest.raises(InputError) as refused:
        parse_prices(text, "prices.yaml")

    assert refused.value.field == f"prices.yaml:{line}"
    assert says in refused.value.problem


@pytest.mark.parametrize("text", ["- L4\n", "L4\n", "12\n"])
def test_a_file_that_is_no_mapping_is_refused(text):
    with pytest.raises(InputError, match="SKU: usd_per_gpu_hour"):
        parse_prices(text, "prices.yaml")


@given(st.text() | st.text(alphabet="L4T: \n-{}[]&*!'\"#|>%@`0123456789.e_x\t"))
def test_whatever_the_file_holds_it_is_prices_or_one_error(text):
    try:
        prices = parse_prices(text, "prices.yaml")
    except InputError as error:
        refusal = error.field
    else:
        refusal = None
        assert all(0 < price <= 1000 for price in prices.overrides.values())

    assert refusal is None or refusal.startswith("prices.yaml")


def test_a_price_file_named_with_a_dash_is_a_file_and_not_standard_input(tmp_path, monkeypatch):
    (tmp_path / "-").write_text("L4: 0.5\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"L4: 9\n")))

    assert read_prices("-").gpu_hour("L4") == pytest.approx(0.5)


def test_files_that_cannot_be_read_are_refused(tmp_path):
    binary, huge = tmp_path / "binary", tmp_path / "huge"
    binary.write_bytes(b"\xff\xfe\x00L4: 1")
    huge.write_bytes(b"#" * (2 << 20))

    for path in (str(tmp_path), str(tmp_path / "none"), str(binary), str(huge), "a\0b", "x" * 5000):
        with pytest.raises(InputError):
            read_prices(path)
