"""A batch runs in the smallest recorded step that holds it, filled up with the padding row."""

import pytest
import torch

from tangram_engine.run.graphs import DecodeGraphs

CPU = torch.device("cpu")
PADDING = 9


class Counting:
    """A step that advances counters of ten device rows. Its tokens are ten times the rows."""

    def __init__(self):
        self.positions = torch.zeros(10, dtype=torch.int32)
        self.batches = []

    def __call__(self, rows):
        self.batches.append(rows.tolist())
        self.positions.index_add_(0, rows, (rows != PADDING).int())
        return (rows.float().clone(),)


def sample(rows):
    return (rows * 10,)


def test_a_batch_is_filled_up_to_the_next_size_and_padding_is_cut_off():
    step = Counting()
    graphs = DecodeGraphs(step, sample, PADDING, (1, 2, 4, 8), CPU)
    assert [len(batch) for batch in step.batches] == [8, 4, 2, 1]
    assert set().union(*step.batches) == {PADDING}

    for batch in ([3], [5, 1, 2], [0, 1, 2, 3, 4, 5, 6, 7]):
        tokens, _ = graphs.replay(torch.tensor(batch, dtype=torch.int32))
        assert tokens.tolist() == [10 * row for row in batch]

    assert step.batches[4:] == [[3], [5, 1, 2, PADDING], [0, 1, 2, 3, 4, 5, 6, 7]]
    assert step.positions.tolist() == [1, 2, 2, 2, 1, 2, 1, 1, 0, 0]


def test_a_later_batch_of_the_same_size_leaves_nothing_of_the_former():
    step = Counting()
    graphs = DecodeGraphs(step, sample, PADDING, (4,), CPU)
    first = graphs.replay(torch.tensor([1, 2, 3], dtype=torch.int32))[0].clone()
    second = graphs.replay(torch.tensor([4, 5], dtype=torch.int32))[0]
    assert first.tolist() == [10, 20, 30]
    assert second.tolist() == [40, 50]
    assert step.batches[-1] == [4, 5, PADDING, PADDING]


@pytest.mark.parametrize(("rows", "recorded"), [(0, False), (1, True), (8, True), (9, False)])
def test_only_batches_up_to_the_largest_size_have_a_graph(rows, recorded):
    assert (rows in DecodeGraphs(Counting(), sample, PADDING, (4, 8), CPU)) is recorded
