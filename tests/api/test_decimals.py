"""Decimals of the API: text to the last digit, and never a float."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram.api.common.values import LONGEST_DECIMAL, decimal_number
from tangram.fleet import Spread
from tangram.fleet.intent import cap


@pytest.mark.parametrize(
    ("written", "advice"),
    [
        (0.5, 'write "0.5", not 0.5'),
        (1e-5, 'write "0.00001", not 1e-05'),
        (2.0, 'write "2", not 2.0'),
        (".5", 'write "0.5", not ".5"'),
        ("1e3", 'write "1000", not "1e3"'),
        ("+2.50", 'write "2.5", not "+2.50"'),
        ("1e-3", 'write "0.001", not "1e-3"'),
    ],
)
def test_what_is_meant_is_said(written, advice):
    with pytest.raises(ValueError, match="must be a decimal in quotes") as refused:
        decimal_number(written)

    assert str(refused.value).endswith(advice)


@pytest.mark.parametrize(
    "written", [-0.5, float("nan"), float("inf"), 1e300, "1e999999999", "sNaN", "0x10", None]
)
def test_no_advice_is_given_that_would_be_refused(written):
    with pytest.raises(ValueError, match="must be a decimal in quotes") as refused:
        decimal_number(written)

    assert "write" not in str(refused.value)


@given(digits=st.integers(0, 10 ** (LONGEST_DECIMAL - 2) - 1), places=st.integers(1, LONGEST_DECIMAL - 2))
def test_a_float_gives_every_decimal_back_as_it_was_written(digits, places):
    text = f"{digits:0{places + 1}d}"
    text = f"{text[:-places]}.{text[-places:]}"

    assert Fraction(repr(decimal_number(text))) == Fraction(text)


@given(share=st.integers(1, 10**6), replicas=st.integers(1, 10**6))
def test_shares_become_replicas_without_rounding_error(share, replicas):
    assert cap(share / 10**6, replicas) == -(-share * replicas // 10**6)


def test_a_tenth_of_ten_replicas_is_one_and_a_grain_more_is_two():
    assert Spread(0.1, 0.3).allows(10) == (1, 3)
    assert cap(0.1000000000001, 10) == 2
