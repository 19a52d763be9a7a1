"""The sampler without a sort chooses what the reference chooses."""

from copy import deepcopy
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from tangram_engine.kernels import sample, tiles
from tangram_engine.sample.sampler import NEUTRAL

pytestmark = pytest.mark.slow

IN_PROMPT = 1 << 30
# temperature, top_p, min_p, repetition, presence, frequency; top_k. Greedy, plain, each filter, all of them.
CHOICES = [
    (0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0),
    (0.0, 1.0, 0.0, 1.3, 0.5, -0.2, 0),
    (1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0),
    (0.8, 0.9, 0.0, 1.0, 0.0, 0.0, 0),
    (1.5, 1.0, 0.0, 1.0, 0.0, 0.0, 3),
    (0.6, 0.95, 0.0, 1.0, 0.0, 0.0, 20),
    (0.7, 0.5, 0.02, 1.1, 0.3, 0.1, 5),
    (1.0, 1.0, 0.3, 1.0, 0.0, 0.0, 0),
    (1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0),
    (0.01, 0.99, 0.0, 1.0, 0.0, 0.0, 1_000),
    (100.0, 0.7, 1.0, 0.9, 0.0, 0.0, 1),
]


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"GROUP": 16, "SPAN": 2, "TILE": 2, "scan_warps": 1, "choose_warps": 1}
    monkeypatch.setitem(tiles.TILES, ("sample", 0, 0), row)


def rows_of(choices: list[tuple[float, ...]], vocab_size: int) -> SimpleNamespace:
    """Device rows with these parameters, and one row of padding."""
    table = torch.tensor([*choices, (*NEUTRAL, 0)], dtype=torch.float64)
    count = len(table)
    counts = torch.randint(0, 3, (count, vocab_size)) * torch.randint(0, 2, (count, vocab_size))
    counts |= IN_PROMPT * torch.randint(0, 2, (count, vocab_size))
    return SimpleNamespace(
        parameters=table[:, :6].T.float().contiguous(),
        top_k=table[:, 6].int(),
        seed=torch.randint(-(2**62), 2**62, (count,)),
        positions=torch.randint(0, 10_000, (count,), dtype=torch.int32),
        last_tokens=torch.full((count,), -7, dtype=torch.int32),
        counts=counts.int(),
    )


def logits_like(kind: str, shape: tuple[int, int]) -> Tensor:
    logits = 3 * torch.randn(shape)
    match kind:
        case "ties":
            return logits.round()
        case "equal":
            return torch.full(shape, -1.5)
        case "excluded":
            return logits.masked_fill(torch.rand(shape) < 0.5, float("-inf")).index_fill(
                1, torch.tensor([0]), 0.0
            )
        case _:
            return logits


def assert_same(logits: Tensor, rows: Tensor, table: SimpleNamespace) -> Tensor:
    """The ids, which kernel and reference choose alike and leave alike in the device rows."""
    tables = [deepcopy(table), deepcopy(table)]
    got = sample.sample(logits, rows, tables[0])

    assert got.tolist() == sample.reference(logits, rows, tables[1]).tolist()
    for name, left in vars(tables[1]).items():
        assert torch.equal(vars(tables[0])[name], left), name
    return got


@pytest.mark.parametrize(
    ("kind", "vocab_size"),
    [("random", 1), ("random", 16), ("random", 90), ("ties", 40), ("equal", 20), ("excluded", 30)],
)
def test_the_kernel_chooses_what_the_reference_chooses(kind: str, vocab_size: int) -> None:
    table = rows_of(CHOICES, vocab_size)
    rows = torch.randperm(len(CHOICES)).int()
    logits = logits_like(kind, (len(CHOICES), vocab_size))

    assert_same(logits, rows, table)


def test_a_row_whose_logits_are_not_finite_has_no_token_and_costs_the_others_nothing() -> None:
    vocab_size = 40
    table = rows_of([CHOICES[0], CHOICES[2], CHOICES[6]] * 2, vocab_size)
    logits, rows = torch.randn(6, vocab_size), torch.arange(6, dtype=torch.int32)
    logits[0, 7], logits[1, 39], logits[2] = float("nan"), float("inf"), float("-inf")

    ids = assert_same(logits, rows, table)

    assert ids[:3].tolist() == [-1, -1, -1]
    assert (ids[3:] >= 0).all()


def test_logits_with_a_stride_are_read_where_they_are() -> None:
    table = rows_of(CHOICES[:4], 20)
    wide, rows = torch.randn(4, 32), torch.arange(4, dtype=torch.int32)

    assert_same(wide[:, :20], rows, table)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_large_top_k_with_top_p_and_hardly_any_temperature_choose_what_the_reference_chooses(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    wide = tiles.TILES["sample", 0, 0] | {"GROUP": 64, "TILE": 32}
    monkeypatch.setitem(tiles.TILES, ("sample", 0, 0), wide)
    plain = (0.0, 1.0, 0.0, 0.0)
    table = rows_of(
        [
            (1.0, 0.99, *plain, 501),
            (100.0, 0.95, *plain, 1_100),
            (0.7, 0.5, 0.001, 1.2, 0.1, 0.1, 700),
            (1e-5, 0.9, *plain, 600),
            (1e-5, 1.0, *plain, 0),
            (1e-30, 0.9, *plain, 0),
        ],
        1_200,
    )
    logits = (5 * torch.randn(6, 1_200)).to(dtype)  # in 16 bits many are equal

    ids = assert_same(logits, torch.arange(6, dtype=torch.int32), table)

    assert ids[3:].tolist() == logits[3:].argmax(-1).tolist()


def test_each_row_is_left_to_the_step_that_feeds_it_and_padding_stays_as_it_is() -> None:
    table = rows_of([CHOICES[0], CHOICES[6], CHOICES[2]], 30)
    before = deepcopy(table)
    logits, padding = torch.randn(5, 30), 3
    logits[1, 4] = float("nan")

    ids = sample.sample(logits, torch.tensor([2, 1, padding, 0, padding], dtype=torch.int32), table)

    assert table.last_tokens.tolist() == [ids[3], 0, ids[0], before.last_tokens[padding]]
    assert (table.positions - before.positions).tolist() == [1, 1, 1, 0]
    assert (table.counts - before.counts).nonzero().tolist() == [[1, 0]]  # of the only penalised row
