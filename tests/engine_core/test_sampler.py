"""The sampler against plain Python that does one thing at a time."""

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tangram_engine.run.rows import DeviceRows
from tangram_engine.sample import filters, noise
from tangram_engine.sample.params import SamplingParams
from tangram_engine.sample.sampler import Sampler, keep
from tangram_engine.schedule import BatchRow, Request, Sequence

CPU = torch.device("cpu")
VOCABULARY = 50


def sequence(name="a", prompt=(1, 2), output=(), **params):
    result = Sequence(Request(name, tuple(prompt), SamplingParams(max_tokens=99, **params), arrival=0.0))
    result.tokens += output
    return result


def logits_of(seed, rows=1, vocabulary=VOCABULARY):
    return torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed)) * 2


def choose(sequences, logits, seed=0):
    """Ids that follow these sequences, one per row of `logits`; -1 where they are not finite."""
    vocabulary = logits.shape[-1]
    table = DeviceRows(len(sequences), 1, 1, vocabulary, CPU, seed)
    for slot, one in enumerate(sequences):
        one.slot = slot
    table.update([BatchRow(one, len(one.tokens) - 1, 1) for one in sequences])
    return Sampler(vocabulary, CPU)(logits, torch.arange(len(sequences), dtype=torch.int32), table).tolist()


def naive_survivors(logits, top_k, top_p, min_p):
    """Token ids that may be drawn, one rule after the other, in float64."""
    order = sorted(range(len(logits)), key=lambda token: -logits[token])
    order = order[: top_k or len(order)]
    weights = [math.exp(logits[token] - logits[order[0]]) for token in order]
    total, mass, kept = sum(weights), 0.0, set()
    for token, weight in zip(order, weights, strict=True):
        if not kept or (mass / total < top_p and weight >= min_p * weights[0]):
            kept.add(token)
        mass += weight
    return kept


@settings(max_examples=300, deadline=None)
@given(
    st.integers(0, 10_000),
    st.lists(
        st.tuples(st.integers(0, 60), st.floats(0.01, 1.0), st.sampled_from([0.0, 0.05, 0.3, 1.0])),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from([2, 8, 1024]),
)
def test_truncation_keeps_what_a_plain_loop_keeps(seed, rows, window):
    logits = logits_of(seed, len(rows))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(filters, "WINDOW", window)
        kept = filters.truncate(logits.clone(), *(torch.tensor(column) for column in zip(*rows, strict=True)))
    for row, original, (k, p, m) in zip(kept, logits, rows, strict=True):
        survivors = set(row.isfinite().nonzero()[:, 0].tolist())
        # A probability mass within rounding of top_p may fall on either side.
        lower = naive_survivors(original.tolist(), k, p - 1e-5, m * (1 + 1e-5))
        upper = naive_survivors(original.tolist(), k, p + 1e-5, m * (1 - 1e-5))
        assert lower <= survivors <= upper
        assert torch.equal(row[row.isfinite()], original[row.isfinite()])


@settings(max_examples=200, deadline=None)
@given(
    st.integers(0, 10_000),
    st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=20),
    st.lists(st.integers(0, VOCABULARY - 1), max_size=20),
    st.floats(-2, 2),
    st.floats(-2, 2),
    st.floats(0.5, 2),
)
def test_penalties_are_those_of_the_formula(seed, prompt, output, presence, frequency, repetition):
    logits = logits_of(seed)
    penalties = {
        "repetition_penalty": repetition, "presence_penalty": presence, "frequency_penalty": frequency
    }  # fmt: skip
    table = DeviceRows(1, 1, 1, VOCABULARY, CPU)
    first, *rest = [sequence(prompt=prompt, output=output[:n], **penalties) for n in range(len(output) + 1)]
    first.slot = 0
    table.update([BatchRow(first, 0, len(prompt))])
    row = torch.tensor([0], dtype=torch.int32)
    for one in rest:
        keep(torch.tensor(one.tokens[-1:], dtype=torch.int32), row, table)
    columns = (torch.tensor([value]) for value in (repetition, presence, frequency))
    got = filters.penalise(logits, table.counts[:1], *columns)[0]
    logits = logits[0]
    for token in range(VOCABULARY):
        expected = logits[token].item()
        if token in prompt or token in output:
            expected = expected / repetition if expected > 0 else expected * repetition
        expected -= frequency * output.count(token) + presence * (token in output)
        assert got[token].item() == pytest.approx(expected, abs=1e-5)


def _mix(value):
    """SplitMix64's finalizer on one unsigned 64-bit integer."""
    value = ((value ^ value >> 30) * noise.FIRST) & noise.MASK
    value = ((value ^ value >> 27) * noise.SECOND) & noise.MASK
    return value ^ value >> 31


