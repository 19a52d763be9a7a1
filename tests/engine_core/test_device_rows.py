"""What the device knows of running requests: uploaded once, then advanced by itself; of a known size."""

import pytest
import torch

from tangram_engine.run.rows import DeviceRows, device_rows_bytes
from tangram_engine.sample.filters import IN_PROMPT
from tangram_engine.sample.params import SamplingParams
from tangram_engine.sample.sampler import keep
from tangram_engine.schedule import BatchRow, Request, Sequence

CPU = torch.device("cpu")


def rows_of(max_num_seqs=3):
    return DeviceRows(max_num_seqs, 40, 4, 50, CPU)


def sequence_in(slot, tokens, table, **params):
    sequence = Sequence(Request("a", tuple(tokens), SamplingParams(max_tokens=9, **params), arrival=0.0))
    sequence.slot, sequence.table = slot, table
    return sequence


def int32(*values):
    return torch.tensor(values, dtype=torch.int32)


def test_the_bytes_are_those_of_the_formula():
    rows = rows_of(7)
    own = ("tables", "positions", "last_tokens", "top_k", "seed", "parameters", "counts")
    assert sum(getattr(rows, name).nbytes for name in own) == device_rows_bytes(7, 40, 4, 50)


def test_a_row_is_uploaded_when_it_is_admitted_and_then_only_what_its_table_grew_by(monkeypatch):
    rows, uploads = rows_of(), []
    scatter = rows._scatter
    monkeypatch.setattr(rows, "_scatter", lambda upload: (uploads.append(upload), scatter(upload)))
    sequence = sequence_in(1, [5, 6, 7], [9], temperature=0.5, top_k=4, top_p=0.9, seed=-1)
    rows.update([BatchRow(sequence, 0, 3)])
    assert rows.positions.tolist() == [0, 2, 0, 0]
    assert rows.last_tokens[1] == 7
    assert (rows.top_k[1], rows.seed[1]) == (4, -1)
    assert rows.parameters[:, 1].tolist() == pytest.approx([0.5, 0.9, 0.0, 1.0, 0.0, 0.0])
    keep(int32(8), int32(1), rows)
    rows.update([BatchRow(sequence, 3, 1, first=False)])
    assert len(uploads) == 1  # nothing changed that the device does not know
    sequence.table.append(4)
    rows.update([BatchRow(sequence, 4, 1, first=False)])
    assert uploads[1].blocks == [(1 * 10 + 1, 4)]
    assert not uploads[1].positions
    assert rows.tables[1, :2].tolist() == [9, 4]
    assert (rows.positions[1], rows.last_tokens[1]) == (3, 8)


def test_a_chunk_that_does_not_sample_leaves_the_position_that_comes_next():
    rows = rows_of()
    sequence = sequence_in(1, range(9), [9, 3, 4])
    for start, length, samples, position in ((0, 4, False, 4), (4, 1, False, 5), (5, 3, False, 8)):
        rows.update([BatchRow(sequence, start, length, samples, first=not start)])
        assert rows.positions[1] == position
    rows.update([BatchRow(sequence, 8, 1, first=False)])  # the device has its position and its token
    assert rows.fed[:, 1].tolist() == [8, 8]


def test_tokens_of_penalised_rows_are_counted_and_begin_anew_with_each_owner():
    rows = rows_of()
    plain = sequence_in(0, [5], [0])
    first = sequence_in(1, [5, 6, 6], [1], presence_penalty=1.0)
    first.tokens += [6, 9]
    rows.update([BatchRow(plain, 0, 1), BatchRow(first, 0, 5)])
    keep(int32(9, 9), int32(0, 1), rows)
    assert not rows.counts[0].any()
    assert {token: n for token, n in enumerate(rows.counts[1].tolist()) if n} == {
        5: IN_PROMPT, 6: IN_PROMPT + 1, 9: 2
    }  # fmt: skip
    rows.update([BatchRow(sequence_in(1, [3], [2], repetition_penalty=2.0), 0, 1)])
    assert rows.counts[1].nonzero().tolist() == [[3]]


def test_padding_stays_where_it_is_and_a_failed_token_becomes_a_valid_one():
    rows = rows_of()
    rows.pad_with(77)
    padded = int32(0, rows.padding, rows.padding)
    for _ in range(3):
        keep(int32(-1, 7, 8), padded, rows)
    assert rows.positions.tolist() == [3, 0, 0, 0]
    assert rows.last_tokens.tolist() == [0, 0, 0, 0]
    assert rows.tables[rows.padding].unique().tolist() == [77]
