"""A model known by its size alone."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram.catalog import InputError
from tangram.catalog.models.sizes import Sizes, architecture_from_size


@pytest.mark.parametrize(
    ("parameters", "layers", "hidden", "heads"),
    [(8.03e9, 32, 4096, 32), (70.6e9, 80, 8192, 64), (405.9e9, 126, 16384, 128), (1.24e9, 16, 2048, 16)],
)
def test_the_sizes_of_llama_3_give_its_shape(parameters: float, layers: int, hidden: int, heads: int):
    model = architecture_from_size(Sizes(parameters, layers))

    assert model.hidden_size == hidden
    assert model.groups[0].attention.heads == heads
    assert model.groups[0].attention.kv_heads == 8
    assert model.parameters == pytest.approx(parameters, rel=0.02)


def test_what_was_assumed_is_said_and_what_was_given_is_not():
    model = architecture_from_size(Sizes(70e9, 80, hidden_size=8192))

    assert "assumed: 8 KV heads" in model.unverified
    assert "assumed: vocabulary 128256" in model.unverified
    assert not [fact for fact in model.unverified if "layers" in fact or "hidden" in fact]


def test_what_was_given_is_kept():
    model = architecture_from_size(Sizes(7e9, 32, hidden_size=4096, kv_heads=32, vocab_size=32000))

    assert (model.layers, model.hidden_size, model.vocab_size) == (32, 4096, 32000)
    assert model.groups[0].attention.kv_heads == 32


@given(parameters=st.floats(2e8, 2e12))
def test_the_parameters_are_those_wished_within_a_few_percent(parameters: float):
    model = architecture_from_size(Sizes(parameters))

    assert model.parameters == pytest.approx(parameters, rel=0.04)
    assert model.groups[0].intermediate_size % 256 == 0


@given(
    parameters=st.floats(allow_nan=True, allow_infinity=True) | st.floats(1e6, 1e14),
    layers=st.none() | st.integers(-10, 20_000),
    hidden=st.none() | st.integers(-10, 2_000_000),
    kv_heads=st.none() | st.integers(-1, 200),
    vocab=st.none() | st.integers(-1, 1_000_000),
)
def test_any_sizes_give_a_model_or_an_input_error(
    parameters: float, layers: int | None, hidden: int | None, kv_heads: int | None, vocab: int | None
):
    try:
        model = architecture_from_size(Sizes(parameters, layers, hidden, kv_heads, vocab))
    except InputError as error:
        assert error.field.startswith("--")  # noqa: PT017 - either outcome is right
        return
    assert model.parameters > 0


@pytest.mark.parametrize(
    ("sizes", "field"),
    [
        (Sizes(math.nan), "--parameters"),
        (Sizes(-7e9), "--parameters"),
        (Sizes(0), "--parameters"),
        (Sizes(7e9, 0), "--layers"),
        (Sizes(7e9, 32, hidden_size=-1), "--hidden-size"),
        (Sizes(7e9, 32, hidden_size=4099), "--hidden-size"),
        (Sizes(7e9, 32, hidden_size=4096, kv_heads=3), "--kv-heads"),
        (Sizes(7e9, 80, hidden_size=65536), "--parameters"),
        (Sizes(7e9, vocab_size=0), "--vocab-size"),
    ],
)
def test_an_impossible_size_is_refused_with_its_flag(sizes: Sizes, field: str):
    with pytest.raises(InputError) as caught:
        architecture_from_size(sizes)

    assert caught.value.field == field