def _stream(seed, position):
    return _mix((_mix((seed + noise.GOLDEN) & noise.MASK) + position * noise.GOLDEN) & noise.MASK)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**64 - 1), st.integers(0, 10_000))
def test_vectorised_noise_is_the_plain_hash(seed, position):
    key = _stream(seed, position)
    seeds, positions = torch.tensor([noise.signed(seed)]), torch.tensor([position])
    assert noise.streams(seeds, positions).item() == noise.signed(key)
    got = noise.GumbelNoise(9, CPU)(noise.streams(seeds, positions))[0].tolist()
    for token, value in enumerate(got):
        bits = _mix((key + (token + 1) * noise.GOLDEN) & noise.MASK) >> 32
        uniform = min((bits + 0.5) / 2**32, 1 - 2**-24)
        assert value == pytest.approx(-math.log(-math.log1p(-uniform)), rel=1e-3, abs=1e-3)


def test_the_hash_is_splitmix64():
    # First outputs for seed 1234567, as published with the reference implementation.
    state, outputs = 1234567, []
    for _ in range(3):
        state = (state + noise.GOLDEN) & noise.MASK
        outputs.append(_mix(state))
    assert outputs == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_noise_is_finite_for_every_possible_bit_pattern_at_the_ends():
    values = noise.GumbelNoise(200_000, CPU)(torch.tensor([noise.signed(_stream(3, 4))]))
    assert values.isfinite().all()
    assert values.mean().item() == pytest.approx(0.5772, abs=0.02)
    assert values.var().item() == pytest.approx(math.pi**2 / 6, abs=0.05)


def test_drawn_frequencies_are_the_probabilities():
    row = logits_of(1, vocabulary=8)
    expected = (row / 0.7).softmax(-1)[0].tolist()
    rows = [sequence(output=(0,) * position, temperature=0.7, seed=5) for position in range(4000)]
    counts = Counter(choose(rows, row.expand(4000, 8)))
    statistic = sum((counts[token] - 4000 * p) ** 2 / (4000 * p) for token, p in enumerate(expected))
    assert statistic < 24.3  # chi-square, 7 degrees of freedom, one in a thousand; the seed is fixed


def test_neighbouring_seeds_and_positions_draw_independently():
    rows = [sequence(output=(0,) * p, seed=s, temperature=1.0) for p in range(60) for s in range(60)]
    drawn = torch.tensor(choose(rows, torch.zeros(3600, 4))).view(60, 60)
    for first, second in ((drawn[:, :-1], drawn[:, 1:]), (drawn[:-1], drawn[1:])):
        assert (first == second).float().mean().item() == pytest.approx(0.25, abs=0.03)


def test_a_row_draws_the_same_in_any_batch_and_place():
    params = [
        {"seed": 7, "temperature": 0.8},
        {"temperature": 0.0},
        {"seed": -1, "temperature": 1.3, "top_k": 5},
        {"temperature": 1.0, "top_p": 0.5, "presence_penalty": 1.0},
        {"seed": 2**63, "temperature": 1.0, "min_p": 0.1, "logprobs": 3},
        {"temperature": 0.0, "repetition_penalty": 1.5, "logprobs": 0},
    ]
    rows = [sequence(str(n), output=(3,) * n, **one) for n, one in enumerate(params)]
    logits = logits_of(3, len(rows))
    together = choose(rows, logits)
    assert together == [choose([row], logits[n : n + 1])[0] for n, row in enumerate(rows)]
    assert together[::-1] == choose(rows[::-1], logits.flip(0))


def test_without_a_seed_the_engine_seed_and_the_id_decide():
    logits = torch.zeros(1, 1000)
    first = choose([sequence("a")], logits, seed=1)
    assert first == choose([sequence("a")], logits, seed=1)
    assert first != choose([sequence("b")], logits, seed=1)
    assert first != choose([sequence("a")], logits, seed=2)


@pytest.mark.parametrize(
    "params", [{"temperature": 0.0}, {"temperature": 1e-30}, {"top_k": 1}, {"top_p": 0.0}, {"min_p": 5.0}]
)
def test_what_leaves_one_choice_is_greedy(params):
    logits = logits_of(9, 20)
    rows = [sequence(str(n), **params) for n in range(20)]
    assert choose(rows, logits) == logits.argmax(-1).tolist()


@pytest.mark.parametrize(
    "params", [{"temperature": 0.0}, {"temperature": 1.0}, {"temperature": 0.0, "presence_penalty": 1.0}]
)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_row_that_is_not_finite_fails_alone(params, bad):
    logits = logits_of(4, 3)
    logits[1, 17] = bad
    ids = choose([sequence(str(n), **params) for n in range(3)], logits)
    assert [token == -1 for token in ids] == [False, True, False]
